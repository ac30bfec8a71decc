"""Measure systems against each other: correctness first, then time, with the systems taking turns.

Each timed run is a whole `generate`, prompts in and tokens out, on the host's clock; then the same for one new token
(TTFT). Decode speed comes from the difference of the two medians. Systems take turns (A B C A B C ...), so that a
machine that slows down slows all of them. Tokens are counted again from what came back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from nanobench.core.case_runner import (
    CaseRunner,
    Prepared,
    counters,
    prepare,
    random_prompts,
    release_memory,
)
from nanobench.core.compile_counter import TritonLog, torch_graphs, torch_seconds
from nanobench.core.estimate import (
    OVERHEAD_S,
    case_seconds,
    earlier_results,
    in_words,
    largest_batch,
    run_seconds,
)
from nanobench.core.machine import ClockLog, copy_bandwidth, import_seconds, memory_now, stamp
from nanobench.core.outcome import outcome, summary
from nanobench.core.presets import Preset, limit_seconds
from nanobench.core.records import RESULTS, Case, Report, Result, Turns, Unfinished
from nanobench.core.timing import synchronize
from nanobench.core.token_check import check_tokens, is_ours
from nanobench.systems.base import Limits
from nanoinfer.capacity import free_memory
from nanoinfer.config import EngineConfig
from nanoinfer.devices import choose_device, choose_dtype
from nanoinfer.model.config import PRESETS, ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.hub import HUB_NAMES
from nanoinfer.model.weights import load_model, model_config

Say = Callable[[str], None]
Progress = Callable[[float, str], object]  # the share of the work that is done, and what is left in words


class Benchmark:
    """One preset on one device, written to `path` as it goes; a run that was interrupted goes on where it was."""

    def __init__(
        self,
        preset: Preset,
        device: str | None,
        path: Path,
        say: Say = print,
        progress: Progress = lambda share, left: None,
    ) -> None:
        self.preset, self.path, self.say, self._progress = preset, path, say, progress
        EngineConfig(device=device, dtype=preset.dtype)  # ValueError for what is no device or dtype
        for name in preset.models:
            shape = PRESETS[name] if name in HUB_NAMES else model_config(name)  # which fetches weights from the hub
            if preset.max_len > (context := shape.n_positions):
                asked = f"prompt_tokens and new_tokens come to {preset.max_len}"
                raise ValueError(f"{asked}, and {name} has a context of {context}")
        self.device = choose_device(device)
        self.dtype = choose_dtype(preset.dtype, self.device)
        self.clocks = ClockLog(self.device)
        self.triton = TritonLog()
        self._stamp = {"preset": preset.name, "seed": preset.seed, **stamp(self.device, self.dtype)}
        self._settings = {name: str(value) for name, value in asdict(preset).items()}
        self._turns: dict[Case, Turns] = {}  # of the cases that are not finished
        self._guide = earlier_results(self._stamp["machine"], preset, RESULTS, path.parent)
        self._report = self._resume()
        self._weights: dict[Case, float] = {}  # seconds that are expected of this run's cases
        self._shares: dict[Case, float] = {}  # how much of them is done

    @property
    def report(self) -> Report:
        """What is measured so far, beginning with the machine's own limits."""
        if self._report is None:
            self._report = Report(
                repeats=self.preset.repeats,
                copy_bytes_per_s=copy_bandwidth(self.device),
                import_s=import_seconds(),
                **self._stamp,
            )
        return self._report

    def _resume(self) -> Report | None:
        """The report at `path`. ValueError where its numbers would not be of one run with those to come."""
        if not self.path.is_file():
            return None
        old = Report.load(self.path)
        other = [name for name, value in self._stamp.items() if name != "date" and getattr(old, name) != value]
        if other:
            raise ValueError(f"{self.path} is of another {' and '.join(other)}: move it away, or name another file")
        if old.unfinished is not None:
            if other := sorted(f"{k} {v}" for k, v in old.unfinished.settings.items() - self._settings.items()):
                what = f"{self.path} has cases half measured with {', '.join(other)}"
                raise ValueError(f"{what}: finish them first, or name another file")
            self._turns = {turns.case: turns for turns in old.unfinished.turns}
        return old

    def expect(self) -> str:
        """What is left to measure, and how long it will take, in words."""
        known = [seconds for seconds in self._expected().values() if seconds is not None]
        cases, guide = len(self._left()), f", by {self._guide[0]}" if self._guide[0] and known else ""
        return in_words(cases, sum(known), cases - len(known)) + guide

    def _expected(self) -> dict[Case, float | None]:
        """Seconds of each case that is left, by an earlier file or the results so far; None where nothing is known."""
        known = self._guide[1] or (self._report.results if self._report else ())
        return {case: case_seconds(case, self.preset, known) for case in self._left()}

    def _worked(self, case: Case, share: float) -> None:
        """Tell which share of this run's work is done, once so much of a case is. Work is in expected seconds."""
        self._shares[case] = share
        done = sum(self._weights[case] * share for case, share in self._shares.items())
        self._progress(done / sum(self._weights.values()), f"{len(self._left())} cases left")

    def run(self) -> Report:
        """Measure everything that is not measured yet."""
        if self._report is not None:
            runs = sum(len(turns.ttft_s) for turns in self._turns.values())
            more = f" and {runs} timed runs of {len(self._turns)} more" if runs else ""
            self.say(f"going on with {self.path}: {len(self._report.results)} cases{more}")
        report = self.report
        self.say(f"{report.machine.device}, copy {report.copy_bytes_per_s / 1e9:,.0f} GB/s, {report.dtype}")
        self.say(self.expect())
        expected = self._expected()
        known = [seconds for seconds in expected.values() if seconds] or [1.0]
        self._weights = {c: sum(known) / len(known) if s is None else max(s, OVERHEAD_S) for c, s in expected.items()}
        self._compile_seconds()  # imports what it needs, before anything is timed
        with self.triton:
            for name in self.preset.models:
                if any(case.model == name for case in self._left()):
                    self._run_model(name)
        return self.report

    def _left(self) -> list[Case]:
        done = {result.case for result in self._report.results} if self._report else set()
        return [case for case in self.preset.cases() if case not in done]

    def _run_model(self, name: str) -> None:
        config = model_config(name)
        self._say_limits(config, name)
        self._check_tokens(name)
        release_memory(self.device)
        before, start = memory_now(self.device), time.perf_counter()
        model = load_model(name, self.device, self.dtype, seed=self.preset.seed)
        synchronize(self.device)
        self._save(load_s={**self.report.load_s, name: time.perf_counter() - start})
        if before is not None and (after := memory_now(self.device)) is not None:
            start_of, weights_of = self.report.memory_start, self.report.memory_weights
            self._save(memory_start={**start_of, name: before}, memory_weights={**weights_of, name: after})
        limits = Limits(self.preset.max_len, largest_batch(config, self.preset, self.dtype, free_memory(self.device)))
        systems: dict[str, Prepared] = {}
        batch = 0
        cases = [case for case in self._left() if case.model == name]
        for prompt_tokens in dict.fromkeys(case.prompt_tokens for case in cases):
            for rows in dict.fromkeys(case.batch for case in cases):
                if rows != batch:
                    torch._dynamo.reset()  # or a later batch size would run code compiled for any size
                    batch = rows
                here = [case for case in cases if (case.prompt_tokens, case.batch) == (prompt_tokens, rows)]
                self._run_batch(here, model, limits, systems)
        del model, systems
        release_memory(self.device)

    def _check_tokens(self, name: str) -> None:
        """Check the tokens of each of our engines before anything is timed."""
        checked = {check.engine for check in self.report.proofs if check.model == name}
        engines = [engine for engine in self.preset.engines if is_ours(engine) and engine not in checked]
        for check in check_tokens(name, engines, self.device):
            self.say(f"{name} {check.engine}: {check.tokens} tokens equal to naive's, {check.near_ties} near-ties")
            self._save(proofs=(*self.report.proofs, check))

    def _run_batch(self, cases: list[Case], model: GPT2, limits: Limits, systems: dict[str, Prepared]) -> None:
        """All systems at one batch size and prompt length, taking turns."""
        if not cases:
            return
        first = cases[0]
        prompts = random_prompts(first.batch, first.prompt_tokens, model.config.vocab_size, self.preset.seed)
        runners = []
        for case in cases:
            runner = self._start_case(case, model, prompts, limits, systems)
            if isinstance(runner, Result):
                self._add(runner)
            else:
                runners.append(runner)
        for turn in range(self.preset.repeats):
            for runner in runners:
                due = (turn + 1) * runner.repeats // self.preset.repeats  # slow cases have fewer, spread over all turns
                if runner.failure is None and len(runner.ttft_s) < due:
                    self._turn(runner, prompts)
        for runner in runners:
            self._add(runner.failure or outcome(runner, model, prompts, self.report, self.clocks))

    def _start_case(
        self, case: Case, model: GPT2, prompts: Tensor, limits: Limits, systems: dict[str, Prepared]
    ) -> CaseRunner | Result:
        """Make the system, unless it exists, and warm it up; a Result where the case cannot be run."""
        if over := self._over(case, model.config, limits):
            return Result(case=case, status="over budget", reason=over)
        if case.engine not in systems:
            systems[case.engine] = prepare(case.engine, model, limits, self._compile_seconds)
        known = systems[case.engine]
        if known.system is None:
            return Result(case=case, **known.facts)
        runner = CaseRunner(case, known)
        compiled = self._compile_seconds()
        for new_tokens in (case.new_tokens, 1, case.new_tokens):
            seconds = runner.time(prompts, new_tokens, self.device)
            if runner.failure is not None:
                return runner.failure
            runner.first_s = runner.first_s or seconds[0]
        runner.compile_s = self._compile_seconds() - compiled + known.compile_s
        runner.repeats = self.preset.repeats_of(seconds[0])
        runner.counted = counters(runner.system)
        if (earlier := self._turns.get(case)) is not None:
            runner.generate_s, runner.ttft_s = [*earlier.generate_s], [*earlier.ttft_s]
            runner.compiles = earlier.compiles
        return runner

    def _over(self, case: Case, config: ModelConfig, limits: Limits) -> str:
        """Why a case is beyond its budget of memory or time; empty where it is within."""
        if case.batch > limits.max_batch:
            numbers = case.batch * self.preset.max_len * config.kv_numbers
            return f"its keys and values alone take {numbers * self.dtype.itemsize / 1e9:.3g} GB a cache"
        if (seconds := run_seconds(case, self.report.results)) <= self.preset.case_budget_s:
            return ""
        expected = "a smaller batch was over it" if seconds == float("inf") else f"about {seconds:.3g} s expected"
        return f"{expected}, the budget is {self.preset.case_budget_s:g} s a run"

    def _turn(self, runner: CaseRunner, prompts: Tensor) -> None:
        """One timed run, saved: an interruption loses no other."""
        self.clocks.sample()
        compiled = self._compiles()
        runner.take_turn(prompts, self.device)
        runner.compiles += self._compiles() - compiled
        self.clocks.sample()
        self._worked(runner.case, (3 + len(runner.ttft_s)) / (4 + runner.repeats))  # three runs warmed up
        if runner.failure is None:
            self._turns[runner.case] = runner.turns()
            self._save()

    def _compiles(self) -> int:
        return torch_graphs() + self.triton.kernels.total()

    def _compile_seconds(self) -> float:
        return torch_seconds() + self.triton.seconds

    def _say_limits(self, config: ModelConfig, name: str) -> None:
        """Print the bandwidth limit of each batch, before anything is measured."""
        for prompt_tokens in self.preset.prompt_tokens:
            context = prompt_tokens + self.preset.new_tokens / 2
            steps = [
                (batch, limit_seconds(config, self.dtype.itemsize, batch, context, self.report.copy_bytes_per_s))
                for batch in self.preset.batches
            ]
            limits = ", ".join(f"{batch / step:,.0f} at B={batch}" for batch, step in steps)
            self.say(f"{name}: bandwidth limit at a mean context of {context:.0f}, tokens/s: {limits}")

    def _add(self, result: Result) -> None:
        self.say(summary(result))
        self._turns.pop(result.case, None)
        self._save(results=(*self.report.results, result))
        self._worked(result.case, 1.0)

    def _save(self, **changed: object) -> None:
        turns = tuple(self._turns.values())
        unfinished = Unfinished(settings=self._settings, turns=turns) if turns else None
        self._report = self.report.add(self.path, **changed, unfinished=unfinished)
