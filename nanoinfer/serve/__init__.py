"""A server: OpenAI's completions API over HTTP, in front of the engine of chapter 5."""
