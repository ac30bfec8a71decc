"""GPT-2: its shape, its forward pass, what a step hands it, and where its weights come from."""
