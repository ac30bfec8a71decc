"""One kernel a token, a lab of chapter 6: `engine="persistent"`."""
