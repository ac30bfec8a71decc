"""`python -m nanoinfer` is the command `nanoinfer`."""

from nanoinfer.cli import main

if __name__ == "__main__":
    main()
