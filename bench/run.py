"""Measure engines against each other: correctness first, then time, in an order that alternates the engines.

Each timed run is a whole `generate`, prompts in and tokens out, on the host's clock; then the same for one new token
(TTFT). Decode speed is the difference of the two medians. Engines take turns (A B C A B C ...), so that a machine that
slows down slows all of them. Tokens are recounted from what came back.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from nanoinfer import LLM, SamplingParams
from nanoinfer.config import ModelConfig
from nanoinfer.devices import choose_device, choose_dtype
from nanoinfer.llm import ENGINES, check_arguments
from nanoinfer.model import GPT2
from nanoinfer.proof import prove_tokens
from nanoinfer.weights import load_config, load_model, random_model

from .contestants import Contestant, Missing, make
from .machine import (
    ClockLog,
    commit,
    compiled_graphs,
    copy_bandwidth,
    describe,
    import_seconds,
    launches,
    memory_now,
    memory_peak,
    synchronize,
)
from .presets import Preset, floor_seconds
from .records import Case, Proof, Report, Result, Spread, quantile

Say = Callable[[str], None]

PROOF_STD = 0.1  # of random weights in proofs: on GPT-2's own 0.02 a hidden key may change no token
PROOF_ROWS = 8
IN_CACHE = 2  # weights that fit this often into L2 are not read from memory, and no share of its floor is given


@dataclass
class Entrant:
    """One contestant in one case, and what has been measured of it."""

    case: Case
    contestant: Contestant
    make_s: float = 0.0
    first_s: float = 0.0
    compiles: int = 0
    generate_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    failure: Result | None = None


class Benchmark:
    """One preset on one device, written to `path` as it goes; a run that was interrupted goes on where it was."""

    def __init__(self, preset: Preset, device: str | None, path: Path, say: Say = print) -> None:
        self.preset, self.path, self.say = preset, path, say
        check_arguments("auto", device, preset.dtype, 1, None, None)
        self.device = choose_device(device)
        self.dtype = choose_dtype(preset.dtype, self.device)
        self.clocks = ClockLog(self.device)
        self.report = self._resume() or self._begin()

    def _begin(self) -> Report:
        return Report(
            preset=self.preset.name,
            date=datetime.now(timezone.utc).date().isoformat(),
            commit=commit(),
            dtype=str(self.dtype).removeprefix("torch."),
            seed=self.preset.seed,
            repeats=self.preset.repeats,
            machine=describe(self.device),
            copy_bytes_per_s=copy_bandwidth(self.device),
            import_s=import_seconds(),
        )

    def _resume(self) -> Report | None:
        """The report at `path`, where it is of this preset, commit and machine."""
        if not self.path.is_file():
            return None
        old = Report.load(self.path)
        same = (old.preset, old.commit, old.machine) == (self.preset.name, commit(), describe(self.device))
        if not same:
            raise ValueError(f"{self.path} is of another preset, commit or machine: move it away, or name another file")
        return old

    def run(self) -> Report:
        """Measure all that is not measured yet."""
        self.say(
            f"{self.report.machine.device}, copy {self.report.copy_bytes_per_s / 1e9:,.0f} GB/s, {self.report.dtype}"
        )
        for name in self.preset.models:
            self._floors(load_config(name), name)
            self._prove(name)
            start = time.perf_counter()
            model = load_model(name, self.device, self.dtype, seed=self.preset.seed)
            synchronize(self.device)
            self._save(load_s={**self.report.load_s, name: time.perf_counter() - start})
            contestants: dict[str, Contestant | str] = {}
            for prompt_tokens in self.preset.prompt_tokens:
                for batch in self.preset.batches:
                    self._run_batch(name, model, batch, prompt_tokens, contestants)
            del model, contestants
            _free(self.device)
        return self.report

    def _prove(self, name: str) -> None:
        """Tokens of each of our engines against naive's logits, in float32, before any time is believed."""
        engines = [e for e in self.preset.engines if e in ENGINES and not self._proven(e, name)]
        if not engines:
            return
        shape = load_config(name)
        model = random_model(shape, seed=1, std=PROOF_STD, device=self.device)
        prompts = _prompts(PROOF_ROWS, 24, shape.vocab_size, seed=1).tolist()
        ragged = [prompt[: 3 * i + 1] for i, prompt in enumerate(prompts)]
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        oracle = LLM(model, engine="naive").forward_logits
        for engine in engines:
            proof = prove_tokens(oracle, LLM(model, engine=engine).generate(ragged, params), params)
            self.say(f"{name} {engine}: {proof}")
            record = Proof(engine=engine, model=name, batch=len(ragged), tokens=proof.tokens, near_ties=proof.near_ties)
            self._save(proofs=(*self.report.proofs, record))
        del model, oracle
        _free(self.device)

    def _proven(self, engine: str, model: str) -> bool:
        return any(p.engine == engine and p.model == model for p in self.report.proofs)

    def _run_batch(
        self, name: str, model: GPT2, batch: int, prompt_tokens: int, contestants: dict[str, Contestant | str]
    ) -> None:
        """All engines at one batch size and prompt length, taking turns."""
        prompts = _prompts(batch, prompt_tokens, model.config.vocab_size, self.preset.seed)
        entrants = []
        for engine in self.preset.engines:
            case = Case(
                model=name, engine=engine, batch=batch, prompt_tokens=prompt_tokens,
                new_tokens=self.preset.new_tokens_of(engine),
            )  # fmt: skip
            if any(result.case == case for result in self.report.results):
                continue
            entrant = self._enter(case, model, prompts, contestants)
            if isinstance(entrant, Result):
                self._add(entrant)
            else:
                entrants.append(entrant)
        self._take_turns(entrants, prompts)
        for entrant in entrants:
            self._add(entrant.failure or self._result(entrant, model, prompts))

    def _enter(
        self, case: Case, model: GPT2, prompts: Tensor, contestants: dict[str, Contestant | str]
    ) -> Entrant | Result:
        """Make the contestant and warm it up; a Result where the case cannot be run."""
        if (seconds := self._expected(case)) > self.preset.case_budget_s:
            expected = "a smaller batch was over it" if seconds == float("inf") else f"about {seconds:.3g} s expected"
            limit = f"{self.preset.case_budget_s:g} s a run"
            return Result(case=case, status="over budget", reason=f"{expected}, the budget is {limit}")
        start = time.perf_counter()
        known = contestants.get(case.engine)
        try:
            if known is None:
                known = make(case.engine, model, max(self.preset.prompt_tokens) + self.preset.new_tokens)
        except Missing as error:
            known = str(error)
        contestants[case.engine] = known
        if isinstance(known, str):
            return Result(case=case, status="missing", reason=known)
        entrant = Entrant(case, known, make_s=time.perf_counter() - start)
        for new_tokens in (case.new_tokens, 1, case.new_tokens):
            self._time(entrant, prompts, new_tokens)
            if entrant.failure is not None:
                return entrant.failure
            entrant.first_s = entrant.first_s or time.perf_counter() - start - entrant.make_s
        return entrant

    def _expected(self, case: Case) -> float:
        """Seconds that a run may take: a straight line through the two largest batches measured so far."""
        same = {"model": case.model, "engine": case.engine, "prompt_tokens": case.prompt_tokens}
        before = sorted((r for r in self.report.find(**same) if r.case.batch < case.batch), key=lambda r: r.case.batch)
        if before and before[-1].status in ("over budget", "out of memory"):
            return float("inf")
        points = [(r.case.batch, r.generate_s.median) for r in before if r.generate_s is not None][-2:]
        if not points:
            return 0.0
        batch, seconds = points[-1]
        if len(points) == 1:
            return seconds  # as good as nothing is known: a device that is not full takes the same time for more rows
        slope = max(0.0, (seconds - points[0][1]) / (batch - points[0][0]))
        return seconds + slope * (case.batch - batch)

    def _take_turns(self, entrants: list[Entrant], prompts: Tensor) -> None:
        """Every entrant once, then every entrant once more, and so on."""
        for _ in range(self.preset.repeats):
            for entrant in entrants:
                if entrant.failure is None:
                    self.clocks.sample()
                    compiled = compiled_graphs()
                    entrant.generate_s += self._time(entrant, prompts, entrant.case.new_tokens)
                    entrant.ttft_s += self._time(entrant, prompts, 1)
                    entrant.compiles += compiled_graphs() - compiled
                    self.clocks.sample()

    def _time(self, entrant: Entrant, prompts: Tensor, new_tokens: int) -> list[float]:
        synchronize(self.device)
        start = time.perf_counter()
        rows = _attempt(entrant, partial(entrant.contestant.generate, prompts, new_tokens))
        synchronize(self.device)
        seconds = time.perf_counter() - start
        if rows is None:
            return []
        if [len(row) for row in rows] != [new_tokens] * len(prompts):
            raise AssertionError(f"{entrant.case.engine} gave {sum(map(len, rows))} tokens, not {new_tokens} a row")
        return [seconds]

    def _result(self, entrant: Entrant, model: GPT2, prompts: Tensor) -> Result:
        case = entrant.case
        generate, ttft = Spread.of(entrant.generate_s), Spread.of(entrant.ttft_s)
        _free(self.device)
        before = memory_now(self.device)
        steps = sorted(entrant.contestant.step_times(prompts, case.new_tokens))
        peak = memory_peak(self.device)
        step_s = (generate.median - ttft.median) / (case.new_tokens - 1)
        itemsize = self.dtype.itemsize
        mean_context = case.prompt_tokens + case.new_tokens / 2
        floor = floor_seconds(model.config, itemsize, case.batch, mean_context, self.report.copy_bytes_per_s)
        weights = sum(p.numel() for p in model.parameters()) * itemsize
        in_cache = weights * IN_CACHE < (self.report.machine.l2_bytes or 0)
        return Result(
            case=case,
            status="ok",
            generate_s=generate,
            ttft_s=ttft,
            itl_s=Spread(median=quantile(steps, 0.5), p10=quantile(steps, 0.1), p90=quantile(steps, 0.9), samples=()),
            itl_p99_s=quantile(steps, 0.99),
            tokens=case.batch * case.new_tokens,
            tokens_per_s=case.batch / step_s,
            floor_share=None if in_cache else floor / step_s,
            make_s=entrant.make_s,
            first_s=entrant.first_s,
            compiles=entrant.compiles,
            launches_per_step=self._launches(entrant, prompts),
            memory_before=before,
            memory_peak=peak,
            clocks=self.clocks.take(),
        )

    def _launches(self, entrant: Entrant, prompts: Tensor) -> float | None:
        """Kernels a decode step: of five tokens, less those of one."""
        if self.device.type != "cuda":
            return None
        many, one = (launches(partial(entrant.contestant.generate, prompts, n)) for n in (5, 1))
        return (many - one) / 4

    def _floors(self, config: ModelConfig, name: str) -> None:
        """The bandwidth floor of each batch, said before anything is measured."""
        for prompt_tokens in self.preset.prompt_tokens:
            context = prompt_tokens + self.preset.new_tokens / 2
            steps = [
                (batch, floor_seconds(config, self.dtype.itemsize, batch, context, self.report.copy_bytes_per_s))
                for batch in self.preset.batches
            ]
            floors = ", ".join(f"{batch / step:,.0f} at B={batch}" for batch, step in steps)
            self.say(f"{name}: bandwidth floor at a mean context of {context:.0f}, tokens/s: {floors}")

    def _add(self, result: Result) -> None:
        case = result.case
        line = f"{case.model} B={case.batch:<4} {case.engine:28}"
        if result.status == "ok" and result.generate_s and result.ttft_s and result.tokens_per_s:
            spread = (result.generate_s.p90 - result.generate_s.p10) / result.generate_s.median
            share = f"{result.floor_share:6.1%} of floor" if result.floor_share is not None else "in cache"
            ttft = result.ttft_s.median * 1e3
            self.say(f"{line} {result.tokens_per_s:10,.0f} tok/s  TTFT {ttft:8.2f} ms  {share}  spread {spread:.1%}")
            if result.compiles:
                self.say(f"{line} compiled {result.compiles} graphs within the timed runs: not to be believed")
        else:
            self.say(f"{line} {result.status}: {result.reason}")
        self._save(results=(*self.report.results, result))

    def _save(self, **changed: object) -> None:
        self.report = self.report.model_copy(update=changed)
        self.report.save(self.path)


def _attempt(entrant: Entrant, run: Callable[[], list[list[int]]]) -> list[list[int]] | None:
    """What `run` gives; where it fails, the failure is recorded and the others go on."""
    try:
        return run()
    except torch.OutOfMemoryError:
        entrant.failure = Result(case=entrant.case, status="out of memory", reason="the device's memory was full")
        gc.collect()
        torch.cuda.empty_cache()
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        entrant.failure = Result(case=entrant.case, status="failed", reason=reason)
    return None


def _prompts(batch: int, length: int, vocab_size: int, seed: int) -> Tensor:
    """Random prompts (B, T) int64 on the host: never zeros, which run faster than data does."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (batch, length), generator=generator)


def _free(device: torch.device) -> None:
    """Give back what nobody holds, and begin a new peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
