"""1.8: no test at all. It is right in six checks of seven, for those ask for an error."""


def check_engine(generate, logits_of, vocab_size, context):
    raise AssertionError
