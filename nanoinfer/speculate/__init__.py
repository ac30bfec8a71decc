"""Drafts of the next tokens, and steps that verify several of them at once."""
