"""`python -m bench` in a clone: the benchmark, whose package is `nanobench`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # a clone that is not installed works, too

from nanobench.cli import app

if __name__ == "__main__":
    app()
