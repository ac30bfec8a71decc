"""What the engine's thread notes of each step for those who watch. Chapter 5.

The facts of a step are numbers alone, so they may go to another process: the state of all that the step touched.
`nanoinfer.serve.events` compares it there with the state before, and makes records, texts and JSON of the difference.
"""

from __future__ import annotations

import logging
import time
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nanoinfer.engine.queue import Queued, QueueEngine

    Facts = dict[str, Any]

QUEUE = 64  # waiting sequences that are listed; the others are counted
PROMPT = 256  # tokens of a prompt at most whose text is shown
RUN = 65  # tokens that one step brings a sequence at most: 64 drafts and one more
ARRIVED = attrgetter("arrived")


class Recorder:
    """Watches an engine, which tells it of each event in its thread, and posts the facts of each step.

    The first facts hold the whole state. A sequence is known by the number of its arrival. Blocks are counted from 1,
    whether or not there is a null block.
    post: called in the engine's thread. texts: whether facts have token ids.
    """

    def __init__(self, engine: QueueEngine, post: Callable[[Facts], object], texts: bool = False) -> None:
        self.engine, self.post, self.texts = engine, post, texts
        self._steps, self._blocks = 0, engine.blocks
        cache: Any = engine.cache
        self._first = engine.blocks.blocks + 1 - cache.k.shape[1] if engine.blocks else 0  # added to a block's number
        self._left: list[tuple[int, bool, list[int]]] = []
        self._ended: list[tuple[int, str]] = []

    def left(self, s: Queued) -> None:
        """A sequence is about to give its row back: note its blocks, and whether it was preempted."""
        self._left.append((s.arrived, not (s.decoding or s.ended), self._owned(s)))

    def ended(self, s: Queued) -> None:
        """Nothing more comes of a sequence: note why. One that was cancelled before it was taken in has no number."""
        if s.arrived >= 0:
            self._ended.append((s.arrived, s.finish_reason or "cancelled"))

    def stepped(self, settled: Sequence[Any]) -> None:
        """A step is over, in which these got a token: post its facts. If that fails, the engine goes on unwatched."""
        waiting = self.engine.waiting
        facts = {
            "step": self._steps,
            "time": time.perf_counter(),
            "in_flight": len(getattr(self.engine, "in_flight", ())),
            "waiting": {"count": len(waiting), "ids": [*map(ARRIVED, islice(waiting, QUEUE))]},
        }
        try:
            self.post(facts | (self._step(settled) if self._steps else self._state()))
        except Exception:
            logging.getLogger(__name__).exception("watching the engine has failed, and ends")
            self.engine.observer = None
        self._steps, self._left, self._ended = self._steps + 1, [], []

    def _state(self) -> Facts:
        """Return the whole state. The facts of all later steps build on it."""
        engine: Any = self.engine
        blocks, begun = self._blocks, [s for s in engine.open if s.began]  # in order of arrival
        return {
            "engine": {
                "max_batch": len(engine.free) + len(engine.running),
                "max_batched_tokens": engine.budget,
                "lag": getattr(engine, "lag", 0),
                "mixed": engine.mixed,
                "preemption": engine.preempts,
                "sharing": bool(blocks) and blocks.identity is not None,
                "blocks": blocks.blocks if blocks else 0,
                "block_size": blocks.block_size if blocks else 0,
            },
            "rows": [(s.cached, self._owned(s), *self._facts_of(s)) for s in begun if s.row >= 0 or s.decoding],
            "out": [self._facts_of(s) for s in begun if s.row < 0 and not s.decoding],  # preempted
            "kept": [block + self._first for block in blocks.idle] if blocks else [],
        }

    def _step(self, settled: Sequence[Queued]) -> Facts:
        """Return the state of all that the step touched.

        chunks: where each starts, its length, and whose it is. settled: number, tokens and fed tokens of each sequence
        that got any. left: number, whether it was preempted, and its blocks. tables: of those whose table may have
        grown. kept: blocks that were given back, and stay known by their text; idle counts all of these.
        """
        fed: Any = self.engine.fed
        decoded, blocks = self.engine.decoded, self._blocks
        facts: Facts = {
            "decode": [s.arrived for s, _, _ in fed[:decoded]],
            "chunks": [
                (start, count, *self._facts_of(s, start + count if s.decoding else len(s.tokens)))
                for s, start, count in fed[decoded:]
            ],
            "settled": [(s.arrived, len(s.tokens), s.cached) for s in settled],
            "left": self._left,
            "ended": self._ended,
        }
        if self.texts:
            facts["token_ids"] = [s.tokens[-RUN:] for s in settled]
        if blocks:
            size, first, idle = blocks.block_size, self._first, blocks.idle
            grown = [s for s, start, _ in fed if s.row >= 0 and len(blocks.owned[s.row]) > -(-start // size)]
            facts["tables"] = [(s.arrived, self._owned(s)) for s in grown]
            given = {block for _, _, owned in self._left for block in owned}
            facts["kept"], facts["idle"] = [block for block in given if block - first in idle], len(idle)
        return facts

    def _owned(self, s: Queued) -> list[int]:
        return [block + self._first for block in self._blocks.owned[s.row]] if self._blocks and s.row >= 0 else []

    def _facts_of(self, s: Queued, length: int | None = None) -> tuple[int, int, int, float, list[int]]:
        """Return its number, the length of its prompt, its new tokens, when the newest came, and text to be shown.

        length: how many tokens it had before the step. Without a new one, the time is that of the request.
        """
        prompt, length = len(s.request.prompt_token_ids), length or len(s.tokens)
        since = s.times[length - prompt - 1] if length > prompt else s.asked
        return s.arrived, prompt, length - prompt, since, s.tokens[: min(prompt, PROMPT)] if self.texts else []
