"""Random histories of one engine: requests come, end, fail and are cancelled, in whatever parts the engine is made of.

Nothing is computed but a rule: a token's key is a hash of all tokens up to it, and what follows depends on every key
that the sequence reads, in the places where the real caches, tables and steps say that it stands. So whatever the
engine mixes up, forgets or does twice shows in the tokens, the listeners' calls or the counts.

Parts that plug in, at random unless they are given: the engine (eager, or graph: its state on the device, late, and
replayed or not), blocks (none, owned or shared), preemption, a drafter (none, on the host, or within captured steps).
An `Audit` looks at each step that is planned, a `Shadow` at each call of the blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import CancelledError
from contextlib import ExitStack
from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nanoinfer.cache import sharing
from nanoinfer.cache.captured import CapturedDense
from nanoinfer.cache.dense import DenseCache
from nanoinfer.cache.ragged import CapturedRagged, RaggedPaged
from nanoinfer.engine import graphs
from nanoinfer.engine.engine import Sequence
from nanoinfer.engine.penalties import AllSamplers, PenaltySampler
from nanoinfer.engine.queue import Queued
from nanoinfer.engine.samplers import greedy, sample
from nanoinfer.engine.sampling import gumbel, sample_filtered
from nanoinfer.engine.scores import PlainScores
from nanoinfer.engine.state import BatchState, Fetch
from nanoinfer.engines.kernels import KernelQueue
from nanoinfer.model.batch import Batch
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams
from nanoinfer.speculate.coin import CoinDrafter
from nanoinfer.speculate.engine import DraftEngine
from nanoinfer.speculate.lookup import PromptLookup
from nanoinfer.speculate.pays import Pays
from nanoinfer.speculate.verify import VerifiedPaged
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


class Toggled(Pays):
    """Drafts at some steps and at others none, so that plain steps are in flight where drafts begin again."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random

    def draft(self, *_: object) -> bool:
        return self.random.random() < 0.7


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
        each = [t.tolist() for t in (batch.token_ids, batch.positions, batch.row, plan.places)]
        must(sum(slot < history.max_batch for slot in each[2]) <= history.audit.budget, "the budget holds")
        for token, position, slot, place in zip(*each, strict=True):
            must(position < batch.past + batch.longest, "no token stands behind the longest context")
            if slot < history.max_batch:
                must(not keys[place] or bool(history.drafts), "a place is written once")
                history.note_fed(slot, position)
            before = keys[self.place(cache, slot, position - 1)] if position else 0.0
            keys[place] = key(before, token)
        cache.k.view(-1).copy_(torch.tensor(keys, dtype=torch.float64))
        lines = []
        for _, position, slot, _ in zip(*each, strict=True):
            read = [keys[self.place(cache, slot, before)] for before in range(position + 1)]
            assert all(read)  # somebody has written it
            lines.append(float(line(read)))
        history.fail()
        return torch.tensor(lines)[:, None]

    @staticmethod
    def place(cache: Any, slot: int, position: int) -> int:
        """Where the key of a sequence's token stands, in all keys end to end."""
        if isinstance(cache, DenseCache):
            return slot * LONGEST + position
        return int(cache.tables[slot, position // cache.block_size]) * cache.block_size + position % cache.block_size

    def head(self, x: Tensor) -> Tensor:
        return LOGITS[x[:, 0].long()]


class History:
    """One engine, what its users are told, and what must hold of it after each step."""

    def __init__(self, random: Random, **parts: Any) -> None:
        """parts: those that are not left to chance."""

        def part(name: str, *values: Any) -> Any:
            chosen = random.choice(values)
            return parts.get(name, chosen)

        self.random, self.drafts = random, part("drafts", None)
        self.alpha = part("alpha", None, 0.0, 0.6, 0.9, 0.9, 1.0, 1.0)  # drafts that are right; None: looked up
        self.captured = part("engine", "eager", "graph", "graph") == "graph" or self.drafts is not None
        self.max_batch, size = random.randint(1, 6), random.choice([1, 4, 4, 16])
        kind, self.preemption = part("blocks", "none", "owned", *["shared"] * 3), part("preemption", True, True, False)
        self.preemption &= kind != "none"
        rows = 1 if self.preemption else random.randint(1, self.max_batch)
        pool = -(-LONGEST // size) * rows + random.randint(0, 2)
        self.ahead, self.fail_at = random.choice([0, 0, 0, 1, 4, 64]), part("fail_at", 0, 0, 0.01, 0.03)
        self.cache: Any = self.make_cache(kind, pool, size)
        self.chosen: Counter[int] = Counter()  # of each request, by its seed: how many tokens were chosen
        self.fed: Counter[int] = Counter()  # and how many of its tokens were ever fed, or found
        self.calls: Counter[str] = Counter()
        self.drafter: Any = None
        self.expected: dict[Any, list[int]] = {}  # what follows each prompt, were there no stop
        self.lag = part("lag", 0, 1, 2, 3) if self.captured else 0
        self.engine: Any = self.make_engine()
        self.blocks: Any = self.engine.blocks
        self.shadow = Shadow(self.blocks) if self.blocks else None
        self.audit = Audit(self)
        self.observed: list[Any] = []
        self.engine.observer = SimpleNamespace(left=id, ended=id, stepped=self.observe)
        watch(self.engine, "settle", self.note_settled)
        calls = ["begin", "update", "move", "vacate"] if self.captured else ["keep"]
        for name in calls:
            if hasattr(self.cache, name):
                watch(self.cache, name, self.fail)
        self.contents = [[random.randrange(2) for _ in range(size)] for _ in range(2)]
        self.prompts, self.limit = random.choice([4, 10, 25]), random.choice([3, 12, 24])
        self.limit = 24 if self.preemption else self.limit
        self.scored, self.penalised = random.choice([0, 0.1, 0.5]), part("penalised", 0, 0, 0.3)
        self.stops, self.early = random.choice([0, 0, 2]), random.choice([0, 0, 0.5])
        self.told: dict[Queued, list[tuple[int, bool]]] = {}  # each call of a listener: tokens so far, and whether gone
        self.no_tokens: set[int] = set()  # requests, by their seeds, that want none
        self.numbers = self.failures = 0

    def make_cache(self, kind: str, pool: int, size: int) -> Any:
        """Whoever gets a slot or a block finds nothing in it."""
        where = CPU, torch.float64
        if kind == "none":
            return (CapturedDense if self.captured else DenseCache)(SHAPE, self.max_batch, LONGEST, *where)
        captured = VerifiedPaged if self.drafts else CapturedRagged
        cache: Any = (captured if self.captured else RaggedPaged)(
            SHAPE, self.max_batch, LONGEST, pool, size, *where, preemption=self.preemption,
            identity=b"a model" if kind == "shared" else None,
        )  # fmt: skip
        allocate = cache.blocks.allocate

        def emptied() -> int:
            block: int = allocate()
            cache.k[:, block] = 0
            return block

        cache.blocks.allocate = emptied
        return cache

    def observe(self, settled: list[Any]) -> None:
        self.observed.append((self.engine.fed, settled))

    def make_engine(self) -> Any:
        random, max_batch, model = self.random, self.max_batch, Rule(self)
        settings: dict[str, Any] = {
            "chunk": random.choice([None, 1, 5]), "budget": max_batch + random.choice([0, 2, 20]),
            "mixed": random.random() < 0.5,
        }  # fmt: skip
        if self.drafts:
            settings |= {"draft_tokens": random.randint(1, 9), "adaptive": random.choice([None, None, Toggled(random)])}
            settings["drafter"] = self.drafter = self.make_drafter(settings["draft_tokens"])
        if not self.captured:
            engine: Any = PlainScores(model, self.cache, max_batch, **settings)
            watch(engine, "choose", self.note_eager)
            return engine
        scoring = PenaltySampler(max_batch, VOCAB, CPU, self.counted(sample))
        samplers = AllSamplers(self.counted(greedy), self.counted(sample), sample_filtered, scoring)
        watch(scoring, "move", self.fail)
        recorder = REPEAT if self.drafts == "within" else random.choice([None, REPEAT])
        return (DraftEngine if self.drafts else KernelQueue)(
            model, self.cache, max_batch, recorder=recorder, max_rows=max_batch, samplers=samplers, lag=self.lag,
            **settings,
        )  # fmt: skip

    def make_drafter(self, k: int) -> Any:
        if self.alpha is None:
            return PromptLookup(self.max_batch, LONGEST, k, CPU)
        if self.drafts != "within":
            return Scripted(self.expected, self.random, self.alpha, VOCAB)
        coin = CoinDrafter(self.max_batch, LONGEST, k, CPU)
        coin.begin({}, self.alpha)
        return coin

    def counted(self, sampler: Any) -> Any:
        """A sampler that counts for whom it chooses."""

        def choose(logits: Tensor, rows: BatchState) -> Tensor:
            self.note_chosen(rows.seed[rows.row < self.max_batch].tolist())
            chosen: Tensor = sampler(logits, rows)
            return chosen

        return choose

    def note_chosen(self, seeds: list[int]) -> None:
        self.chosen.update(seed for seed in seeds if seed not in self.no_tokens)

    def note_eager(self, _: Tensor, sequences: list[Sequence]) -> None:
        self.note_chosen([s.request.seed for s in sequences if getattr(s, "decoding", True)])

    def note_settled(self, _: Any, tokens: list[Any]) -> None:
        """Of what steps with drafts have chosen, some is behind a wrong draft, or where there was none."""
        for token in tokens:
            if isinstance(token, list):
                *chosen, own, _ = token
                self.calls["rejected"] += len(chosen) - own

    def note_fed(self, slot: int, position: int) -> None:
        if self.captured:
            seed = int(self.engine.state.seed[slot])
        else:
            (seed,) = [s.request.seed for s in self.engine.running if s.row == slot]
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
        self.no_tokens |= {index} - {index * (limit > 0)}
        return request

    def submit(self) -> None:
        def listener(s: Queued) -> None:
            self.told[s].append((s.generated, s.cancelled is not None))

        s = self.engine.submit(self.request(), listener, every_token=self.random.random() < 0.5)
        self.told[s] = []

    def run(self, rounds: int = 20) -> Counter[str]:
        """Rounds of whatever, then steps until all is done: how often which thing happened."""
        with ExitStack() as patches:
            patches.enter_context(patch.object(sharing, "AHEAD", self.ahead))
            patches.enter_context(patch.object(Fetch, "arrived", property(lambda _: self.random.random() < self.early)))
            patches.enter_context(patch.object(graphs.gc, "collect", int))  # takes longer than all else
            self.go(rounds)
        stats = self.engine.stats
        return self.audit.happened + Counter(
            preempted=stats.preemptions, cached=stats.cached_tokens, recomputed=stats.recomputed_tokens,
            failures=self.failures, evicted=getattr(self.shadow, "evictions", 0), verified=stats.verify_steps,
            accepted=stats.accepted_tokens, behind=stats.verify_steps * (self.lag > 0),
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
        """Any sequence, or one that was preempted and waits."""
        again = [s for s in self.engine.waiting if s.computed and s in self.told]
        s = self.random.choice(again or list(self.told))
        self.audit.happened["cancelled while preempted"] += bool(again)
        self.engine.cancel(s)

    def step(self) -> None:
        before, self.audit.planned = {s: s.generated for s in self.told}, []
        settled = self.engine.step()
        assert self.observed.pop() == (self.audit.planned, settled)
        came = {s: s.generated - count for s, count in before.items() if s.generated > count}
        assert {*came} == {s for s in settled if s.request.limit} & {*self.told}
        assert all(count <= (10 if self.drafts else 1) for count in came.values())
        assert len(set(settled)) == len(settled)
        self.check_state()

    def generate(self) -> None:
        """As a caller does who may not wait for the end, or asks for what could never run."""
        requests = [self.request(), self.request()]
        got: dict[int, Queued] = {}
        running = self.engine.generate(requests)
        for steps, settled in enumerate(running):
            assert steps < 2 * LONGEST * self.numbers
            got |= {s.request.index: s for s in settled if s.request in requests}
            if self.random.random() < 0.1:
                running.close()
        assert all(s.ended for s in got.values())
        assert not [s for s in self.engine.running if s.request in requests]
        for s in got.values():
            self.check_tokens(s)

    def abandon(self, boom: Boom) -> None:
        """The engine is as new, and every user has been told."""
        left, self.fail_at, fail_at = [s for s in self.told if not s.ended], 0.0, self.fail_at
        self.engine.abandon(boom)
        self.fail_at = fail_at
        self.failures += 1
        assert not self.engine.busy
        assert all(s.cancelled is boom for s in left)
        if self.captured and self.blocks:
            assert not self.cache.tables[:-1].any()
        self.check_state()
        self.check_free()

    def check_state(self) -> None:
        """What the device holds is what the host's sequences say, and all else is padding."""
        engine = self.engine
        slots = {s.row: s for s in engine.running}
        assert sorted([*slots, *engine.free]) == list(range(self.max_batch))
        if self.captured:
            state = engine.state
            seeds, lives, owns = state.seed.tolist(), state.live.tolist(), state.row.tolist()
            for slot in range(state.dummy):
                s = slots.get(slot)
                assert not s or seeds[slot] == s.request.seed
                if s or slot >= engine.live:  # else a gap, which the next step fills, closes or frees
                    assert lives[slot] == bool(s and s.decoding)
                    assert owns[slot] == (slot if s and s.decoding else state.dummy)
                if slot >= engine.live:
                    assert seeds[slot] == 0
        if self.blocks:
            known = [*self.blocks.keys]
            must(bool((self.cache.k[:, known] != 0).all()), "a block that can be found is written")
        for s in engine.running:
            if s.decoding and not (self.captured and engine.in_flight):
                self.check_settled(s)

    def check_settled(self, s: Any) -> None:
        """A decoding sequence, with nothing in flight: all is known of it."""
        count = s.generated
        assert s.cached == len(s.tokens) - 1
        assert len(s.times) == count
        assert not self.drafts or not s.ahead
        if self.blocks and not self.drafts:
            assert len(self.blocks.owned[s.row]) == self.blocks.blocks_of(s.cached)
        if self.captured:
            assert self.engine.state.integers[:3, s.row].tolist() == [s.tokens[-1], s.cached, count]
            if s.params.penalises:
                counts = self.engine.samplers.scoring.counts[s.row]
                assert counts.tolist() == torch.bincount(torch.tensor(s.token_ids), minlength=VOCAB).tolist()

    def check_tokens(self, s: Any) -> None:
        request, text = s.request, self.expected[name_of(s.request)]
        ends = [at for at, token in enumerate(text, start=1) if token in request.stop_ids]
        expected = text[: ends[0]] if ends else text
        chosen = self.chosen[request.seed]
        assert chosen <= request.limit or self.drafts
        if s.cancelled:
            assert s.token_ids == expected[: s.generated]
        else:
            assert s.token_ids == expected
            assert s.finish_reason == ("stop" if ends else "length")
            assert chosen <= len(expected) + self.lag or self.drafts  # a stop is seen late
            scored = request.prompt_token_ids[1:] if request.params is SCORED else ()
            assert [int(values[0]) for values in s.prompt_logprobs] == [*scored]
        if request.params.logprobs is not None:
            assert [values[0] for values in s.logprobs] == s.token_ids

    def check_all(self) -> None:
        for s, told in self.told.items():
            assert s.ended
            self.check_tokens(s)
            tokens = [(count, False) for count in range(1, s.generated + 1)]
            if not s.every_token:
                tokens = [] if s.cancelled else tokens[-1:]
            if not s.request.limit and not s.cancelled:
                tokens = [(0, False)]
            assert s.cancelled is None or isinstance(s.cancelled, CancelledError | Boom)
            assert told == tokens + [(s.generated, True)] * (s.cancelled is not None)
            assert s.finish_reason is None or s.cancelled is None
        self.check_free()
        stats = self.engine.stats
        if self.drafts == "within" and self.alpha in (0.0, 1.0):
            assert stats.accepted_tokens == self.alpha * stats.draft_tokens
        if not self.failures:
            assert stats.new_tokens + stats.dropped_tokens == self.chosen.total() - self.calls["rejected"]
            assert stats.requests == len(self.fed)
            assert stats.cached_tokens == self.calls["cached"]
            assert stats.recomputed_tokens == self.calls["recomputed"] or self.drafts

    def check_free(self) -> None:
        assert not self.engine.open
        if blocks := self.blocks:
            assert blocks.available == blocks.blocks
