"""A step that verifies drafts: k + 1 tokens of a row go in, and up to k + 1 come out. Chapter 7.

Position i of a text is sampled with its own noise, a function of (seed, i, id), so what a row chooses there depends on
the text before it alone. A draft is kept as long as it is what was chosen in its place: then the text that the model
read after it was the row's own, and the tokens are those of plain decoding, sampled ones too. The idea that drafter
and model share their noise: Daliri, Musco, Suresh 2024, "Coupling without Communication and Drafter-Invariant
Speculative Decoding". Drafts and verification: Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding".
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nanoinfer.engine.logprobs import logprobs
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import Sampler
from nanoinfer.engine.state import BatchState, upload
from nanoinfer.engine.step import Model
from nanoinfer.model.batch import Batch, Chunk
from nanoinfer.model.gpt2 import Cache

if TYPE_CHECKING:
    from nanoinfer.speculate.drafts import DeviceDrafter

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

    Returns (R, k + 3): a row's tokens, how many of them are its own, and how many drafts it had. And logprobs
    (K, width), if sampler has them.
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
    # After its drafts a row has one token more, which is not NONE: there its run of equals ends.
    accepted = (chosen[:, :k] == runs.drafts).cumprod(1).sum(1)  # (R,)
    newest = chosen.gather(1, accepted[:, None])[:, 0]
    counts = accepted + 1
    columns = newest, runs.positions + counts, state.step[runs.rows] + counts, torch.ones_like(newest)
    state.integers[:4].index_copy_(1, runs.rows, torch.stack(columns))
    if scoring:
        kept = (runs.offset < counts[runs.run]).int()
        scoring.counts.index_put_((batch.logits_row, tokens), kept, accumulate=True)
    lines = torch.cat([chosen, counts[:, None], (runs.drafts != NONE).sum(1, keepdim=True)], 1)
    return lines, logprobs(logits, tokens) if scoring else None


@torch.inference_mode()
def verify_rows(
    model: Model, cache: Cache, state: BatchState, work: Tensor, longest: int, sampler: Sampler,
    drafter: DeviceDrafter | None = None,
) -> Tensor:  # fmt: skip
    """As `verify_step`, of rows 0..B-1 alone and with `work` (B, 1 + k) as the only input: so it can be captured.

    work: where each row's text must end, up to which there is room; and its drafts, NONE on the right where it has
    fewer. With a drafter only which are NONE counts, and the drafts are made here. Rows that are not live, or have come
    to their end, are padding. Nothing else comes from the host but `longest`, as for `decode_step`.
    Returns (B, k + 3).
    """
    (B, columns), device = work.shape, work.device
    k, rows = columns - 1, state.at(slice(0, B))
    drafts, position = work[:, 1:], rows.position[:, None]
    if drafter:
        drafts = torch.where(drafts == NONE, NONE, drafter.propose(rows.row, rows.position, k))
    places = position + torch.arange(k + 1, device=device)  # (B, k + 1)
    real = F.pad(drafts != NONE, (1, 0), value=True) & (rows.live[:, None] > 0) & (places < work[:, :1])
    row = torch.where(real, rows.row[:, None], state.dummy)
    token_ids = torch.cat([rows.token[:, None], drafts.clamp(min=0)], 1)
    # So few tokens that each may read its row's pages for itself, in splits: as a decode step of as many rows would.
    few = B * (k + 1) <= getattr(cache, "one_by_one", 0)
    starts = None if few else torch.arange(B + 1, device=device) * (k + 1)
    positions = torch.where(real, places, 0)
    batch = Batch(token_ids.flatten(), positions.flatten(), row.flatten(), longest, k + 1, starts=starts)
    each = state.at(torch.arange(B * (k + 1), device=device) // (k + 1))  # copies
    each.step.add_((places - position).flatten())
    chosen = sampler(model(batch, cache), each).view(B, k + 1)
    going, brought = real[:, :1], real[:, 1:]
    accepted = ((chosen[:, :k] == drafts) & brought).cumprod(1).sum(1, keepdim=True)  # (B, 1)
    counts = (accepted + 1) * going
    if drafter:
        drafter.note(row, places + 1, chosen)
    rows.token.copy_(torch.where(going, chosen.gather(1, accepted), rows.token[:, None])[:, 0])
    rows.integers[1:3].add_(counts[:, 0])  # position and step
    return torch.cat([chosen, counts, brought.sum(1, keepdim=True)], 1)


def choose_scored(scoring: PenaltySampler, logits: Tensor, rows: BatchState, runs: Runs) -> Tensor:
    """Next tokens (K,) under penalties: what was generated is the row's own tokens and the drafts ahead of each."""
    counts = scoring.counts[rows.row]  # (K, V)
    ahead = torch.arange(runs.drafts.shape[1], device=counts.device) < runs.offset[:, None]  # (K, k)
    counts.scatter_add_(1, runs.drafts[runs.run].clamp(min=0), ahead.int())
    return scoring.choose(logits, rows, counts)
