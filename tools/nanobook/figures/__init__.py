"""Diagrams that come from the source and the chapters, and not from a measurement."""
