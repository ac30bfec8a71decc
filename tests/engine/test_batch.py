"""What a step is given: chunks in one array, and back, against lists of lists.

Rectangles, and batches that are written into a recording's buffer, are proven by tokens in test_rungs.py.
"""

from __future__ import annotations

from array import array
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.model.batch import NEWEST, Batch, Chunk, Layout, pack, unpack

DUMMY = 9


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[Chunk]]:
    """Rows that go on, in any order, and at least one chunk of another row."""
    slots = draw(st.permutations(range(DUMMY)))[: draw(st.integers(1, 5))]
    going = draw(st.integers(0, len(slots) - 1))
    ids, start = st.lists(st.integers(0, 300), min_size=1, max_size=7), st.integers(0, 20)
    chunks = [Chunk(slot, draw(start), array("q", draw(ids)), draw(st.booleans())) for slot in slots[going:]]
    return slots[:going], chunks


Token = tuple[int, int, int]  # id, position, row
PADDING: Token = (0, 0, DUMMY)


def tokens_of(chunk: Chunk) -> list[Token]:
    return [(token_id, chunk.start + at, chunk.row) for at, token_id in enumerate(chunk.token_ids)]


def rows_of(going: list[int], chunks: list[Chunk]) -> list[list[Token]]:
    """A row that goes on brings a token of which the device knows all but the row."""
    return [[(NEWEST, 0, slot)] for slot in going] + [tokens_of(chunk) for chunk in chunks]


def check(batch: Batch, rows: list[list[Token]], going: list[int], chunks: list[Chunk], layout: Layout) -> None:
    """The batch is these rows of tokens, end to end, with logits after each that goes on and each complete chunk."""
    assert batch.starts is not None
    assert batch.logits_at is not None
    assert batch.logits_row is not None
    flat = [token for row in rows for token in row]
    assert list(zip(batch.token_ids.tolist(), batch.positions.tolist(), batch.row.tolist(), strict=True)) == flat
    assert batch.starts.tolist() == [sum(map(len, rows[:b])) for b in range(len(rows) + 1)]
    slots = [*going, *[chunk.row for chunk in chunks]]
    counts = [1] * len(going) + [len(chunk.token_ids) for chunk in chunks]
    complete = [b for b in range(len(slots)) if b < len(going) or chunks[b - len(going)].complete]
    at = [sum(map(len, rows[:b])) + counts[b] - 1 for b in complete]
    unused = layout.logits - len(complete)
    assert batch.logits_at.tolist() == at + [0] * unused
    assert batch.logits_row.tolist() == [slots[b] for b in complete] + [DUMMY] * unused
    assert batch.rows == len(rows)
    assert (batch.max_new, batch.max_context, batch.no_context) == layout[3:]
    assert all(t.dtype == torch.int64 for f in fields(batch) if torch.is_tensor(t := getattr(batch, f.name)))


@settings(deadline=None, derandomize=True)
@given(steps(), st.integers(1, 40))
def test_as_many_as_there_are(step: tuple[list[int], list[Chunk]], longest: int) -> None:
    """A step that nobody captures has no padding, and its sizes are those of rows and chunks."""
    going, chunks = step
    layout, rows = Layout.of(going, chunks, longest), rows_of(going, chunks)
    check(unpack(pack(going, chunks, layout, DUMMY), layout), rows, going, chunks, layout)
    of_chunks = 1 + max(position for row in rows for _, position, _ in row)
    max_context = max(longest, of_chunks) if going else of_chunks
    no_context = not going and all(chunk.start == 0 for chunk in chunks)
    logits = len(going) + sum(chunk.complete for chunk in chunks)
    assert layout == (len(rows), sum(map(len, rows)), logits, max(map(len, rows)), max_context, no_context)


@settings(deadline=None, derandomize=True)
@given(steps(), st.integers(0, 3), st.integers(0, 30))
def test_end_to_end_and_a_row_of_padding(step: tuple[list[int], list[Chunk]], more_rows: int, padding: int) -> None:
    """Rows without tokens, and all padding in the last row, even where there is none: captured, of the paged cache."""
    going, chunks = step
    rows = rows_of(going, chunks)
    B, N = len(rows) + more_rows, sum(map(len, rows)) + padding
    layout = Layout(B + 1, N, B, N, 100)
    rows += [[]] * more_rows + [[PADDING] * padding]
    check(unpack(pack(going, chunks, layout, DUMMY), layout), rows, going, chunks, layout)


def test_no_tensor_is_made_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 prompts of up to 1,000 tokens that took the host 106 ms: numbers go into arrays, and these are tensors."""
    prompts = [tuple(range(length)) for length in (1000, 1, 40, 999) * 64]
    chunks = [Chunk(slot, 0, prompt) for slot, prompt in enumerate(prompts)]
    layout = Layout(257, 2**18, 256, 2**18, 1000)
    for name in ("tensor", "as_tensor", "asarray", "stack", "cat", "full"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("a tensor of a list"))
    unpack(pack([], chunks, layout, 256), layout)
