"""Exercise 5.8: which tokens a step brings where prompts are read in pieces, and how they lie side by side."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch

from nanocourse.exercises import IMPORTS, Call, Case, Check, Function, Places, Spec, call
from nanoinfer.engine.engine import Work
from nanoinfer.engine.queue import ARRIVED
from nanoinfer.engine.step import Prompts
from nanoinfer.model.batch import Batch


def next_step(texts: list[list[int]], fed: list[int], chunk: int, budget: int) -> dict[str, list[int]]:
    """The next step over rows whose texts are read in pieces: their tokens side by side, and nothing between them.

    texts: token ids of each row; who is served first stands first. fed: how many of them have been in a step already,
    fewer than there are. A row brings its next tokens: as many as it has left, but at most `chunk`, and no more than
    the rows before it have left of `budget` (at least 1), which counts the tokens of the whole step.
    "token_ids", "positions", "rows": of each token its id, where it stands in its own text, and which text that is.
    "starts": where in the step the tokens of each row that brings any begin; at the end, how many tokens there are.
    "logits_at": of each text whose last token is in this step, where in the step it stands.
    """
    ids, positions, rows, starts, logits_at = [], [], [], [0], []
    for row, text in enumerate(texts):
        start, begin = fed[row], starts[-1]  # in the text, and in the step
        count = min(len(text) - start, chunk, budget - begin)
        if count == 0:  # nothing is left of the budget
            break
        ids += text[start : start + count]
        positions += range(start, start + count)
        rows += [row] * count
        starts += [begin + count]
        if start + count == len(text):
            logits_at += [begin + count - 1]
    return {"token_ids": ids, "positions": positions, "rows": rows, "starts": starts, "logits_at": logits_at}


def swap(mine: Function) -> Places:
    """QueueEngine.schedule asks it what a step of prompts brings, and Batch.of takes that as it is."""
    of: Any = Batch.of
    chosen: list[tuple[dict[str, list[int]], list[int]]] = []

    def schedule(self: Any) -> list[Work]:
        decoding, chunks = self.with_room([s for s in self.running if s.decoding]), list[Work]()
        chosen.clear()
        if not (decoding and self.decodes_next):
            while self.waiting and self.admit_next():
                pass
            if prompts := sorted((s for s in self.running if not s.decoding), key=ARRIVED):
                chunks = _asked(self, prompts)
        self.stats.prefill_steps += bool(chunks)
        self.stats.decode_steps += not chunks and bool(decoding)
        self.decodes_next = bool(chunks)
        self.fed, self.decoded = (chunks, 0) if chunks else (self.pending(decoding), len(decoding))
        return self.fed

    def _asked(self: Any, prompts: list[Any]) -> list[Work]:
        step = mine([s.tokens.copy() for s in prompts], [s.cached for s in prompts], self.chunk, self.budget)
        counts, chunks = Counter(step["rows"]), list[Work]()
        if not counts or any(prompts[at].cached + count > len(prompts[at].tokens) for at, count in counts.items()):
            raise ValueError("a step must bring tokens that its rows have left, at least one")
        for at, count in counts.items():
            self.feed(prompts[at], count, chunks)
        chosen[:] = [(step, [s.row for s in prompts])]
        return chunks

    def of_mine(cls: type[Batch], work: list[Work], device: torch.device) -> Batch:
        if not chosen:
            return of(work, device)  # type: ignore[no-any-return]
        step, slots_of = chosen[0]
        names = ("token_ids", "positions", "starts", "logits_at")
        ids, positions, starts, at = (torch.tensor(step[name], dtype=torch.int64, device=device) for name in names)
        slots = torch.tensor([slots_of[row] for row in step["rows"]], device=device)  # (N,)
        last_at = starts[1:] - 1
        last_at[torch.searchsorted(starts, at, right=True) - 1] = at
        longest, past = int(starts.diff().max()), max(start for _, start, _ in work)
        return Prompts(ids, positions, slots, starts, longest, past, last_at, slots[last_at])

    batch_of = classmethod(of_mine)
    return {"nanoinfer.engine.queue:QueueEngine.schedule": schedule, "nanoinfer.model.batch:Batch.of": batch_of}


EXERCISE = Spec(
    reference=next_step,
    lines=12,
    example=lambda: call([[11, 12, 13], [21, 22, 23]], [2, 0], 2, 4),
    imports=IMPORTS,
    section="A long prompt among short ones",
    axes=("number",),
    typed=True,
    exact=True,
    swap=swap,
    refuse=("nanoinfer.model.batch:Batch.of", "nanoinfer.engine.queue:QueueEngine.schedule"),
)


def _texts(case: Case, lengths: list[int]) -> list[list[int]]:
    return [case.ints(f"text {b}", 1, 99, length).tolist() for b, length in enumerate(lengths)]


def _middle(case: Case, rows: int, chunk: int) -> tuple[list[int], list[int]]:
    """Lengths and tokens fed of rows that have at least a chunk behind them, and some more than one chunk left."""
    fed = [case.size(f"fed {b}", 1, 6) for b in range(rows)]
    return [n + case.size(f"left {b}", 1, chunk + 2) for b, n in enumerate(fed)], fed


def next_tokens(case: Case) -> Call:
    """A row brings its text's next tokens: what it has left, but no more than `chunk`."""
    chunk, B = case.size("chunk", 2, 4), case.size("rows", 1, 3)
    lengths, fed = _middle(case, B, chunk)
    return call(_texts(case, lengths), fed, chunk, 99)


def within_the_budget(case: Case) -> Call:
    """All rows together bring at most `budget` tokens: who stands first takes what they may, the next what is left."""
    lengths = [case.size(f"length {b}", 2, 6) for b in range(4)]
    budget = sum(lengths[: case.size("whole", 0, 2)]) + case.size("more", 1, 2)
    return call(_texts(case, lengths), [0] * 4, 9, budget)


def places_in_the_text(case: Case) -> Call:
    """Positions go on where the text's last piece ended, in each row by itself."""
    lengths, fed = _middle(case, case.size("rows", 1, 3), 3)
    return call(_texts(case, lengths), fed, 9, 99)


def whose_they_are(case: Case) -> Call:
    """Every token says which text it belongs to, also in a step that takes a part of the texts."""
    lengths = [case.size(f"length {b}", 1, 4) for b in range(3)]
    return call(_texts(case, lengths), [0] * 3, 9, sum(lengths) - case.size("less", 0, 1))


def where_they_lie(case: Case) -> Call:
    """Rows lie side by side; a row without tokens is not in the step, and the last number is the step's length."""
    lengths = [case.size(f"length {b}", 1, 4) for b in range(4)]
    budget = sum(lengths[: case.size("in the step", 1, 3)])
    return call(_texts(case, lengths), [0] * 4, 9, budget)


def who_gets_a_token(case: Case) -> Call:
    """Logits are wanted at the last token of each text that this step ends, and of no other."""
    chunk = case.size("chunk", 2, 3)
    left = [chunk + case.size("long", 1, 2), case.size("short", 1, chunk - 1), chunk, 1]
    fed = [case.choice(f"fed {b}", (0, chunk, 2 * chunk)) for b in range(4)]
    order = case.permutation("order", 4).tolist()
    lengths = [fed[b] + left[b] for b in order]
    return call(_texts(case, lengths), [fed[b] for b in order], chunk, 4 * chunk - case.size("less", 0, 3))


TWO, EQUAL = [[5, 6, 7, 8, 9], [1, 2, 3, 4]], [[2, 1, 1, 2, 1]] * 3
ALIKE = {  # texts, fed, chunk, budget: those of two texts differ from the first in one number alone
    "equal": (EQUAL, [1, 0, 1], 4, 11), "equal, fed otherwise": (EQUAL, [0, 2, 2], 4, 11),
    "first": (TWO, [1, 0], 3, 5), "fed more": (TWO, [2, 0], 3, 5), "larger chunk": (TWO, [1, 0], 4, 5),
    "smaller budget": (TWO, [1, 0], 3, 4),
}  # fmt: skip


def few_tokens(case: Case) -> Call:
    """Whatever is left of a few texts, and whatever chunk and budget are, 1 too: a step brings what it should."""
    rows, chunk = case.small("rows chunk")
    left = [case.size(f"left {row}", 1, 3) for row in range(rows)]
    fed = [case.size(f"fed {row}", 0, 2) for row in range(rows)]
    return call(
        _texts(case, [n + m for n, m in zip(left, fed, strict=True)]), fed, chunk, case.turn((1, 2, 3, 4, 5, 6, 7))
    )


def any_texts(case: Case) -> Call:
    """Texts may be equal, repeat a token, be many, and be longer than any chunk that is usual; ids may be any."""
    kind = case.turn((
        *ALIKE, "many", "long", "thousands", "any ids", "far", "alone", "by one", "no limits",
    ))  # fmt: skip
    of_lengths = {
        "thousands": ([1] * 1050, [0] * 1050, 2, 4000),
        "far": ([9000, 2100, 700], [6900, 2060, 300], 5000, 2400),
        "no limits": ([3, 5], [1, 0], 2**31 + 7, 2**53 + 9),
        "alone": ([9], [1], 8, 4),  # more than fits
        "by one": ([3, 4, 2], [1, 1, 1], 1, 4),  # each brings one token
    }
    if kind in of_lengths:
        lengths, *others = of_lengths[kind]
        return call(_texts(case, lengths), *others)
    if kind == "any ids":  # 50256 pads in many codes, and so do 0 and -1's neighbours
        texts = [[0, 50_256, 50_256, 0, 1], [50_256], [0, 0], [2**17 + 1, 2**53 + 1]]
        return call(texts, [0, 0, 1, 0], 3, case.size("budget", 7, 9))
    if kind == "many":
        return call(_texts(case, case.ints("lengths", 1, 3, 70).tolist()), [0] * 70, 2, case.size("budget", 80, 110))
    if kind == "long":
        return call([case.ints("repeated", 1, 2, 300).tolist()] * 3, [40, 0, 40], 200, 500)
    return call(*copy.deepcopy(ALIKE[kind]))


CHECKS = (
    Check(any_texts, 14, wide=True), Check(few_tokens, 21, wide=True),
    Check(next_tokens, 4, part="token_ids"), Check(within_the_budget, 4, part="token_ids"),
    Check(places_in_the_text, 3, part="positions"), Check(whose_they_are, 3, part="rows"),
    Check(where_they_lie, 4, part="starts"), Check(who_gets_a_token, 6, part="logits_at"),
)  # fmt: skip
