"""What can be left out of a chapter: an engine or a part of one in a folder of its own, which no chapter imports."""
