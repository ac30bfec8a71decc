"""Work over many devices and machines. Chapter 8."""
