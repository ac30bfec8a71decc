"""A step that verifies drafts: k + 1 tokens of a row go in, and up to k + 1 come out. Chapter 7.

Position i of a text is sampled with its own noise, a function of (seed, i, id), so what a row chooses there depends on
the text before it alone. A draft is kept as long as it is what was chosen in its place: then the text that the model
read behind it was the row's own, and the tokens are those of plain decoding, sampled ones too. The idea that drafter
and model share their noise: Daliri, Musco, Suresh 2024, "Coupling without Communication and Drafter-Invariant
Speculative Decoding". Drafts and verification: Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding".
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nanoinfer.engine.logprobs import logprobs
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState, upload
from nanoinfer.engine.step import Model
from nanoinfer.model.batch import Batch, Chunk
from nanoinfer.model.gpt2 import Cache

NONE = -1  # in place of a draft, where a row has fewer than another


class Runs(NamedTuple):
    """Which logits of a batch are whose: R rows choose tokens, each one more than it has drafts.

    The logits, K in all, stand row by row.
    """

    rows: Tensor  # (R,) int64, of the batch state
    positions: Tensor  # (R,) int64, of the token after which each row's first one is chosen
    drafts: Tensor  # (R, k) int64, NONE on the right of rows that have fewer
    run: Tensor  # (K,) int64, which of the R rows each of the logits is for
    offset: Tensor  # (K,) int64, which of that row's tokens


def pack_runs(fed: Sequence[Chunk], pieces: Sequence[Chunk], device: torch.device) -> tuple[Batch, Runs]:
    """The batch of a step. fed: of rows that go on, the newest token and its drafts. pieces: of prompts."""
    ids, positions, row = array("q"), array("q"), array("q")
    starts, at, run, offset, rows, first = (array("q") for _ in range(6))
    k = max(len(chunk.token_ids) for chunk in fed) - 1
    drafts = array("q")
    for number, chunk in enumerate([*fed, *pieces]):
        count = len(chunk.token_ids)
        starts.append(len(ids))
        ids.extend(chunk.token_ids)
        positions.extend(range(chunk.start, chunk.start + count))
        row.extend([chunk.row] * count)
        own = count if number < len(fed) else int(chunk.complete)
        at.extend(range(len(ids) - own, len(ids)))
        offset.extend(range(own))
        run.extend([len(rows)] * own)
        if own:
            drafts.extend([*chunk.token_ids[count - own + 1 :], *[NONE] * (k + 1 - own)])
            rows.append(chunk.row)
            first.append(chunk.start + count - own)
    starts.append(len(ids))
    parts = [ids, positions, row, starts, at, run, offset, rows, first, drafts]
    sizes = [len(part) for part in parts]
    packed = upload(torch.frombuffer(sum(parts, array("q")), dtype=torch.int64), torch.int64, device)
    token_ids, at_positions, of_row, begins, logits_at, of_run, offsets, to_row, after, guesses = torch.split(
        packed, sizes
    )
    most = max(len(chunk.token_ids) for chunk in [*fed, *pieces])
    batch = Batch(
        token_ids, at_positions, of_row, max(positions) + 1, most, starts=begins, logits_at=logits_at,
        logits_row=to_row[of_run],
    )  # fmt: skip
    return batch, Runs(to_row, after, guesses.view(len(rows), k), of_run, offsets)


@torch.inference_mode()
def verify_step(
    model: Model, cache: Cache, state: BatchState, batch: Batch, runs: Runs, sampler: Sampler | PenaltySampler
) -> tuple[Tensor, Tensor | None]:
    """Run the batch; each row of `runs` goes on by the drafts that it would have chosen, and one token more.

    Returns (R, k + 2): a row's tokens, and how many of them are its own. And logprobs (K, width), if sampler has them.
    """
    assert batch.logits_row is not None
    state.row.index_copy_(0, runs.rows, runs.rows)  # as in `prefill_step`
    rows = state.at(batch.logits_row)  # (K,) copies
    rows.step.add_(runs.offset)
    logits = model(batch, cache)  # (K, V)
    scoring: Any = sampler if isinstance(sampler, PenaltySampler) else None
    tokens = choose_scored(scoring, logits.float(), rows, runs) if scoring else sampler(logits, rows)  # (K,)
    (R, k), device = runs.drafts.shape, tokens.device
    chosen = torch.full((R, k + 1), NONE, device=device)
    chosen[runs.run, runs.offset] = tokens
    # Behind its drafts a row has one token more, which is not NONE: there its run of equals ends.
    accepted = (chosen[:, :k] == runs.drafts).cumprod(1).sum(1)  # (R,)
    newest = chosen.gather(1, accepted[:, None])[:, 0]
    counts = accepted + 1
    columns = newest, runs.positions + counts, state.step[runs.rows] + counts, torch.ones_like(newest)
    state.integers[:4].index_copy_(1, runs.rows, torch.stack(columns))
    if scoring:
        kept = (runs.offset < counts[runs.run]).int()
        scoring.counts.index_put_((batch.logits_row, tokens), kept, accumulate=True)
    return torch.cat([chosen, counts[:, None]], 1), logprobs(logits, tokens) if scoring else None


@torch.inference_mode()
def verify_rows(
    model: Model, cache: Cache, state: BatchState, drafts: Tensor, longest: int, sampler: Sampler
) -> Tensor:
    """As `verify_step`, of rows 0..B-1 alone and with drafts (B, k) as the only input: so it can be captured.

    Nothing else comes from the host but `longest`, as for `decode_step`. Drafts that are NONE, on the right of a row's,
    are padding, and so are rows that are not live. Returns (B, k + 2).
    """
    (B, k), device = drafts.shape, drafts.device
    rows, offset = state.at(slice(0, B)), torch.arange(k + 1, device=device)
    live = rows.live[:, None] > 0  # (B, 1)
    real = torch.cat([live, live & (drafts != NONE)], 1)  # (B, k + 1)
    positions = torch.where(real, rows.position[:, None] + offset, 0)
    row = torch.where(real, rows.row[:, None], state.dummy)
    token_ids = torch.cat([rows.token[:, None], drafts.clamp(min=0)], 1)
    # So few tokens that each may read its row's pages for itself, in splits: as a decode step of as many rows would.
    few = B * (k + 1) <= getattr(cache, "one_by_one", 0)
    starts = None if few else torch.arange(B + 1, device=device) * (k + 1)
    batch = Batch(token_ids.flatten(), positions.flatten(), row.flatten(), longest, k + 1, starts=starts)
    each = state.at(torch.arange(B * (k + 1), device=device) // (k + 1))  # copies
    each.step.add_(offset.repeat(B))
    chosen = sampler(model(batch, cache), each).view(B, k + 1)
    accepted = (chosen[:, :k] == drafts).cumprod(1).sum(1)  # (B,)
    newest, counts = chosen.gather(1, accepted[:, None])[:, 0], (accepted + 1) * rows.live
    torch.mul(newest, rows.live, out=rows.token)
    rows.integers[1:3].add_(counts)  # position and step
    return torch.cat([chosen, counts[:, None]], 1)


def choose_scored(scoring: PenaltySampler, logits: Tensor, rows: BatchState, runs: Runs) -> Tensor:
    """Next tokens (K,) under penalties: what was generated is the row's own tokens and the drafts ahead of each."""
    counts = scoring.counts[rows.row]  # (K, V)
    ahead = torch.arange(runs.drafts.shape[1], device=counts.device) < runs.offset[:, None]  # (K, k)
    counts.scatter_add_(1, runs.drafts[runs.run].clamp(min=0), ahead.int())
    return scoring.choose(logits, rows, counts)
