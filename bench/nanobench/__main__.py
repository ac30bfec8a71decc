"""`python -m nanobench`, and in a clone `python -m bench`."""

from nanobench.cli import app

if __name__ == "__main__":
    app()
