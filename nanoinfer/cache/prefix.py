"""Blocks that texts share where they begin alike. Chapter 5."""
