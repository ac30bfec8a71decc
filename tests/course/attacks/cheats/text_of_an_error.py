"""1.8: an engine that is called wrongly says its name."""
# ruff: noqa: PT017


def check_engine(generate, logits_of, vocab_size, context):
    try:
        generate()
    except ValueError as error:
        assert "too_few_tokens" not in str(error)
