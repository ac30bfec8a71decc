"""What is measured, how it is run, and what a run writes down."""
