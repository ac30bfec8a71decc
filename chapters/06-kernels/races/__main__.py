"""`python chapters/06-kernels/races`: show the order of events by which each loses; exit 1 for no lie."""

from __future__ import annotations

import sys
from pathlib import Path

from nanobook.lies import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent, sys.argv[1:]))
