"""Exercise 7.4: the batch of a step that verifies: positions, cells, and what each token reads."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanoinfer.engine.state import BatchState
from nanoinfer.model.batch import Batch
from nanoinfer.speculate import verify
from nanoinfer.speculate.drafts import NONE


def verify_batch(
    rows: list[dict[str, int]], drafts: list[list[int]], max_len: int
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """The tokens of a step, the position of each, the cell it is written to, how many cells it reads, and starts.

    rows: those that go on, at least one, each with "slot", its line of the cache; "length", how many tokens its text
    has, prompt and new ones; "newest", the last of these, which is the only one that no step has had yet; "left", how
    many more tokens it may get, at least 1; "filled", how many cells of its line have ever been written, from the first
    on: with drafts that were rejected these are more than the length less 1, and the rest is worth nothing.
    drafts: of each row its guesses, which may be none. A row brings its newest token and then its drafts: as many of
    the first ones as leave room for the token that is chosen after them. With that one the row must not get more than
    "left" tokens, nor its text be longer than `max_len`; it is shorter than that now.
    Positions count a text's tokens from 0 on. Line s of the cache has the cells s * max_len up to (s + 1) * max_len - 1
    and a token at position p of its text is written to the cell p of its row's line. It reads the cells of its line
    that hold tokens up to its own position: the fourth result is how many these are. starts: where each row's tokens
    begin among all tokens of the step, and at the end how many tokens there are.
    """
    tokens: list[int] = []
    positions: list[int] = []
    cells: list[int] = []
    starts = [0]
    for row, own in zip(rows, drafts, strict=True):
        room = min(row["left"], max_len - row["length"])
        brought = [row["newest"], *own[: room - 1]]
        tokens += brought
        for position in range(row["length"] - 1, row["length"] - 1 + len(brought)):
            positions.append(position)
            cells.append(row["slot"] * max_len + position)
        starts.append(len(tokens))
    return tokens, positions, cells, [position + 1 for position in positions], starts


def swap(mine: Function) -> Places:
    """A step with drafts asks it; padding makes a rectangle of what it says."""
    original = verify.lay_out

    def lay_out(state: BatchState, drafts: Tensor, places: Tensor, context: int, one_by_one: int) -> Batch:
        batch, going = original(state, drafts, places, context, one_by_one), (places[:, 0] != NONE).nonzero()[:, 0]
        own = [[token for token in drafts[row].tolist() if token != NONE] for row in going]
        given = zip(going.tolist(), places[going, 0].tolist(), own, strict=True)
        rows = [_row(slot, place + 1, int(state.token[slot]), 1 + len(brought)) for slot, place, brought in given]
        max_len = max(row["length"] + row["left"] for row in rows)
        tokens, positions, cells, reads, starts = mine(rows, own, max_len)
        column = torch.cat([torch.arange(end - begin) for begin, end in pairwise(starts)])
        at = going.repeat_interleave(torch.tensor(starts).diff()) * places.shape[1] + column
        fed = [tokens, positions, [cell // max_len for cell in cells]]
        numbers = torch.stack([batch.token_ids, batch.positions, batch.row])  # (3, N)
        numbers[:, at] = torch.tensor(fed)
        return replace(batch, token_ids=numbers[0], positions=numbers[1], row=numbers[2], past=max(reads) - 1)

    return {"nanoinfer.speculate.verify:lay_out": lay_out}


def _row(slot: int, length: int, newest: int, left: int, rejected: int = 0) -> dict[str, int]:
    return {"slot": slot, "length": length, "newest": newest, "left": left, "filled": length - 1 + rejected}


EXERCISE = Spec(
    reference=verify_batch,
    lines=14,
    example=lambda: call([_row(2, 5, 11, 9, 2), _row(0, 7, 12, 3)], [[21, 22], [23, 24, 25]], 10),
    swap=swap,
    section="What a rejected token leaves behind",
    axes=(("tokens", "place"), ("positions", "place"), ("cells", "place"), ("reads", "place"), ("starts", "row")),
    typed=True,
    refuse=("nanoinfer.speculate.verify:lay_out",),
)


def _drafts(case: Case, row: int, count: int) -> list[int]:
    return case.ints(f"drafts {row}", 1, 999, count).tolist()


def _rows(case: Case, count: int, rejected: bool = False) -> list[dict[str, int]]:
    slots = case.permutation("slots", count + 2).tolist()
    return [
        _row(slots[at], case.choice(f"length {at}", range(2, 30)), case.choice(f"newest {at}", range(1, 999)), 90,
             case.choice(f"rejected {at}", range(1, 4)) if rejected else 0) for at in range(count)
    ]  # fmt: skip


def behind_what_was_kept(case: Case) -> Call:
    """A row goes on after its text, whatever rejected guesses have left behind: positions, cells and what is read."""
    rows = _rows(case, case.size("rows", 1, 3), rejected=True)
    return call(rows, [_drafts(case, at, 2) for at in range(len(rows))], 60)


def ragged(case: Case) -> Call:
    """Each row brings its own number of drafts, none as well, and its tokens stand side by side."""
    counts = case.sample("counts", range(5), case.size("rows", 2, 4))
    return call(_rows(case, len(counts)), [_drafts(case, at, count) for at, count in enumerate(counts)], 50)


def room_for_one_more(case: Case) -> Call:
    """Drafts are cut so that the token after them still fits: into what the row may get, and into the context."""
    max_len, wish = case.size("context", 12, 20), case.size("drafts", 2, 5)
    left = case.turn((90, wish, wish + 1, 1, 90, 2, 90))
    length = max_len - case.turn((wish + 1, wish, wish + 2, 3, 1, wish, wish + 2))
    rows = [_row(1, length, case.choice("newest", range(1, 999)), left)]
    return call(rows, [_drafts(case, 0, wish)], max_len)


KINDS = ("one", "none", "some", "some", "ends", "zeros", "equal", "some", "long", "large", "many", "many")


def any_rows(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """One row of one token, many rows, long runs, no draft at all, rows at the context's end, large caches."""
    kind = case.turn(KINDS)
    if kind == "one":
        return call([_row(0, 1, 7, 1)], [[5]], 2)
    if kind == "none":
        return call(_rows(case, 4, rejected=True), [[]] * 4, 40)
    if kind == "ends":
        return call([_row(3, 19, 5, 9), _row(1, 18, 6, 9, 1), _row(0, 17, 7, 2), _row(2, 1, 8, 9)],
                    [_drafts(case, at, 4) for at in range(4)], 20)  # fmt: skip
    if kind == "large":
        rows = [_row(50_000, 60_000, 90_000, 70_000), _row(70_000, 30_000, 2**33, 4, 3)]
        return call(rows, [_drafts(case, 0, 3), [2**40, 5, 6, 7]], 131_072)
    if kind == "equal":
        row = _rows(case, 1)[0]
        return call([row, row | {"slot": row["slot"] + 1}, row | {"slot": row["slot"] + 2}],
                    [_drafts(case, 0, 3)] * 3, 33)  # fmt: skip
    if kind == "long":
        return call(_rows(case, 2, rejected=True), [_drafts(case, 0, 100), _drafts(case, 1, 3)], 300)
    if kind == "zeros":
        return call([_row(1, 3, 0, 9)], [[0, 0]], 12)
    rows = _rows(case, 90 if kind == "many" else 4, rejected=case.choice("stale", (True, True, False)))
    counts = [case.choice(f"count {at}", range(5)) for at in range(len(rows))] if kind == "many" else [0, 3, 1, 0]
    rows = [row | {"left": case.choice(f"left {at}", (1, 2, 3, 9, 9))} for at, row in enumerate(rows)]
    if case.turn((False, True, False)):
        rows = [dict(reversed(list(row.items()))) for row in rows]
    return call(rows, [_drafts(case, at, count) for at, count in enumerate(counts)], 31)


CHECKS = (
    Check(any_rows, len(KINDS), wide=True), Check(behind_what_was_kept, 3), Check(ragged, 3),
    Check(room_for_one_more, 7),
)  # fmt: skip
