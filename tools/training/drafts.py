"""Would an n-gram model of the training text draft well for the small model? Measured: `python -m training.drafts`.

A table says which token follows a context of three, two or one tokens most often in the training text; the longest
context that it holds decides. To be of a size that a package can carry, it keeps the contexts that are right more often
than their shorter ones would be, the most gainful first: 8 bytes each, 16 bits a token.

Acceptance is counted by the engine, whose tokens are those of plain decoding whoever drafts. Prompts are the small
model's own: an opening and what it samples behind that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from safetensors.torch import save_file

from nanoinfer import LLM, SamplingParams
from nanoinfer.speculate.drafts import Drafter
from nanoinfer.speculate.ngram import BITS, CONTEXT, TABLE, NGrams, RepeatsOrNGrams
from training.data import load

OPENING, SAMPLED = "Once upon a time", 64  # tokens behind it


def fit(tokens: np.ndarray, entries: int | None) -> list[np.ndarray]:
    """By number of context tokens, less 1, sorted: context * 65536 + the token that follows it most often.

    tokens: (N,). entries: contexts in all, at most; None keeps all that were seen twice.
    """
    stream = tokens.astype(np.int64)
    known: list[tuple[np.ndarray, np.ndarray]] = []  # of each length: contexts, and what follows them
    gains = []
    grams = stream.copy()
    for n in range(2, CONTEXT + 2):
        grams = (grams[:-1] << BITS) + stream[n - 1 :]  # at n = 4 the first token fills the highest bits
        keys, counts = np.unique(grams.view(np.uint64), return_counts=True)
        keys, counts = keys[counts > 1], counts[counts > 1]
        contexts = keys >> np.uint64(BITS)
        order = np.lexsort((-counts, contexts))  # the most frequent first, of equal ones the smallest id
        first = order[np.unique(contexts[order], return_index=True)[1]]  # of each context its most frequent one
        context, following, count = contexts[first], keys[first] & np.uint64(0xFFFF), counts[first]
        shorter = _follow(known, context & np.uint64((1 << BITS * (n - 2)) - 1), n - 2)
        instead = (context << np.uint64(BITS)) + np.maximum(shorter, 0).astype(np.uint64)
        at = np.minimum(np.searchsorted(keys, instead), len(keys) - 1)
        by_shorter = np.where((shorter >= 0) & (keys[at] == instead), counts[at], 0)
        known.append((context, following))
        gains.append(np.where(shorter == following.astype(np.int64), 0, count - by_shorter))
    least = -1 if entries is None else max(0, np.sort(np.concatenate(gains))[::-1][:entries][-1])
    return [
        (context[gain > least] << np.uint64(BITS)) + following[gain > least]
        for (context, following), gain in zip(known, gains, strict=True)
    ]


def _follow(known: Sequence[tuple[np.ndarray, np.ndarray]], contexts: np.ndarray, length: int) -> np.ndarray:
    """What the longest known end of these contexts (N,) of `length` tokens says, (N,) int64; -1 where there is none."""
    found = np.full(len(contexts), -1)
    for n in range(1, length + 1):  # longer ones overwrite
        keys, following = known[n - 1]
        wanted = contexts & np.uint64((1 << BITS * n) - 1)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = np.where(keys[at] == wanted, following[at].astype(np.int64), found)
    return found


def tensors(table: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """As `NGrams` takes them: the same bits with a sign."""
    return [torch.from_numpy(keys.view(np.int64).copy()) for keys in table]


def measured(
    drafter: Drafter | None, k: int, prompts: list[list[int]], params: list[SamplingParams]
) -> dict[str, float]:
    """Share of drafts that are accepted, and tokens a step of a row, with `k` drafts. drafter: None is lookup."""
    with LLM(engine="dense", device="cpu", speculate="lookup", draft_tokens=k, adaptive_drafts=False) as llm:
        core: Any = llm.core
        if drafter:
            core.begin_with(drafter)
        stats = llm.stats
        tokens = sum(len(completion.token_ids) - 1 for completion in llm.generate(prompts, params))
    accepted = stats.accepted_tokens
    share = accepted / max(1, stats.draft_tokens)
    return {"accepted": round(share, 4), "tokens_a_step": round(tokens / (tokens - accepted), 4)}


def main(
    train: Path,
    out: Path | None = None,
    save: bool = False,
    megabytes: float = 2.0,
    rows: int = 16,
    new_tokens: int = 192,
    drafts: tuple[int, int, int] = (1, 2, 4),
) -> None:
    """Fit to the token file TRAIN; print, and write to OUT, what each drafter's drafts are worth at each number.

    --save writes the table of MEGABYTES to the package, and measures nothing.
    """
    table = tensors(fit(load(train), int(megabytes * 1e6 / 8)))
    if save:
        save_file({f"after {n}": keys for n, keys in enumerate(table, start=1)}, TABLE)
        return
    ngrams = NGrams(table)
    drafters: dict[str, Drafter | None] = {"lookup": None, "n-grams": ngrams, "both": RepeatsOrNGrams(ngrams)}
    with LLM(engine="dense", device="cpu") as llm:
        opening = llm.tokenizer.encode(OPENING)
        sampled = [SamplingParams(temperature=0.8, max_tokens=SAMPLED, ignore_eos=True, seed=n) for n in range(rows)]
        begun = llm.generate([opening] * rows, sampled)
    prompts = [[*opening, *completion.token_ids] for completion in begun]
    found = []
    for temperature in (0.0, 0.8):
        params = [
            SamplingParams(temperature=temperature, max_tokens=new_tokens, ignore_eos=True, seed=n) for n in range(rows)
        ]
        for name, drafter in drafters.items():
            for k in drafts:
                case = {"temperature": temperature, "drafter": name, "drafts": k}
                found.append(case | measured(drafter, k, prompts, params))
                print(found[-1], flush=True)
    entries = [len(keys) for keys in table]
    print(entries, flush=True)
    result = {"rows": rows, "new_tokens": new_tokens, "entries": entries, "bytes": 8 * sum(entries), "found": found}
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
