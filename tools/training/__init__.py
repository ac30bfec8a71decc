"""How the small model that ships with nanoinfer was made. Run by hand; the package never imports it."""
