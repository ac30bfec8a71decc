"""What makes the book: numbers and excerpts in its pages, diagrams, notebooks, and the site."""
