"""Measure engines against each other: correctness first, then time, in an order that alternates the engines.

Each timed run is a whole `generate`, prompts in and tokens out, on the host's clock; then the same for one new token
(TTFT). Decode speed is the difference of the two medians. Engines take turns (A B C A B C ...), so that a machine that
slows down slows all of them. Tokens are recounted from what came back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import Tensor

from nanobench.core.case_runner import Entrant, Made, counters, free, made, random_prompts, takes_turn
from nanobench.core.compile_counter import TritonLog, torch_graphs, torch_seconds
from nanobench.core.estimate import earlier, fitting, in_words, plan, run_seconds
from nanobench.core.machine import ClockLog, commit, copy_bandwidth, describe, import_seconds, memory_now, synchronize
from nanobench.core.model_shapes import load_config
from nanobench.core.outcome import line, outcome
from nanobench.core.presets import Preset, floor_seconds
from nanobench.core.records import RESULTS, Case, Report, Result
from nanobench.core.token_check import proofs, provable
from nanobench.systems import Limits
from nanoinfer.devices import choose_device, choose_dtype, free_memory
from nanoinfer.llm import check_arguments
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import load_model

Say = Callable[[str], None]
Progress = Callable[[int, int, str], None]  # cases done, cases in all, what is left in words


class Benchmark:
    """One preset on one device, written to `path` as it goes; a run that was interrupted goes on where it was."""

    def __init__(
        self, preset: Preset, device: str | None, path: Path, say: Say = print, progress: Progress | None = None
    ) -> None:
        self.preset, self.path, self.say = preset, path, say
        self._progress = progress or (lambda done, total, left: say(f"{done} of {total} cases done; {left}"))
        check_arguments("auto", device, preset.dtype, 1, None, None)
        self.device = choose_device(device)
        self.dtype = choose_dtype(preset.dtype, self.device)
        self.clocks = ClockLog(self.device)
        self.triton = TritonLog()
        self._guide = earlier(describe(self.device).device, preset, RESULTS)
        self._report = self._resume()

    @property
    def report(self) -> Report:
        """What is measured so far; the machine's own limits, first of all."""
        if self._report is None:
            self._report = Report(
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
        return self._report

    def _resume(self) -> Report | None:
        """The report at `path`, where it is of this preset, commit and machine."""
        if not self.path.is_file():
            return None
        old = Report.load(self.path)
        same = (old.preset, old.commit, old.machine) == (self.preset.name, commit(), describe(self.device))
        if not same:
            raise ValueError(f"{self.path} is of another preset, commit or machine: move it away, or name another file")
        return old

    def expect(self) -> str:
        """What is left to do, and for how long, in words."""
        name, known = self._guide
        cases, seconds, unknown = plan(self.preset, self._report.results if self._report else (), known)
        guide = f", by {name}" if name and unknown < cases else ""
        return in_words(cases, seconds, unknown) + guide

    def run(self) -> Report:
        """Measure all that is not measured yet."""
        report = self.report
        self.say(f"{report.machine.device}, copy {report.copy_bytes_per_s / 1e9:,.0f} GB/s, {report.dtype}")
        self.say(self.expect())
        self._compile_seconds()  # imports what it needs, before anything is timed
        with self.triton:
            for name in self.preset.models:
                if any(case.model == name for case in self._left()):
                    self._run_model(name)
        return self.report

    def _left(self) -> list[Case]:
        done = {result.case for result in self.report.results}
        return [case for case in self.preset.cases() if case not in done]

    def _run_model(self, name: str) -> None:
        config = load_config(name)
        self._floors(config, name)
        self._prove(name)
        free(self.device)
        before, start = memory_now(self.device), time.perf_counter()
        model = load_model(name, self.device, self.dtype, seed=self.preset.seed)
        synchronize(self.device)
        self._save(load_s={**self.report.load_s, name: time.perf_counter() - start})
        if before is not None and (after := memory_now(self.device)) is not None:
            start_of, weights_of = self.report.memory_start, self.report.memory_weights
            self._save(memory_start={**start_of, name: before}, memory_weights={**weights_of, name: after})
        limits = Limits(self.preset.max_len, fitting(config, self.preset, self.dtype, free_memory(self.device)))
        contestants: dict[str, Made] = {}
        batch = 0
        cases = [case for case in self._left() if case.model == name]
        for prompt_tokens in dict.fromkeys(case.prompt_tokens for case in cases):
            for rows in dict.fromkeys(case.batch for case in cases):
                if rows != batch:
                    torch._dynamo.reset()  # code for one batch size each: a later one must not run code made for any
                    batch = rows
                here = [case for case in cases if (case.prompt_tokens, case.batch) == (prompt_tokens, rows)]
                self._run_batch(here, model, limits, contestants)
        del model, contestants
        free(self.device)

    def _prove(self, name: str) -> None:
        """Each of our engines proves its tokens before any time is believed."""
        proven = {proof.engine for proof in self.report.proofs if proof.model == name}
        engines = [engine for engine in self.preset.engines if provable(engine) and engine not in proven]
        for proof in proofs(name, engines, self.device):
            self.say(f"{name} {proof.engine}: {proof.tokens} tokens equal to naive's, {proof.near_ties} near-ties")
            self._save(proofs=(*self.report.proofs, proof))

    def _run_batch(self, cases: list[Case], model: GPT2, limits: Limits, contestants: dict[str, Made]) -> None:
        """All engines at one batch size and prompt length, taking turns."""
        if not cases:
            return
        first = cases[0]
        prompts = random_prompts(first.batch, first.prompt_tokens, model.config.vocab_size, self.preset.seed)
        entrants = []
        for case in cases:
            entrant = self._enter(case, model, prompts, limits, contestants)
            if isinstance(entrant, Result):
                self._add(entrant)
            else:
                entrants.append(entrant)
        for turn in range(self.preset.repeats):
            for entrant in entrants:
                if entrant.failure is None and takes_turn(turn, entrant.repeats, self.preset.repeats):
                    self._turn(entrant, prompts)
        for entrant in entrants:
            self._add(entrant.failure or outcome(entrant, model, prompts, self.report, self.clocks))
        done, total = len(self.report.results), len(self.preset.cases())
        if done < total:
            self._progress(done, total, self.expect())

    def _enter(
        self, case: Case, model: GPT2, prompts: Tensor, limits: Limits, contestants: dict[str, Made]
    ) -> Entrant | Result:
        """Make the contestant and warm it up; a Result where the case cannot be run."""
        if over := self._over(case, model.config, limits):
            return Result(case=case, status="over budget", reason=over)
        known = contestants.get(case.engine)
        if known is None:
            known = contestants[case.engine] = made(case.engine, model, limits, self._compile_seconds)
        if known.contestant is None:
            return Result(case=case, status=known.status, reason=known.reason)
        entrant = Entrant(case, known)
        compiled = self._compile_seconds()
        for new_tokens in (case.new_tokens, 1, case.new_tokens):
            seconds = entrant.time(prompts, new_tokens, self.device)
            if entrant.failure is not None:
                return entrant.failure
            entrant.first_s = entrant.first_s or seconds[0]
        entrant.compile_s = self._compile_seconds() - compiled + known.compile_s
        entrant.repeats = self.preset.repeats_of(seconds[0])
        entrant.counted = counters(entrant.contestant)
        return entrant

    def _over(self, case: Case, config: ModelConfig, limits: Limits) -> str:
        """Why a case is beyond its budget of memory or time; empty where it is not."""
        if case.batch > limits.max_batch:
            numbers = case.batch * self.preset.max_len * config.kv_numbers
            return f"its keys and values alone take {numbers * self.dtype.itemsize / 1e9:.3g} GB a cache"
        if (seconds := run_seconds(case, self.report.results)) <= self.preset.case_budget_s:
            return ""
        expected = "a smaller batch was over it" if seconds == float("inf") else f"about {seconds:.3g} s expected"
        return f"{expected}, the budget is {self.preset.case_budget_s:g} s a run"

    def _turn(self, entrant: Entrant, prompts: Tensor) -> None:
        self.clocks.sample()
        compiled = self._compiles()
        entrant.take_turn(prompts, self.device)
        entrant.compiles += self._compiles() - compiled
        self.clocks.sample()

    def _compiles(self) -> int:
        return torch_graphs() + self.triton.kernels.total()

    def _compile_seconds(self) -> float:
        return torch_seconds() + self.triton.seconds

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
        self.say(line(result))
        self._save(results=(*self.report.results, result))

    def _save(self, **changed: object) -> None:
        self._report = self.report.model_copy(update=changed)
        self._report.save(self.path)
