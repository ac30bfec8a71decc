"""Exercise 5.8: correct variants, mutants that are none."""

from __future__ import annotations

from itertools import accumulate

Step = dict[str, list[int]]


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
