"""Pages of the book held to results files and to the source."""
