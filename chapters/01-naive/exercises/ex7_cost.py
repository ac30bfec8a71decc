"""Exercise 1.7: what one pass through the model costs: arithmetic, memory traffic, launches."""

from __future__ import annotations

from nanocourse.exercises import IMPORTS, Call, Case, Check, Spec, call
from nanoinfer.model.config import PRESETS, ModelConfig


def cost(shape: dict[str, int], tokens: int, bytes_per_number: int) -> dict[str, int]:
    """What one pass of one row of `tokens` tokens costs, logits after the last token alone.

    shape: "n_layer", "n_embd" and "vocab_size" of a GPT-2, whose MLP is 4 * n_embd wide.
    "flops": of the matrix products, two for each multiplication with its addition; attention multiplies the whole
    square of queries and keys, as its kernel does before the mask, and adds up values for the whole square.
    "bytes": weights read from memory, each number that is needed once: matrices with their biases, LayerNorms, the
    token embedding once (it is the head, too), and one row of the position embedding for each token.
    "launches": operations that are launched: two lookups and their sum; in each block two LayerNorms, two sums, four
    matrix products with their bias, attention, GELU; at the end a LayerNorm, the last token taken, the head.
    """
    L, C, V, T = shape["n_layer"], shape["n_embd"], shape["vocab_size"], tokens
    matrices = 12 * C * C  # numbers of one block: 3 + 1 + 4 + 4 times C * C
    flops = L * (2 * T * matrices + 4 * T * T * C) + 2 * C * V
    biases_and_norms = (3 + 1 + 4 + 1) * C + 4 * C
    numbers = L * (matrices + biases_and_norms) + 2 * C + V * C + T * C
    return {"flops": flops, "bytes": numbers * bytes_per_number, "launches": 3 + 10 * L + 3}


def _shape(config: ModelConfig) -> dict[str, int]:
    return {"n_layer": config.n_layer, "n_embd": config.n_embd, "vocab_size": config.vocab_size}


EXERCISE = Spec(
    reference=cost,
    lines=8,
    example=lambda: call(_shape(PRESETS["gpt2"]), 100, 2),
    imports=IMPORTS,
    section="What it costs, and where it loses",
    typed=True,
    exact=True,
)


def _not_round(case: Case) -> Call:
    """Counts that are others once they were divided by a billion, in floats, and multiplied again."""
    for at in range(1000):
        draws = case.ints(f"sizes {at}", 0, 10**6, 3).tolist()
        shape = {
            "n_embd": 16 * (1 + draws[0] % 60),
            "n_layer": 1 + draws[1] % 24,
            "vocab_size": 100 + draws[2] % 50_000,
        }
        counts = cost(shape, 1, 4)
        if all(int(counts[name] / 1e9 * 1e9) != counts[name] for name in ("flops", "bytes")):
            break
    return call(shape, 1, 4)


def _case(case: Case) -> Call:
    """Models and texts of usual sizes, longer texts, larger models, the smallest, and a count that is not round."""
    if case.turn((False,) * 4 + (True,)):
        return _not_round(case)
    if case.turn((False,) * 5 + (True,)):  # beyond 2^53, and odd: a float holds neither count
        shape = {"n_embd": 12_289, "vocab_size": 50_257, "n_layer": 97 + case.size("more", 0, 9)}
        return call(shape, 2 * case.size("thousands", 500_000, 600_000) + 1, 3**22)
    if case.turn((False, False, True, False)):  # of one depth and width, as variants of one model are
        return call({"n_layer": 12, "n_embd": 768, "vocab_size": case.size("words", 100, 50257)}, 100, 2)
    if case.turn((False, False, False, True)):
        return call({"n_layer": 1, "n_embd": 16, "vocab_size": 1}, 1, 1)
    shape = {
        "vocab_size": case.size("vocab_size", 100, 50257),
        "n_layer": case.size("n_layer", 1, 24) + case.turn((0, 0, 96)),
        "n_embd": 16 * (case.size("n_embd / 16", 1, 60) + case.turn((0, 0, 768))),
    }
    return call(shape, case.size("tokens", 1, 1024) + case.turn((0, 1024, 100_000)), case.choice("bytes", (2, 4)))


def flops(case: Case) -> Call:
    """Two operations for each weight and token, and attention's square besides; the head for the last token alone."""
    return _case(case)


def bytes_read(case: Case) -> Call:
    """Each weight that is needed is read once, the tied embedding too; of the position table only the rows used."""
    return _case(case)


def launches(case: Case) -> Call:
    """Ten launches a block and six around them, whatever the number of tokens."""
    return _case(case)


ONE_AFTER_THE_OTHER = (  # each differs from the first in one number alone
    ((2, 48, 1001), 1, 2), ((1000, 48, 1001), 1, 2), ((2, 80, 1001), 1, 2), ((2, 48, 2**17 + 3), 1, 2),
    ((2, 48, 1001), 7, 2), ((2, 48, 1001), 1, 1), ((2, 48, 1001), 1, 8), ((2, 48, 50_257), 1, 2),
)  # fmt: skip


def one_number_alone(case: Case) -> Call:
    """Each number counts by itself, and all that is asked for goes by the same ones."""
    sizes, *numbers = case.turn(ONE_AFTER_THE_OTHER)
    return call(dict(zip(("n_layer", "n_embd", "vocab_size"), sizes, strict=True)), *numbers)


def any_numbers(case: Case) -> Call:
    """Each number may be small, odd or large beside any other."""
    layers, width, words, tokens, size = case.small("layers width words tokens bytes")
    shape = {"n_layer": (1, 3, 999)[layers - 1], "vocab_size": (1, 1001, 2**24 + 7)[words - 1]}
    shape["n_embd"] = (1, 33, 70_001)[width - 1]
    return call(shape, (1, 2, 2**31 + 1)[tokens - 1], (1, 3, 8)[size - 1])


CHECKS = (
    Check(flops, 6, part="flops"), Check(bytes_read, 6, part="bytes"), Check(launches, 6, part="launches"),
    Check(one_number_alone, len(ONE_AFTER_THE_OTHER), wide=True), Check(any_numbers, 9, wide=True),
)  # fmt: skip
