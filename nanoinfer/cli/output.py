"""What comes of prompts: texts as they are generated, one JSON object a prompt, a line of figures.

The JSON is described by `nanoinfer/data/generate.schema.json`; a change that breaks readers raises SCHEMA_VERSION.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from nanoinfer.cli.errors import Stopped
from nanoinfer.cli.terminal import colours, is_terminal, progress_bar, remark, write
from nanoinfer.engine.stats import Stats
from nanoinfer.llm import LLM
from nanoinfer.requests import Completion, Piece

SCHEMA, SCHEMA_VERSION = "nanoinfer.generate", 1
Record = Callable[[Completion], str]


class Writer:
    """Writes texts in the order of their prompts: the first that is not over as it comes, while the others wait.

    echo: each prompt before its text. record: makes a line of JSON of a completion, which is written in place of texts.
    progress: show a bar, unless texts show it on the same terminal. Make it ahead of the pieces: what it imports would
    be part of their TTFT.
    """

    def __init__(
        self, prompts: Sequence[str], echo: bool = True, record: Record | None = None, progress: bool = False
    ) -> None:
        heading = "==> {} <==\n" * (len(prompts) > 1)
        self.record, self.bar = record, progress_bar(len(prompts), progress and not is_terminal(sys.stdout))
        self.texts = [heading.format(i) + prompt * echo for i, prompt in enumerate(prompts, 1)]  # to be written
        self.done: dict[int, Completion] = {}
        self.begun = {0}
        self.token_ids: list[int] = []  # of all texts, as they came
        self.written = 0  # prompts whose texts are

    def run(self, pieces: Generator[Piece, None, None]) -> list[Completion]:
        """Write what comes; returns the completions in order.

        However it ends, what there is has been written. Raises Stopped at Ctrl-C, which says how far it got.
        """
        try:
            with closing(pieces), self.bar:
                self._write()
                for piece in pieces:
                    self._take(piece)
        except KeyboardInterrupt:
            prompts, tokens = len(self.texts), len(self.token_ids)
            one = f"{tokens} token{'s' * (tokens != 1)}"
            how_far = f"{len(self.done)} of {prompts} prompts are finished" if prompts > 1 else one
            raise Stopped(f"stopped by Ctrl-C: {how_far}") from None
        finally:
            for index in range(self.written, len(self.texts)):
                if index in self.done or (index in self.begun and self.record is None):
                    write(self._line(index))
        return [self.done[index] for index in range(len(self.texts))]

    def _take(self, piece: Piece) -> None:
        self.begun.add(piece.index)
        self.token_ids += piece.token_ids
        self.texts[piece.index] += piece.text
        if piece.completion is not None:
            self.done[piece.index] = piece.completion
            self.bar.update(1)
        self._write()

    def _write(self) -> None:
        """Write all that waits for nothing: texts that are over, and the next one as far as it has come."""
        while self.written in self.done:
            write(self._line(self.written))
            self.written += 1
        if self.record is None and self.written < len(self.texts) and self.texts[self.written]:
            write(self.texts[self.written])
            self.texts[self.written] = ""

    def _line(self, index: int) -> str:
        return f"{self.texts[index]}\n" if self.record is None else self.record(self.done[index])


def write_steps(prompt: str, pieces: Iterable[Piece]) -> list[Completion]:
    """Write one text when it is done, its steps in two alternating colours, or with a | ahead of each.

    The tokens of one step have come at one time.
    """
    pieces, step = list(pieces), 0
    done = pieces[-1].completion
    assert done
    write(prompt)
    for piece, wait in zip(pieces, [1.0, *done.metrics.itl_s], strict=True):
        step += wait > 0
        mark = "|" * (wait > 0 and not colours())
        write(mark + piece.text, ("cyan", "yellow")[step % 2])
    write("\n")
    return [done]


def where(llm: LLM) -> dict[str, str]:
    """Engine, device and dtype by name."""
    return {"engine": llm.engine, "device": llm.facts.device, "dtype": llm.facts.dtype}


def json_line(done: Completion, prompts: Sequence[str], llm: LLM) -> str:
    """One completion as one line of JSON, in ASCII: no terminal and no locale can spoil it."""
    record: dict[str, Any] = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "prompt": prompts[done.index]}
    record |= asdict(done) | {"model": llm.facts.model, **where(llm)}
    for unasked in ("sample", "logprobs", "prompt_logprobs"):  # no option asks for these
        del record[unasked]
    record["metrics"] |= {name: getattr(done.metrics, name) for name in ("total_s", "decode_tokens_per_s")}
    return json.dumps(record, allow_nan=False) + "\n"


def figures(done: Sequence[Completion], llm: LLM, greedy: bool, before: Stats | None = None) -> str:
    """One line about everything that was generated by one call. before: the counters ahead of it, if not 0."""
    tokens, times = sum(len(each.token_ids) for each in done), [each.metrics for each in done]
    ttft, waits = [1000 * each.ttft_s for each in times], [wait for each in times for wait in each.itl_s]
    seeds = f"seed {done[0].seed}"
    if len(done) > 1:
        rate, seeds = tokens / max(each.total_s for each in times), f"seeds {done[0].seed} to {done[-1].seed}"
        parts = [
            f"{len(done)} prompts, TTFT {min(ttft):.1f} to {max(ttft):.1f} ms, {rate:.1f} tokens/s, {tokens} tokens"
        ]
    else:
        after = f"{times[0].decode_tokens_per_s:.1f} tokens/s after it, " * bool(waits)
        parts = [f"TTFT {ttft[0]:.1f} ms, {after}{tokens} token{'s' * (tokens != 1)} ({done[0].finish_reason})"]
    if llm.config.speculate is not None:
        before = before or Stats()
        accepted = llm.stats.accepted_tokens - before.accepted_tokens
        parts.append(f"{accepted} of {llm.stats.draft_tokens - before.draft_tokens} drafts accepted")
        if any(waits):  # 0 between tokens of one step
            parts.append(f"{len(waits) / sum(wait > 0 for wait in waits):.2f} tokens a step")
    parts += ["engine {engine} on {device} in {dtype}".format(**where(llm)), seeds + " (greedy, so unused)" * greedy]
    return ", ".join(parts)


def show_stats(llm: LLM) -> None:
    """The LLM's counters, one a line, on standard error."""
    counters = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(llm.stats).items()}
    shares = [name for name in ("hit_rate", "padding_share") if hasattr(llm.stats, name)]  # of engines with graphs
    counters |= {name: f"{getattr(llm.stats, name):.1%}" for name in shares}
    for name, value in counters.items():
        remark(f"{name:<{max(map(len, counters))}}  {value}")
