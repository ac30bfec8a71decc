"""Measure every engine the same way: `python -m bench run`. Not part of the engine; it imports only its front door."""
