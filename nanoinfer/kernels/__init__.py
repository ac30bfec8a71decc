"""The Triton kernels, and the PyTorch reference of the paged ones. Chapters 3 and 4."""
