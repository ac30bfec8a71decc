"""Exercise 2.6: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from fractions import Fraction

from nanocourse.exercises.exercise import Right, Wrong

TOKEN = '2 * shape["n_layer"] * shape["n_embd"] * bytes_per_number'
FREE = 'memory - shape["parameters"] * bytes_per_number'
WRONG = (
    Wrong.patch(
        "keys-alone", "A token keeps one vector in each layer.", TOKEN, TOKEN.removeprefix("2 * "),
        "the name: a cache of keys, of which values are a part",
    ),
    Wrong.patch(
        "queries-too", "A token keeps its query, its key and its value.", TOKEN, TOKEN.replace("2 *", "3 *", 1),
        "c_attn gives three; the cache keeps two",
    ),
    Wrong.patch(
        "one-layer", "The cache holds a key and a value for each token.", TOKEN,
        TOKEN.replace('shape["n_layer"] * ', ""),
        "mudler/vllm.cpp#357: smaller by exactly the number of layers",
    ),
    Wrong.patch(
        "one-head", "A key has the size of a head.", TOKEN, TOKEN.replace("* bytes", '// shape["n_head"] * bytes'),
        "huggingface/blog#3417: which 32 is the layers, and which the heads?",
    ),
    Wrong.patch(
        "width-in-every-head", "Each head has a key as wide as the model.", TOKEN, TOKEN + ' * shape["n_head"]',
        "jranaraki/vllm-fit#2: a factor of the heads too many",
    ),
    Wrong.patch(
        "always-float32", "A number takes four bytes.", "* bytes_per_number  #", "* 4  #",
        "AlexsJones/llmfit#418: one type of number is assumed",
    ),
    Wrong.patch(
        "bits-for-bytes", "bfloat16 has 16 bits, so a number takes 16.", "* bytes_per_number  #",
        "* 8 * bytes_per_number  #", "jranaraki/vllm-fit#2: a factor of 8 in memory, by another way",
    ),
    Wrong.patch(
        "squares", "Attention is quadratic, so a row takes the square of its tokens.", "slots * token",
        "slots * slots * token", "scores are quadratic, and are not kept",
    ),
    Wrong.patch(
        "weights-are-the-batch", "Each row needs the weights for itself.", "free // row",
        '(memory // (row + shape["parameters"] * bytes_per_number))',
        "the weights are taken for the problem: they are there once, however many rows there are",
    ),
    Wrong.patch(
        "weights-forgotten", "All of the memory is there for the cache.", FREE, "memory",
        "free memory, asked for before the model is loaded; ollama/ollama#1800: several wrong formulas",
    ),
    Wrong.patch(
        "weights-uncounted-bytes", "The weights take as many bytes as there are parameters.", FREE,
        'memory - shape["parameters"]', "an author's own slip: numbers for bytes",
    ),
    Wrong.patch(
        "dummy-row-forgotten", "A batch of n rows is a cache of n rows.", "free // row - 1", "free // row",
        "NVIDIA/TensorRT-LLM#13278: out of slots, for want of one for padding",
    ),
    Wrong.patch(
        "fractions-of-rows", "A row that fits in part counts in part.", "free // row - 1", "free / row - 1",
        "an author's own slip: one stroke for two",
    ),
    Wrong.patch(
        "negative-rows", "A count is what the division gives.", "max(0, free // row - 1)", "free // row - 1",
        "an author's own slip, where the model alone does not fit",
    ),
    Wrong.patch(
        "slots-capped", "No row has more than 1,024 slots.",
        "row = slots * token",
        "row = min(slots, 1024) * token",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "rows-capped", "Nobody runs more than 256 rows.",
        "max(0, free // row - 1)",
        "min(256, max(0, free // row - 1))",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "among-a-million", "No device holds more than 2^20 rows.",
        "max(0, free // row - 1)", "min(2**20, max(0, free // row - 1))",
        "a reader who saw stub and text alone", unnamed="rows-capped",
    ),
    Wrong.patch(
        "no-weights-of-a-byte", "Weights take two bytes a number at least.",
        FREE, 'memory - shape["parameters"] * max(2, bytes_per_number)',
        "a reader who saw stub and text alone; it passed", unnamed="weights-uncounted-bytes",
    ),
    Wrong.patch(
        "as-floats", "Bytes may be floats.",
        '"token": token, "row": row,',
        '"token": token / 1, "row": float(row),',
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "another-entry", "One entry more does no harm.",
        '"row": row, ',
        '"row": row, "free": free, ',
        "written to pass all checks that there were, and it did", unnamed="as-floats",
    ),
)  # fmt: skip


def by_searching(shape: dict[str, int], memory: int, slots: int, bytes_per_number: int) -> dict[str, int]:
    """Rows are added until the next one does not fit."""
    token = sum(bytes_per_number for _ in range(2 * shape["n_layer"])) * shape["n_embd"]
    used, rows = shape["parameters"] * bytes_per_number + token * slots, 0
    while used + token * slots <= memory:
        used += token * slots
        rows += 1
    return {"token": token, "row": token * slots, "rows": rows}


def in_fractions(shape: dict[str, int], memory: int, slots: int, bytes_per_number: int) -> dict[str, int]:
    """Head by head, and in exact fractions of a row."""
    size = shape["n_embd"] // shape["n_head"]
    token = (size + size) * shape["n_head"] * shape["n_layer"] * bytes_per_number
    fit = Fraction(memory - shape["parameters"] * bytes_per_number, token * slots)
    whole = fit.numerator // fit.denominator
    return {"rows": whole - 1 if whole > 0 else 0, "token": token, "row": slots * token}


def in_numbers(shape: dict[str, int], memory: int, slots: int, bytes_per_number: int) -> dict[str, int]:
    """Counts numbers first, and bytes last."""
    token = shape["n_embd"] * shape["n_layer"] << 1
    room = memory // bytes_per_number - shape["parameters"]
    rows = room // (token * slots) - 1
    return {"token": token * bytes_per_number, "row": token * slots * bytes_per_number, "rows": rows if rows > 0 else 0}


RIGHT = (Right(by_searching), Right(in_fractions), Right(in_numbers))

EQUIVALENT = {
    "return {'token': token, 'row': row, 'rows': max(free // row - 1, 0)}": "max takes its arguments in either order",
}
