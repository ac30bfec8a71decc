"""Exercise 7.4: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from itertools import accumulate, chain

from nanocourse.exercises.exercise import edition

Answer = tuple[list[int], list[int], list[int], list[int], list[int]]
Rows = list[dict[str, int]]


def by_offsets(rows: Rows, drafts: list[list[int]], max_len: int) -> Answer:
    """How many each row brings first; then everything by row and offset."""
    counts = [
        1 + min(len(own), row["left"] - 1, max_len - 1 - row["length"]) for row, own in zip(rows, drafts, strict=True)
    ]
    pairs = [(at, offset) for at, count in enumerate(counts) for offset in range(count)]
    tokens = [drafts[at][offset - 1] if offset else rows[at]["newest"] for at, offset in pairs]
    reads = [rows[at]["length"] + offset for at, offset in pairs]
    cells = [rows[at]["slot"] * max_len + read - 1 for (at, _), read in zip(pairs, reads, strict=True)]
    return tokens, [read - 1 for read in reads], cells, reads, list(accumulate(counts, initial=0))


def row_after_row(rows: Rows, drafts: list[list[int]], max_len: int) -> Answer:
    """A small table for each row, put one after the other."""

    def table(row: dict[str, int], own: list[int]) -> list[tuple[int, int, int, int]]:
        lines, position, begin = [], row["length"] - 1, row["slot"] * max_len
        for token in [row["newest"], *own]:
            if len(lines) == row["left"] or position + 2 > max_len:
                break
            lines.append((token, position, begin + position, position + 1))
            position += 1
        return lines

    tables = [table(*pair) for pair in zip(rows, drafts, strict=True)]
    whole = list(chain.from_iterable(tables))
    starts = [sum(map(len, tables[:at])) for at in range(len(tables) + 1)]
    return (
        [line[0] for line in whole], [line[1] for line in whole], [line[2] for line in whole],
        [line[3] for line in whole], starts,
    )  # fmt: skip


NAMES = ("slot", "length", "newest", "left", "filled")


def _one_by_one(result: Answer, *_: object) -> list[dict[str, int]]:
    """starts are left out, but a row that lacks its end shows."""
    tokens, positions, cells, reads, starts = result
    lines = zip(tokens, positions, cells, reads, strict=True)
    told = [dict(zip(("token", "position", "cell", "reads"), line, strict=True)) for line in lines]
    return told[: starts[-1]]


@edition(
    "by-token",
    "what is known of rows is in columns, and the answer is a dict for each token",
    args=lambda rows, *rest: ({name: [row[name] for row in rows] for name in NAMES}, *rest),
    back=lambda state, *rest: (
        [dict(zip(NAMES, row, strict=True)) for row in zip(*(state[name] for name in NAMES), strict=True)],
        *rest,
    ),
    result=_one_by_one,
    axes=("token",),
)
def by_token(state: dict[str, list[int]], drafts: list[list[int]], max_len: int) -> list[dict[str, int]]:
    """The tokens of a step, row after row: each with its "token", "position", "cell", and how many cells it "reads".

    state: one number for each row that goes on, at least one row. "slot": its line of the cache; "length": how many
    tokens its text has, prompt and new ones; "newest": the last of these, which is the only one that no step has had
    yet; "left": how many more tokens it may get, at least 1; "filled": how many cells of its line have ever been
    written, from the first on: with drafts that were rejected these are more than the length less 1, and the rest is
    worth nothing.
    drafts: of each row its guesses, which may be none. A row brings its newest token and then its drafts: as many of
    the first ones as leave room for the token that is chosen after them. With that one the row must not get more than
    "left" tokens, nor its text be longer than `max_len`; it is shorter than that now.
    Positions count a text's tokens from 0 on. Line s of the cache has the cells s * max_len up to (s + 1) * max_len - 1
    and a token at position p of its text is written to the cell p of its row's line. It reads the cells of its line
    that hold tokens up to its own position.
    """
    told = []
    for at, own in enumerate(drafts):
        position = state["length"][at] - 1
        room = min(state["left"][at], max_len - state["length"][at])
        for token in [state["newest"][at], *own][:room]:
            cell = state["slot"][at] * max_len + position
            told.append({"token": token, "position": position, "cell": cell, "reads": position + 1})
            position += 1
    return told
