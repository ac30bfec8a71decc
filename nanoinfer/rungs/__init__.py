"""The engine as layers, a chapter each, beside the one it is to replace."""
