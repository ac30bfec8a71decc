"""The Triton kernels, and the PyTorch reference of the paged ones. Chapters 3 and 4."""

import os

# A product and the sum it goes into are rounded once, as in all measurements: from Triton 3.10 on, only if asked for.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
