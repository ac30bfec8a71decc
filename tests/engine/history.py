"""Random histories of one engine: requests come, end, fail and are cancelled, in whatever parts the engine is made of.

Nothing is computed but a rule: a token's key is a hash of all tokens up to it, and what follows depends on every key
that the row reads, in the places where the real caches, tables and steps say that it stands. So whatever the engine
mixes up, forgets or does twice shows in the tokens, the listeners' calls or the counts.

Parts that plug in, at random unless they are given: blocks (none, owned or shared), preemption, a drafter (none, on the
host, or within captured steps). An `Audit` looks at each step that is planned, a `Shadow` at each call of the blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nanoinfer.cache.blocks import BlockManager
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.prefix import PrefixBlocks
from nanoinfer.engine import graphs
from nanoinfer.engine import scheduler as scheduler_module
from nanoinfer.engine.engine import Engine
from nanoinfer.engine.graph_stats import GraphStats
from nanoinfer.engine.penalties import PenaltySampler
from nanoinfer.engine.sampling import Samplers, greedy, gumbel, sample
from nanoinfer.engine.scheduler import Row
from nanoinfer.engine.state import BatchState, Fetch
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams
from nanoinfer.speculate.adaptive import Adaptive
from nanoinfer.speculate.coin import CoinDrafter
from nanoinfer.speculate.engine import SpeculativeEngine
from nanoinfer.speculate.graphs import VerifyGraphRunner
from nanoinfer.speculate.lookup import PromptLookup
from tests.engine.audit import Audit, must
from tests.engine.drafting import Scripted, name_of
from tests.engine.fake_graphed import watch
from tests.engine.shadow import Shadow

LONGEST, VOCAB, CPU = 30, 13, torch.device("cpu")
SHAPE = ModelConfig(n_layer=1, n_head=1, n_embd=1, n_positions=LONGEST, vocab_size=VOCAB)
LOGITS = torch.randn(211, VOCAB, generator=torch.Generator().manual_seed(1))  # one line for each hash of what is read
REPEAT: Any = SimpleNamespace(warm=lambda step: None, record=lambda step: SimpleNamespace(replay=step))
SCORED = SamplingParams(max_tokens=0, prompt_logprobs=0)
PENALTY = 0.5


class Toggled(Adaptive):
    """Drafts at some steps and at others none, so that plain steps are in flight where drafts begin again."""

    def pays(self, rows: int) -> bool:
        return hash((rows, self._steps, len(self._rows))) % 3 > 0

    def rests(self) -> bool:
        return False


class Boom(Exception):
    """A device that fails."""


def key(before: float, token: int) -> float:
    """In place of a token's key and value. 0 is a slot that nobody has written."""
    return float(1 + hash((before, token)) % 2**50)


def line(keys: Iterable[float]) -> int:
    """Which of `LOGITS` follows after all these keys."""
    return hash(tuple(keys)) % len(LOGITS)


def continued(request: Request) -> list[int]:
    """Its tokens if it were alone, up to its limit: the rule of sampling and penalties, said once more."""
    params, counts = request.params, torch.zeros(VOCAB)
    noise = gumbel(torch.full((request.limit,), request.seed), torch.arange(request.limit), VOCAB)
    keys = list(accumulate(request.prompt_token_ids, key, initial=0.0))
    tokens: list[int] = []
    for step in range(request.limit):
        scores = LOGITS[line(keys[1:])] - params.frequency_penalty * counts
        if params.temperature:
            scores = scores / params.temperature + noise[step]
        tokens.append(int(scores.argmax()))
        counts[tokens[-1]] += 1
        keys.append(key(keys[-1], tokens[-1]))
    return tokens


class Rule(GPT2):
    """A model without weights, over the real caches: it writes keys where a plan says, and reads where tables say."""

    def __init__(self, history: History) -> None:
        super().__init__(SHAPE)
        self.history = [history]  # in a list, since a module looks at all of its attributes

    def hidden(self, batch: Batch, attend: Any) -> Tensor:
        """(N, 1) which of `LOGITS` follows each token."""
        history, cache, plan = self.history[0], attend.func.__self__, attend.args[0]
        history.fail()
        keys: list[float] = cache.k.view(-1).tolist()
        ids, positions, rows, slots = (
            each.tolist() for each in (batch.token_ids, batch.positions, batch.row, plan.slots)
        )
        must(len(ids) <= history.audit.budget or history.drafts == "within", "the budget holds")
        for token, position, row, slot in zip(ids, positions, rows, slots, strict=True):
            must(position < batch.max_context, "no token stands behind the longest context")
            if row < history.max_batch:
                must(not keys[slot] or history.drafts is not None, "a slot is written once")
                history.note_fed(row, position)
            before = keys[self.slot(cache, row, position - 1)] if position else 0.0
            keys[slot] = key(before, token)
        cache.k.view(-1).copy_(torch.tensor(keys, dtype=torch.float64))
        lines = [0.0] * len(ids)
        for at in range(len(ids)) if batch.logits_at is None else batch.logits_at.tolist():
            read = [keys[self.slot(cache, rows[at], position)] for position in range(positions[at] + 1)]
            assert all(read)  # somebody has written it
            lines[at] = float(line(read))
        history.fail()
        return torch.tensor(lines)[:, None]

    @staticmethod
    def slot(cache: Any, row: int, position: int) -> int:
        """Where the key of a row's token stands, in all keys end to end."""
        if isinstance(cache, DenseCache):
            return row * LONGEST + position
        return int(cache.tables[row, position // cache.block_size]) * cache.block_size + position % cache.block_size

    def head(self, x: Tensor) -> Tensor:
        return LOGITS[x[:, 0].long()]


class History:
    """One engine, what its users are told, and what must hold of it after each step."""

    def __init__(self, random: Random, **parts: Any) -> None:
        """parts: those that are not left to chance."""

        def part(name: str, *values: Any) -> Any:
            chosen = random.choice(values)
            return parts.get(name, chosen)

        self.random, self.drafts, self.lag = random, part("drafts", None), part("lag", 0, 1, 2, 3)
        self.alpha = part("alpha", None, 0.0, 0.6, 0.9, 0.9, 1.0, 1.0)  # drafts that are right; None: looked up
        self.max_batch, size = random.randint(1, 6), random.choice([1, 4, 4, 16])
        kind, self.preemption = part("blocks", "none", "owned", *["shared"] * 3), part("preemption", True, True, False)
        self.preemption &= kind != "none"
        rows = 1 if self.preemption else random.randint(1, self.max_batch)
        pool = 1 + -(-LONGEST // size) * rows + random.randint(0, 2)
        self.ahead, fail_at = random.choice([0, 0, 0, 1, 4, 64]), part("fail_at", 0, 0, 0.01, 0.03)
        self.fail_at = 0.0 if self.drafts == "within" else fail_at  # what fails in a capture is not replayed
        self.cache: Any = self.make_cache(kind, pool, size)
        self.blocks: BlockManager | None = self.cache.blocks
        self.chosen: Counter[int] = Counter()  # of each request, by its seed: how many tokens were chosen
        self.fed: Counter[int] = Counter()  # and how many of its tokens were ever fed, or found
        self.calls: Counter[str] = Counter()
        self.drafter: Any = None
        self.expected: dict[Any, list[int]] = {}  # what follows each prompt, were there no stop
        self.engine = self.make_engine()
        self.shadow = Shadow(self.blocks) if self.blocks else None
        self.audit = Audit(self)
        for owner, names in ((self.cache, ("clear", "update", "move")), (self.engine.samplers.scoring, ("move",))):
            for name in names:
                watch(owner, name, self.fail)
        self.contents = [[random.randrange(2) for _ in range(size)] for _ in range(2)]
        self.prompts, self.limit = random.choice([4, 10, 25]), random.choice([3, 12, 24])
        self.limit = 24 if self.preemption else self.limit
        self.scored, self.penalised = random.choice([0, 0.1, 0.5]), part("penalised", 0, 0, 0.3)
        self.stops, self.early = random.choice([0, 0, 2]), random.choice([0, 0, 0.5])
        self.told: dict[Row, list[tuple[int, bool]]] = {}  # each call of a listener: tokens so far, and whether gone
        self.numbers = self.failures = 0

    def make_cache(self, kind: str, pool: int, size: int) -> DenseCache | PagedCache:
        """Whoever gets a row or a block finds nothing in it."""
        if kind == "none":
            return DenseCache(SHAPE, self.max_batch, LONGEST, CPU, torch.float64)
        cache = PagedCache(SHAPE, self.max_batch, LONGEST, pool, size, CPU, torch.float64)
        if kind == "shared":
            cache.blocks = PrefixBlocks(pool, size, self.max_batch, b"a model")
        allocate = cache.blocks.allocator.allocate

        def emptied() -> int:
            block = allocate()
            cache.k[:, block] = 0
            return block

        cache.blocks.allocator.allocate = emptied  # type: ignore[method-assign]
        return cache

    def make_engine(self) -> Engine:
        random, max_batch, stats = self.random, self.max_batch, GraphStats()
        samplers = Samplers(
            self.counted(greedy), self.counted(sample),
            scoring=PenaltySampler(max_batch, VOCAB, CPU, self.counted(sample)),
        )  # fmt: skip
        settings: dict[str, Any] = {
            "samplers": samplers, "preemption": self.preemption, "prefill_chunk": random.choice([None, 1, 5]),
            "max_batched_tokens": max_batch + random.choice([0, 2, 20]), "mixed": random.random() < 0.5,
            "lag": self.lag,
        }  # fmt: skip
        model = Rule(self)
        if self.drafts is None:
            return Engine(model, self.cache, max_batch, stats, **settings)
        settings["draft_tokens"] = k = random.randint(1, 9)
        if self.drafts == "within":
            settings["runner"] = partial(
                VerifyGraphRunner, draft_tokens=k, recorder=REPEAT, max_rows=max_batch, max_len=LONGEST, stats=stats
            )
        if self.alpha is None:
            self.drafter = PromptLookup(max_batch, LONGEST, k, CPU)
        elif self.drafts == "within":
            self.drafter = CoinDrafter(max_batch, LONGEST, k, CPU)
            self.drafter.begin({}, self.alpha)
        else:
            self.drafter = Scripted(self.expected, random, self.alpha, VOCAB)
        settings["adaptive"] = random.choice([None, None, Toggled()])
        engine = SpeculativeEngine(model, self.cache, max_batch, stats, drafter=self.drafter, **settings)
        if self.drafts == "within":
            engine.runner.shapes = []  # type: ignore[attr-defined]  # prompts are captured elsewhere
        return engine

    def counted(self, sampler: Any) -> Any:
        """A sampler that counts for whom it chooses."""

        def choose(logits: Tensor, rows: BatchState) -> Tensor:
            live = rows.row < self.max_batch
            self.chosen.update(rows.seed[live].tolist())
            chosen: Tensor = sampler(logits, rows)
            return chosen

        return choose

    def note_fed(self, row: int, position: int) -> None:
        seed = int(self.engine.state.seed[row])
        if not self.fed[seed]:
            self.calls["cached"] += position
            self.fed[seed] = position
        self.calls["recomputed"] += position < self.fed[seed]
        self.fed[seed] = max(self.fed[seed], position + 1)

    def fail(self, *_: object) -> None:
        if self.random.random() < self.fail_at:
            raise Boom

    def request(self) -> Request:
        """Of few contents, so that many begin alike."""
        random, ids = self.random, list[int]()
        length = random.randint(1, self.prompts)
        while len(ids) < length:
            ids += random.choice(self.contents)
        self.numbers = index = self.numbers + 1
        kind, none = random.random(), False
        if kind < self.scored:
            params, none = SCORED, random.random() < 0.5
        else:
            penalty = {"frequency_penalty": PENALTY, "logprobs": 1} if random.random() < self.penalised else {}
            params = SamplingParams(temperature=random.choice([0, 0.8]), **penalty)  # type: ignore[arg-type]
        limit = 0 if none else random.randint(1, min(self.limit, LONGEST - length))
        stop = frozenset(random.sample(range(VOCAB), self.stops))
        request = Request(index, tuple(ids[:length]), params, index, limit, stop)
        self.expected[name_of(request)] = text = continued(request)
        if isinstance(self.drafter, CoinDrafter):
            self.drafter._drafts[index] = [each if random.random() < self.alpha else int(not each) for each in text]
        return request

    def submit(self) -> None:
        def listener(row: Row) -> None:
            self.told[row].append((len(row.token_ids), row.cancelled is not None))

        row = self.engine.submit(self.request(), listener, every_token=self.random.random() < 0.5)
        self.told[row] = []

    def run(self, rounds: int = 20) -> Counter[str]:
        """Rounds of whatever, then steps until all is done: how often which thing happened."""
        with ExitStack() as patches:
            patches.enter_context(patch.object(scheduler_module, "AHEAD", self.ahead))
            patches.enter_context(patch.object(Fetch, "arrived", property(lambda _: self.random.random() < self.early)))
            patches.enter_context(patch.object(graphs.gc, "collect", int))  # takes longer than all else
            self.go(rounds)
        stats = self.engine.stats
        return self.audit.happened + Counter(
            preempted=stats.preemptions, cached=stats.cached_tokens, recomputed=stats.recomputed_tokens,
            failures=self.failures, evicted=getattr(self.blocks, "evictions", 0), verified=stats.verify_steps,
            accepted=stats.accepted_tokens, behind=stats.verify_steps * (self.engine.lag > 0),
        )  # fmt: skip

    def go(self, rounds: int) -> None:
        for _ in range(rounds):
            while self.random.random() < 0.4:
                self.submit()
            if self.told and self.random.random() < 0.2:
                self.cancel()
            try:
                if self.random.random() < 0.05:
                    self.generate()
                self.step()
            except Boom as boom:
                self.abandon(boom)
        self.fail_at, steps = 0, 0
        while self.engine.busy:
            self.step()
            steps += 1
            assert steps < 2 * LONGEST * self.numbers
        self.check_all()

    def cancel(self) -> None:
        """Any row, or one that was preempted and waits."""
        again = [row for row in self.engine.scheduler.waiting if row.computed and row in self.told]
        row = self.random.choice(again or list(self.told))
        self.audit.happened["cancelled while preempted"] += bool(again)
        self.engine.cancel(row)

    def step(self) -> None:
        before = {row: len(row.token_ids) for row in self.told}
        settled = self.engine.step()
        most = 1 if self.drafts is None else 10
        came = {row: len(row.token_ids) - count for row, count in before.items() if len(row.token_ids) > count}
        assert {*came} == {*settled} & {*self.told}
        assert all(count <= most for count in came.values())
        assert len(set(settled)) == len(settled)
        assert self.engine.stats.preemptions == self.engine.scheduler.preemptions
        self.check_state()

    def generate(self) -> None:
        """As a caller does who may not wait for the end, or asks for what could never run."""
        requests = [self.request(), self.request()]
        got: dict[int, Row] = {}
        running = self.engine.generate(requests)
        for steps, settled in enumerate(running):
            assert steps < 2 * LONGEST * self.numbers
            got |= {row.request.index: row for row in settled if row.request in requests}
            if self.random.random() < 0.1:
                running.close()
        assert all(row.ended for row in got.values())
        assert not [row for row in self.engine.rows if row.request in requests]
        for row in got.values():
            self.check_tokens(row)

    def abandon(self, boom: Boom) -> None:
        """The engine is as new, and every user has been told."""
        left, self.fail_at, fail_at = [row for row in self.told if not row.ended], 0.0, self.fail_at
        self.engine.abandon(boom)
        self.fail_at = fail_at
        self.failures += 1
        assert not self.engine.busy
        assert all(row.cancelled is boom for row in left)
        if isinstance(self.cache, PagedCache):
            assert not self.cache.tables[:-1].any()
        self.check_state()
        self.check_free()

    def check_state(self) -> None:
        """What the device holds is what the host's rows say; all else is padding, and nobody owns a block of it."""
        engine, state = self.engine, self.engine.state
        slots = engine.scheduler._slots
        seeds, lives, owns = state.seed.tolist(), state.live.tolist(), state.row.tolist()
        for slot in range(state.dummy + 1):
            row = slots[slot] if slot < len(slots) else None
            if row:
                assert row.slot == slot
                assert seeds[slot] == row.request.seed
            if row or slot >= len(slots):  # else a gap, which the next step fills, closes or frees
                assert lives[slot] == bool(row and row.going)
                assert owns[slot] == (slot if row and row.going else state.dummy)
            if slot >= len(slots):
                assert seeds[slot] == 0
        if isinstance(self.blocks, PrefixBlocks):
            known = [*self.blocks.allocator.known.values()]
            must(bool((self.cache.k[:, known] != 0).all()), "a block that can be found is written")
        for row in engine.rows:
            if row.going and not engine._in_flight:
                self.check_settled(row)

    def check_settled(self, row: Row) -> None:
        """A row that goes on, with nothing in flight: all is known of it, as after steps of one token each."""
        state, count, prompt = self.engine.state, len(row.token_ids), row.request.prompt_token_ids
        assert row.fed == len(prompt) + count - 1
        assert state.integers[:3, row.slot].tolist() == [row.token_ids[-1], row.fed, count]
        assert len(row.times) == count
        assert not row.ahead
        if self.blocks:
            owned = self.blocks.owned[row.slot]
            assert len(owned) in (self.blocks.blocks_of(row.fed), self.blocks.blocks_of(row.fed + 1))  # it may wait
        if row.request.params.penalises:
            counts = self.engine.samplers.scoring.counts[row.slot]
            assert counts.tolist() == torch.bincount(torch.tensor(row.token_ids), minlength=VOCAB).tolist()

    def check_tokens(self, row: Row) -> None:
        request, text = row.request, self.expected[name_of(row.request)]
        ends = [at for at, token in enumerate(text, start=1) if token in request.stop_ids]
        expected = text[: ends[0]] if ends else text
        chosen = self.chosen[request.seed]
        assert chosen <= request.limit or self.drafts is not None
        if row.cancelled:
            assert row.token_ids == expected[: len(row.token_ids)]
        else:
            assert row.token_ids == expected
            assert row.finish_reason == ("stop" if ends else "length")
            assert chosen <= len(expected) + self.engine.lag or self.drafts is not None  # a stop is seen late
            scored = request.prompt_token_ids[1:] if request.params is SCORED else ()
            assert [int(values[0]) for values in row.prompt_logprobs] == [*scored]
        if request.params.logprobs is not None:
            assert [values[0] for values in row.logprobs] == row.token_ids

    def check_all(self) -> None:
        for row, told in self.told.items():
            assert row.ended
            self.check_tokens(row)
            tokens = [(count, False) for count in range(1, len(row.token_ids) + 1)]
            if not row.every_token:
                tokens = [] if row.cancelled else tokens[-1:]
            if not row.request.limit and not row.cancelled:
                tokens = [(0, False)]
            assert row.cancelled is None or isinstance(row.cancelled, CancelledError | Boom)
            assert told == tokens + [(len(row.token_ids), True)] * (row.cancelled is not None)
            assert row.finish_reason is None or row.cancelled is None
        self.check_free()
        stats = self.engine.stats
        if self.drafts == "within" and self.alpha in (0.0, 1.0):
            assert stats.accepted_tokens == self.alpha * stats.draft_tokens
        if self.drafts is None and not self.failures:
            assert stats.new_tokens + stats.dropped_tokens == self.chosen.total()
            assert stats.requests == len(self.fed)
            assert stats.cached_tokens == self.calls["cached"]
            assert stats.recomputed_tokens == self.calls["recomputed"]

    def check_free(self) -> None:
        if blocks := self.blocks:
            assert blocks.allocator.free_blocks == blocks.allocator.blocks - 1
            assert blocks.reserved == 0
