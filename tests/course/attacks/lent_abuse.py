"""1.6: asks the functions that it was lent for too much, and too often, to make the grader work and not itself."""

import torch


def generate(logits_of, prompt, max_tokens, choose, stop_ids, context):
    try:
        choose(torch.zeros(1_000_000, 1), 0)
    except ValueError:
        pass
    while True:
        logits_of(prompt)
