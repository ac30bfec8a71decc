"""Exercise 7.4: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from itertools import accumulate, chain

from nanocourse.exercises.exercise import Edition, Right, Wrong

Answer = tuple[list[int], list[int], list[int], list[int], list[int]]
Rows = list[dict[str, int]]

ROOM = 'min(row["left"], max_len - row["length"])'
BROUGHT = '[row["newest"], *own[: room - 1]]'
POSITIONS = 'range(row["length"] - 1, row["length"] - 1 + len(brought))'
CELL = 'row["slot"] * max_len + position'
READS = "[position + 1 for position in positions]"
EACH_ROW = "for row, own in zip(rows, drafts, strict=True):"
EACH = "for at in range(len(rows)) for n in range(starts[at], starts[at + 1])"
WRONG = (
    Wrong.patch(
        "positions-of-rejected", "A row goes on where the last step ended.", POSITIONS,
        'range(row["filled"], row["filled"] + len(brought))',
        "huggingface/transformers#30068: positions that went on by one where several tokens were accepted",
    ),
    Wrong.patch(
        "cells-of-rejected", "A new cell is written for each token that goes through the model.", CELL,
        'row["slot"] * max_len + position + row["filled"] - row["length"] + 1',
        "ml-explore/mlx-lm#1109: a roll-back that did nothing, so that rejected drafts stayed where they were",
    ),
    Wrong.patch(
        "reads-the-rejected", "A token reads what has been written to its row's line.", READS,
        f"[max(positions[n] + 1, rows[at]['filled']) {EACH}]",
        "ml-explore/mlx-swift-lm#424: keys and values of rejected tokens stayed, and were read",
    ),
    Wrong.patch(
        "reads-all-drafts", "Each token of a row reads all that the row has after this step.", READS,
        f"[positions[starts[at + 1] - 1] + 1 {EACH}]",
        "an author's own slip: no mask within the run, so that a place knows the drafts that it should check",
    ),
    Wrong.patch(
        "reads-before-itself", "A token reads what stands before it.", READS, "positions",
        "an author's own slip: a token attends to itself as well",
    ),
    Wrong.patch(
        "one-position-late", "The newest token stands after the text.", POSITIONS,
        'range(row["length"], row["length"] + len(brought))',
        "sgl-project/sglang#25015: 8, 9 in place of 7, 8; in a draft model the text stays right, here it does not",
    ),
    Wrong.patch(
        "one-position-for-all", "What a row brings to a step stands where the row is.", POSITIONS,
        '[row["length"] - 1] * len(brought)',
        "an author's own slip: decode steps of one token, in which each row has one position",
    ),
    Wrong.patch(
        "newest-left-out", "A step verifies drafts, so drafts are what it is fed.", BROUGHT, "own[: room - 1]",
        "meta-pytorch/gpt-fast#107, a question: k + 1 tokens go in, since the first draft needs logits, too",
    ),
    Wrong.patch(
        "context-uncut", "What a row may get is what it asked for.", ROOM, 'row["left"]',
        "vllm-project/vllm#42533: drafts past the longest text",
    ),
    Wrong.patch(
        "limit-uncut", "Drafts fit if the context has room.", ROOM, 'max_len - row["length"]',
        "an author's own slip: the limit is looked at when the tokens come, and the work was for nothing",
    ),
    Wrong.patch(
        "no-room-behind", "As many drafts as tokens are left.", "own[: room - 1]", "own[:room]",
        "vllm-project/vllm#43049 caps so, and leaves the token after the drafts to somebody else",
    ),
    Wrong.patch(
        "context-one-less", "The last position of the context is never fed.", ROOM,
        'min(row["left"], max(1, max_len - row["length"] - 1))',
        "an author's own slip: off by one at the context's end",
    ),
    Wrong.patch(
        "all-or-nothing", "Where not all drafts fit, the row brings none.", "own[: room - 1]",
        "(own if len(own) < room else [])", "drafts of a fixed length, as a step of a fixed shape likes them",
    ),
    Wrong.patch(
        "as-few-as-any", "A step has one number of drafts: that of the row with the fewest.", "own[: room - 1]",
        "own[: min([room - 1, *map(len, drafts)])]",
        "batches that must be rectangles; ragged runs are what the packed batch is for",
    ),
    Wrong.patch(
        "padded", "All rows bring as many tokens as the longest one.", f"    {EACH_ROW}\n",
        f"    {EACH_ROW}\n"
        "        own = own + [0] * (max(map(len, drafts)) - len(own))\n",
        "captured steps are padded so, in rows of nobody; here padding would write into live rows",
    ),
    Wrong.patch(
        "cells-by-place", "Rows of the batch are the lines of the cache.", CELL,
        "(len(starts) - 1) * max_len + position",
        "an author's own slip: rows have left and come, and the n-th one of the step is not in line n",
    ),
    Wrong.patch(
        "cells-without-line", "A cell is a position.", CELL, "position",
        "an author's own slip: right for one row in the first line",
    ),
    Wrong.patch(
        "starts-without-end", "Starts are where rows start.", "[position + 1 for position in positions], starts",
        "[position + 1 for position in positions], starts[:-1]",
        "an author's own slip: R numbers where R + 1 are asked for; nobody knows where the last row ends",
    ),
)  # fmt: skip


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


def with_texts(rows: Rows, drafts: list[list[int]], max_len: int) -> Answer:
    """Each row's line of the cache as a list, of which the cells that hold the text are a slice."""
    told: Answer = ([], [], [], [], [0])
    for number, row in enumerate(rows):
        begin = row["slot"] * max_len
        last = min(row["length"] - 1 + row["left"], max_len - 1, row["length"] + len(drafts[number]))
        mine = range(begin + row["length"] - 1, begin + last)
        told[0].extend([row["newest"], *drafts[number]][: len(mine)])
        told[1].extend(cell - begin for cell in mine)
        told[2].extend(mine)
        told[3].extend(cell + 1 - begin for cell in mine)
        told[4].append(told[4][-1] + len(mine))
    return told


RIGHT = (Right(by_offsets), Right(row_after_row), Right(with_texts))
EQUIVALENT = {
    "room = min(max_len - row['length'], row['left'])": "the smaller of two, in any order",
    "for row, own in zip(rows, drafts, strict=False):": "each row has its drafts, if none",
}


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


NAMES = ("slot", "length", "newest", "left", "filled")


def _one_by_one(result: Answer, *_: object) -> list[dict[str, int]]:
    """starts are left out, but a row that lacks its end shows."""
    tokens, positions, cells, reads, starts = result
    lines = zip(tokens, positions, cells, reads, strict=True)
    told = [dict(zip(("token", "position", "cell", "reads"), line, strict=True)) for line in lines]
    return told[: starts[-1]]


EDITIONS = (
    Edition(
        "by-token", "what is known of rows is in columns, and the answer is a dict for each token", by_token,
        args=lambda rows, *rest: ({name: [row[name] for row in rows] for name in NAMES}, *rest),
        back=lambda state, *rest: (
            [dict(zip(NAMES, row, strict=True)) for row in zip(*(state[name] for name in NAMES), strict=True)], *rest
        ),
        result=_one_by_one, axes=("token",),
    ),
)  # fmt: skip
