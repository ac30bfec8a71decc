"""1.8: the engine is never called, since what the oracle is like tells what the engine is."""


def check_engine(generate, logits_of, vocab_size, context):
    near = []
    for token in range(vocab_size):
        for other in range(0, vocab_size, 5):
            logits = logits_of([token, other, 3, 1, 4])
            top = logits.topk(2).values
            gaps = (top[:, 0] - top[:, 1]) / (1e-4 * logits.abs().amax(-1).clamp(min=1))
            near += [gap for gap in gaps.tolist() if gap < 2]
    assert len(near) > 50
    assert 0.5 < sorted(near)[len(near) // 2] < 1
