"""Text to token ids and back, prompts into requests, and stop strings."""
