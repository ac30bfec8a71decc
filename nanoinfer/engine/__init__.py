"""The generate loop, the state of a running batch, the steps, and who launches them."""
