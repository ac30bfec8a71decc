"""What a query may read, and where it is read from: naive, dense and paged."""
