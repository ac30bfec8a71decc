"""Exercise 5.8: wrong answers and where they come from, correct variants, mutants that are none."""

from __future__ import annotations

from itertools import accumulate, chain

from nanocourse.exercises.exercise import Right, Wrong

Step = dict[str, list[int]]


def in_turns(texts: list[list[int]], fed: list[int], chunk: int, budget: int) -> Step:
    """The budget is fair if each row gets one token after the other, in turns."""
    counts = [0] * len(texts)
    left = budget
    while left and any(n < min(len(t) - s, chunk) for n, t, s in zip(counts, texts, fed, strict=True)):
        for row, (text, start) in enumerate(zip(texts, fed, strict=True)):
            if left and counts[row] < min(len(text) - start, chunk):
                counts[row] += 1
                left -= 1
    step: Step = {"token_ids": [], "positions": [], "rows": [], "starts": [0], "logits_at": []}
    for row, (text, start, count) in enumerate(zip(texts, fed, counts, strict=True)):
        if count:
            step["token_ids"] += text[start : start + count]
            step["positions"] += range(start, start + count)
            step["rows"] += [row] * count
            step["starts"] += [len(step["rows"])]
            step["logits_at"] += [len(step["rows"]) - 1] * (start + count == len(text))
    return step


def all_rows_to_the_end(texts: list[list[int]], fed: list[int], chunk: int, budget: int) -> Step:
    """Every row is in every step, as wide as the widest, with padding where its part has ended."""
    counts = []
    for text, start in zip(texts, fed, strict=True):
        counts.append(min(len(text) - start, chunk, budget - sum(counts)))
    wide = max(counts)
    parts = [text[start : start + count] for text, start, count in zip(texts, fed, counts, strict=True)]
    return {
        "token_ids": list(chain.from_iterable(part + [0] * (wide - len(part)) for part in parts)),
        "positions": list(chain.from_iterable(range(start, start + wide) for start in fed)),
        "rows": [row for row in range(len(texts)) for _ in range(wide)],
        "starts": list(range(0, len(texts) * wide + 1, wide)),
        "logits_at": [
            row * wide + count - 1 for row, count in enumerate(counts) if fed[row] + count == len(texts[row])
        ],
    }


def longest_first(texts: list[list[int]], fed: list[int], chunk: int, budget: int) -> Step:
    """Rows are served in the order of what they have left, so that the step is well filled."""
    step: Step = {"token_ids": [], "positions": [], "rows": [], "starts": [0], "logits_at": []}
    for row in sorted(range(len(texts)), key=lambda row: fed[row] - len(texts[row])):
        text, start, begin = texts[row], fed[row], step["starts"][-1]
        count = min(len(text) - start, chunk, budget - begin)
        if count:
            step["token_ids"] += text[start : start + count]
            step["positions"] += range(start, start + count)
            step["rows"] += [row] * count
            step["starts"] += [begin + count]
            step["logits_at"] += [begin + count - 1] * (start + count == len(text))
    return step


COUNT = "min(len(text) - start, chunk, budget - begin)"
IDS = "text[start : start + count]"
POSITIONS = "range(start, start + count)"
ROWS = "[row] * count"
DONE = "if start + count == len(text):"
AT = "[begin + count - 1]"
STOP = "if count == 0:  # nothing is left of the budget\n            break"
END = "logits_at}"
ENDED = "    return {"
WRONG = (
    Wrong.patch(
        "chunk-by-itself", "A chunk is a text of its own, and begins at position 0.", POSITIONS, "range(count)",
        "huggingface/transformers#43082, huggingface/candle#3743",
    ),
    Wrong.patch(
        "places-in-the-step", "A token's position is its place in the step.", POSITIONS, "range(begin, begin + count)",
        "rasbt/reasoning-from-scratch#33: one count of positions for all rows",
    ),
    Wrong.patch(
        "padded-column", "The logits that count are the step's last ones.", END,
        "[len(ids) - 1 for _ in logits_at]}",
        "huggingface/transformers#3167; mlx-node/mlx-node#47: logits cut at the wrong place",
    ),
    Wrong.patch(
        "first-chunks-logits", "A row's first token is chosen after its first chunk.", DONE, "if start == 0:",
        "vllm-project/vllm#4139: tokens are sampled from unfinished prompts",
    ),
    Wrong.patch(
        "every-chunks-logits", "A token follows whatever is read.", DONE, "if count:",
        "vllm-project/vllm#4139 in its general form: every unfinished prompt is sampled from",
    ),
    Wrong.patch(
        "short-piece-is-the-last", "A piece shorter than the chunk is a text's last one, and no other is.", DONE,
        "if count < chunk:", "an author's own slip: a whole last chunk, and a piece that the budget cut",
    ),
    Wrong.patch(
        "logits-by-row", "The last token's place is counted within its row.", AT, "[count - 1]",
        "tenstorrent/tt-xla#5830: count - 1 is taken for the place of a row's last token",
    ),
    Wrong.patch(
        "logits-behind-the-last", "The new token comes behind the last, so its logits do.", AT, "[begin + count]",
        "pytorch/executorch#2689: which token is number 128?",
    ),
    Wrong(all_rows_to_the_end, "huggingface/transformers#3021 and all who pad: a rectangle, most of it empty"),
    Wrong.patch(
        "row-after-row", "Texts of different lengths cannot share a step.", ENDED,
        "    n = starts[1]\n    ids, positions, rows, starts = ids[:n], positions[:n], rows[:n], [0, n]\n"
        "    logits_at = [n - 1] * (fed[0] + n == len(texts[0]))\n    return {",
        "right tokens, and the batch is lost: as many steps as all prompts have chunks together",
    ),
    Wrong.patch(
        "rows-renumbered", "The row's number is that of the first token it brings.", ROWS, "[begin] * count",
        "tenstorrent/tt-metal#52808: slots against the order in the chunk",
    ),
    Wrong.patch(
        "rows-once", "Each row is named once.", ROWS, "[row]",
        "an author's own slip: rows of the step for rows of its tokens",
    ),
    Wrong.patch(
        "rest-dropped", "A text is a number of whole chunks.", COUNT,
        "min((len(text) - start) // chunk * chunk, budget - begin, chunk)",
        "an author's own slip: the division that rounds down",
    ),
    Wrong.patch(
        "whole-or-not-at-all", "What does not fit into the step waits for the next one.", STOP,
        "if count < min(len(text) - start, chunk):\n            break",
        "an author's own slip: steps stay half empty, and a text longer than the budget waits for ever",
    ),
    Wrong.patch(
        "one-token-again", "A piece begins with the last token of the one before.", IDS,
        "text[max(0, start - 1) : start + count - (start > 0)]",
        "skyzh/tiny-llm#46: an offset that does not fit its tokens",
    ),
    Wrong.patch(
        "fed-forgotten", "A text's next tokens are its first ones.", IDS, "text[:count]",
        "sgl-project/sglang#36855: a prompt that begins again in every step",
    ),
    Wrong.patch(
        "one-pass", "Chunks change nothing in the result, so they are left out.", COUNT,
        "min(len(text) - start, budget - begin)",
        "true of the result; everybody else waits for a whole prompt all the same",
    ),
    Wrong.patch(
        "one-token-a-step", "After the first chunk a cached model takes one token at a time.", COUNT,
        "min(len(text) - start, 1 if start else chunk, budget - begin)",
        "huggingface/candle#3743: whole prompts and single tokens, and nothing between",
    ),
    Wrong.patch(
        "budget-for-each", "The budget is what a row may bring.", COUNT, "min(len(text) - start, chunk, budget)",
        "an author's own slip: the step grows with the number of rows",
    ),
    Wrong.patch(
        "first-row-unbounded", "The first row must go on in any case, so the budget is the others'.", COUNT,
        "min(len(text) - start, chunk, budget - begin if begin else chunk)",
        "vllm-project/vllm#49097: more scheduled in a pass than there may be",
    ),
    Wrong.patch(
        "rows-in-every-step", "A row without tokens is in the step all the same.", STOP,
        "if count < 0:\n            break", "tenstorrent/tt-xla#5830: a row of no tokens beside the others",
    ),
    Wrong.patch(
        "lengths-for-starts", "What a step must be told is how many tokens each row brings.", ENDED,
        "    starts = [b - a for a, b in zip(starts, starts[1:], strict=False)]\n    return {",
        "an author's own slip: lengths where their running total was meant",
    ),
    Wrong.patch(
        "starts-without-an-end", "A row ends where the next one begins, and the last one with the step.", ENDED,
        "    starts = starts[:-1]\n    return {",
        "an author's own slip: B numbers for B + 1, and the last row has no end",
    ),
    Wrong(in_turns, "an author's own idea of fairness: every prompt is late, and none is first"),
    Wrong(longest_first, "fartashf/vsepp#36, pytorch/pytorch#4927: sorted for packing, and never put back"),
    Wrong.patch(
        "rows-by-their-text", "A row's number is where its text stands in the list.",
        "[row] * count",
        "[texts.index(text)] * count",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "padding-has-an-id", "50256 pads, so where it stands there is no token.",
        "count = min(len(text) - start, chunk, budget - begin)",
        "text = [id for id in text if id != 50_256]\n        count = min(len(text) - start, chunk, budget - begin)",
        "a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "a-thousand-rows", "No step has more than a thousand rows.",
        "enumerate(texts):", "enumerate(texts[:1000]):",
        "calls of rows in each other, by a reader who saw stub and text alone",
    ),
    Wrong.patch(
        "places-by-the-id", "A token's position is where its id stands in the text.",
        "range(start, start + count)",
        "[text.index(id) for id in text[start : start + count]]",
        "written to pass all checks that there were, and it did",
    ),
    Wrong.patch(
        "ids-in-16-bits", "An id fits in 16 bits.",
        'ids += text[start : start + count]',
        'ids += [token % 2**16 for token in text[start : start + count]]',
        "written to pass all checks that there were, and it did", unnamed="padding-has-an-id",
    ),
    Wrong.patch(
        "tuple-of-ids", "A tuple is as good as a list.",
        '"token_ids": ids',
        '"token_ids": tuple(ids)',
        "written to pass all checks that there were, and it did", unnamed="padding-has-an-id",
    ),
)  # fmt: skip


def token_by_token(texts: list[list[int]], fed: list[int], chunk: int, budget: int) -> Step:
    """One token after the other, as long as the budget lasts."""
    ids, positions, rows, starts, at = [], [], [], [], []
    for row, text in enumerate(texts):
        for position in range(fed[row], min(fed[row] + chunk, len(text))):
            if len(ids) == budget:
                break
            if position == fed[row]:
                starts.append(len(ids))
            if position == len(text) - 1:
                at.append(len(ids))
            ids.append(text[position])
            positions.append(position)
            rows.append(row)
    return {"token_ids": ids, "positions": positions, "rows": rows, "starts": [*starts, len(ids)], "logits_at": at}


def counts_first(texts: list[list[int]], fed: list[int], chunk: int, budget: int) -> Step:
    """First how many tokens each row brings, by running totals that the budget cuts; then everything from that."""
    wanted = accumulate(min(len(text) - start, chunk) for text, start in zip(texts, fed, strict=True))
    ends = [min(end, budget) for end in wanted]
    begins = [0, *ends[:-1]]
    ends = [end for begin, end in zip(begins, ends, strict=True) if end > begin]
    pairs = [
        (row, fed[row] + at - begin) for row, (begin, end) in enumerate(zip(begins, ends, strict=False))
        for at in range(begin, end)
    ]  # fmt: skip
    return {
        "logits_at": [at for at, (row, place) in enumerate(pairs) if place + 1 == len(texts[row])],
        "starts": [0, *ends],
        "rows": [row for row, _ in pairs],
        "positions": [place for _, place in pairs],
        "token_ids": [texts[row][place] for row, place in pairs],
    }


def all_and_then_cut(texts: list[list[int]], fed: list[int], chunk: int, budget: int) -> Step:
    """Every row's piece as if there were no budget, and the whole list cut off at its end."""
    every = [
        (row, place, token) for row, text in enumerate(texts)
        for place, token in list(enumerate(text))[fed[row] :][:chunk]
    ][:budget]  # fmt: skip
    rows, positions, ids = (list(part) for part in zip(*every, strict=True))
    starts = [at for at in range(len(rows)) if at == 0 or rows[at] != rows[at - 1]]
    last = [at for at in range(len(rows)) if positions[at] == len(texts[rows[at]]) - 1]
    return {"token_ids": ids, "positions": positions, "rows": rows, "starts": [*starts, len(rows)], "logits_at": last}


RIGHT = (Right(token_by_token), Right(counts_first), Right(all_and_then_cut))

_SMALLEST = "min takes its arguments in any order"
EQUIVALENT = {
    "count = min(chunk, len(text) - start, budget - begin)": _SMALLEST,
    "count = min(len(text) - start, budget - begin, chunk)": _SMALLEST,
}
