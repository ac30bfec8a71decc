"""It would be imported in place of the real one, or at the start of Python."""

raise SystemExit("shadow")
