"""A pytest plugin: coverage of a subprocess is booked to the test that started it, not to none."""

from __future__ import annotations

import os
from pathlib import Path


def pytest_runtest_setup() -> None:
    """Let subprocesses read the configuration anew: its context is the test that runs by then."""
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    os.environ["COVERAGE_PROCESS_START"] = str(Path(os.environ["COVERAGE_RCFILE"]).absolute())
