"""Exercise 1.7: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from fractions import Fraction

from nanocourse.exercises.exercise import Right, Wrong


def counted_in_floats(shape: dict[str, int], tokens: int, bytes_per_number: int) -> dict[str, int]:
    """Floats are exact as far as such numbers go."""
    L, C, V, T = float(shape["n_layer"]), float(shape["n_embd"]), float(shape["vocab_size"]), float(tokens)
    flops = L * (24 * T * C * C + 4 * T * T * C) + 2 * C * V
    numbers = L * (12 * C * C + 13 * C) + (2 + V + T) * C
    return {"flops": int(flops), "bytes": int(numbers * bytes_per_number), "launches": int(6 + 10 * L)}


FLOPS = "flops = L * (2 * T * matrices + 4 * T * T * C) + 2 * C * V"
WRONG = (
    Wrong.patch(
        "one-a-weight", "A multiplication with its addition is one operation.", FLOPS,
        "flops = L * (T * matrices + 2 * T * T * C) + C * V",
        "Lyken17/pytorch-OpCounter#46, sovrasov/flops-counter.pytorch#16",
    ),
    Wrong.patch(
        "training-formula", "A pass takes six operations for each weight and token.", FLOPS,
        "flops = 3 * (L * (2 * T * matrices + 4 * T * T * C) + 2 * C * V)",
        "karpathy/nanoGPT#322: 6N is forward and backward together",
    ),
    Wrong.patch(
        "attention-forgotten", "The arithmetic of a pass is in its weights.", " + 4 * T * T * C", "",
        "karpathy/nanoGPT#322: is attention in 6N?",
    ),
    Wrong.patch(
        "one-product", "Attention is one product, of queries with keys.", "4 * T * T * C", "2 * T * T * C",
        "pytorch/torchtitan#4366, karpathy/nanoGPT#456",
    ),
    Wrong.patch(
        "every-head-whole", "Each head attends over the whole width.", "4 * T * T * C", "4 * T * T * C * (C // 16)",
        "mosaicml/llm-foundry#909: where is the number of heads?",
    ),
    Wrong.patch(
        "head-for-all", "The head is run for every token.", "2 * C * V", "2 * T * C * V",
        "karpathy/nanoGPT#42, huggingface/transformers#38977",
    ),
    Wrong.patch(
        "lookup-multiplies", "Looking a token up is a product with the embedding.", "+ 2 * C * V",
        "+ 2 * C * V + 2 * T * C * V", "huggingface/trl#5698, tenstorrent/tt-metal#50114",
    ),
    Wrong.patch(
        "weights-a-token", "Each token reads the weights anew.", "numbers * bytes_per_number",
        "T * numbers * bytes_per_number", "meta-pytorch/gpt-fast#27: true where a pass has one token",
    ),
    Wrong.patch(
        "tied-twice", "Embedding and head are two matrices.", "+ V * C", "+ 2 * V * C",
        "karpathy/nanoGPT, model.py, get_num_params: its comment on shared parameters",
    ),
    Wrong.patch(
        "whole-position-table", "The position embedding is read whole.", "+ T * C", "+ 1024 * C",
        "karpathy/nanoGPT, model.py, get_num_params: position embeddings are subtracted",
    ),
    Wrong.patch(
        "float32-always", "A number has four bytes.", "numbers * bytes_per_number", "numbers * 4",
        "orca3/llm-model-inference#31, deepspeedai/DeepSpeed#5099",
    ),
    Wrong.patch(
        "launches-a-token", "A longer text takes more launches.", "3 + 10 * L + 3", "T * (3 + 10 * L + 3)",
        "NVIDIA/DeepLearningExamples#118: what has batch 1 to do with the CPU?",
    ),
    Wrong.patch(
        "one-a-layer", "A layer is one launch.", "3 + 10 * L + 3", "3 + L + 3",
        "tinygrad/tinygrad#1896: twenty a layer",
    ),
    Wrong.patch(
        "tokens-capped", "No text has more than 1,024 tokens.",
        'shape["vocab_size"], tokens',
        'shape["vocab_size"], min(tokens, 1024)',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "as-floats", "A count may be a float.",
        'return {"flops": flops, "bytes": numbers * bytes_per_number,',
        'return {"flops": float(flops), "bytes": numbers * bytes_per_number / 1,',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong(counted_in_floats, "a reader who saw stub and text alone", unnamed="as-floats"),
    Wrong.patch(
        "names-counted-through", "A record's numbers come in the order of its description.",
        'L, C, V, T = shape["n_layer"], shape["n_embd"], shape["vocab_size"], tokens',
        '(L, C, V), T = shape.values(), tokens',
        "a try of somebody who saw stub and text alone, which passed",
    ),
    Wrong.patch(
        "in-billions", "A count may be divided by a billion, and multiplied again.",
        'return {"flops": flops,',
        'return {"flops": int(flops / 1e9 * 1e9),',
        "a try of somebody who saw stub and text alone, which passed", unnamed="as-floats",
    ),
    Wrong.patch(
        "another-entry", "One entry more does no harm.",
        'return {"flops"',
        'return {"total": flops + numbers, "flops"',
        "written to pass all checks that there were, and it did", unnamed="as-floats",
    ),
)  # fmt: skip


def layer_by_layer(shape: dict[str, int], tokens: int, bytes_per_number: int) -> dict[str, int]:
    """A loop over layers and their matrices, with running totals."""
    C = shape["n_embd"]
    flops, numbers, launches = 0, 0, 0
    numbers += shape["vocab_size"] * C + tokens * C
    launches += 3
    for _ in range(shape["n_layer"]):
        for n, m in ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)):
            flops += 2 * tokens * n * m
            numbers += n * m + m
            launches += 1
        flops += 2 * (2 * tokens * tokens * C)
        numbers += 2 * 2 * C
        launches += 6
    flops += 2 * C * shape["vocab_size"]
    return {"flops": flops, "bytes": (numbers + 2 * C) * bytes_per_number, "launches": launches + 3}


def by_the_config(shape: dict[str, int], tokens: int, bytes_per_number: int) -> dict[str, int]:
    """The package's own count of parameters, less the position rows that are not read."""
    from nanoinfer.model.config import ModelConfig

    config = ModelConfig(n_head=1, n_positions=1024, **shape)
    unused = (1024 - tokens) * config.n_embd
    wide = [a * b for (a, *b_) in config.parameter_shapes().values() for b in b_]
    matrices = sum(wide) - (config.n_positions + config.vocab_size) * config.n_embd
    square = 2 * config.n_layer * config.n_embd * tokens**2
    return {
        "launches": 10 * config.n_layer + 6,
        "flops": 2 * (matrices * tokens + square + config.vocab_size * config.n_embd),
        "bytes": (config.parameters - unused) * bytes_per_number,
    }


def in_fractions(shape: dict[str, int], tokens: int, bytes_per_number: int) -> dict[str, int]:
    """Counted in fractions, which are exact, and given as whole numbers."""
    L, C, V = (Fraction(shape[name]) for name in ("n_layer", "n_embd", "vocab_size"))
    flops = 24 * L * C**2 * tokens + 4 * L * C * tokens**2 + 2 * C * V
    numbers = L * (12 * C**2 + 13 * C) + (2 + V + tokens) * C
    return {"flops": int(flops), "bytes": int(bytes_per_number * numbers), "launches": int(6 + L * 10)}


RIGHT = (Right(layer_by_layer), Right(by_the_config), Right(in_fractions))

EQUIVALENT: dict[str, str] = {}
