"""The events that one watches: the facts of a `Recorder`, step by step, as records of `events.schema.json`. Chapter 5.

What is here runs where it holds nobody up: in a process of its own, or after a run that is recorded. It compares the
facts of each step with the state before. A watcher who comes late, or fell behind, gets that state as a keyframe.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from nanoinfer.text.stop import TextStream

if TYPE_CHECKING:
    from nanoinfer.text.tokenizer import Tokenizer

VERSION = 1
LANES = 64  # rows that are shown one by one
CELLS = 4096  # of the picture of a pool: a larger pool has several blocks a cell

Event = dict[str, Any]


@dataclass
class _Row:
    """A request that runs or was preempted. since: when its newest token came, or when it was asked for."""

    prompt: int  # tokens
    new: int
    since: float
    fed: int = 0
    lane: int | None = None  # where it is shown; None if it is only counted
    table: list[int] = field(default_factory=list)
    text: str | None = None
    stream: TextStream | None = None

    def write(self, token_ids: Iterable[int]) -> list[str]:
        """Return what each of these tokens adds to its text."""
        assert self.stream is not None
        texts = [self.stream.push(token) for token in token_ids]
        self.text = f"{self.text}{''.join(texts)}"
        return texts


class Events:
    """Turns facts into events, one a step, in order. tokenizer: None where texts are not to be shown."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._began: float | None = None
        self._step, self._time = -1, 0.0

    @property
    def known(self) -> bool:
        """Whether any facts have come, so that there may be a keyframe."""
        return self._began is not None

    def take(self, facts: Event) -> Event:
        """Return the event of these facts: a keyframe of those that hold the whole state, or what the step did."""
        if self._began is None:
            self._began = facts["time"]
        before, self._step, self._time = self._time, facts["step"], facts["time"]
        if "engine" in facts:
            self._restart(facts)
            return self.keyframe()
        return self._event(facts, before)

    def keyframe(self, skipped: int = 0) -> Event:
        """Return all that is known after the newest step. skipped: steps before it of which there is no event."""
        rows = [
            {"id": id_, "lane": row.lane, "prompt": row.prompt, "fed": row.fed, "new": row.new}
            | ({"text": row.text} if row.text is not None else {})
            for id_, row in self._rows.items()
            if row.lane is not None
        ]
        event = self._head("keyframe") | {"texts": self._tokenizer is not None, "engine": self._engine}
        event |= {"waiting": self._waiting, "rows": rows} | ({"skipped": skipped} if skipped else {})
        if hidden := len(self._rows) - len(rows):
            event["more"] = {"rows": hidden}
        if self._cell > 1:
            event["cells"] = self._picture({*self._owners, *self._kept})
        elif self._engine["blocks"]:
            tables = [[id_, row.table] for id_, row in self._rows.items() if row.table]
            event["blocks"] = {"tables": tables, "cached": sorted(self._kept)}
        return event

    def _head(self, kind: str) -> Event:
        assert self._began is not None
        return {"version": VERSION, "kind": kind, "step": self._step, "time": round(self._time - self._began, 6)}

    def _restart(self, state: Event) -> None:
        self._cell = -(-(state["engine"]["blocks"] + 1) // CELLS)  # blocks that one cell of the picture stands for
        self._engine = state["engine"] | {"lanes": LANES, "cell": self._cell}
        self._waiting = state["waiting"]
        self._lanes = list(range(LANES))
        self._owners = Counter[int]()  # how many rows own each block
        self._kept = set(state["kept"])  # blocks that no row owns, known by their text
        self._out = {row[0]: self._made(*row[1:]) for row in state["out"]}  # preempted, and waiting to begin again
        self._rows: dict[int, _Row] = {}
        for fed, table, *row in state["rows"]:
            self._begin(fed, *row)
            self._own(self._rows[row[0]], table)

    def _made(self, prompt: int, new: int, since: float, ids: Sequence[int]) -> _Row:
        if self._tokenizer is None:
            return _Row(prompt, new, since)
        text = self._tokenizer.decode(ids) + "…" * (prompt > len(ids))
        return _Row(prompt, new, since, text=text, stream=TextStream(self._tokenizer))

    def _begin(self, fed: int, id_: int, prompt: int, new: int, since: float, ids: Sequence[int]) -> Event | None:
        """Let a row run. Return how it is introduced, if it is shown."""
        self._rows[id_] = row = self._out.pop(id_, None) or self._made(prompt, new, since, ids)
        row.fed = fed
        if not self._lanes:
            return None
        row.lane = heapq.heappop(self._lanes)
        event = {"id": id_, "lane": row.lane, "prompt": prompt, "cached": fed, "new": row.new}
        return event if row.text is None else event | {"text": row.text}

    def _leave(self, id_: int) -> _Row:
        row = self._rows.pop(id_)
        if row.lane is not None:
            heapq.heappush(self._lanes, row.lane)
            row.lane = None
        return row

    def _event(self, facts: Event, before: float) -> Event:
        """Return what a step did, in the order in which a reader applies it."""
        rows, waited, chunks = self._rows, self._waiting, facts["chunks"]
        idle = not rows and not waited["count"]
        event: Event = {"in_flight": facts["in_flight"]}
        if preempted := [id_ for id_, again, _ in facts["left"] if again]:
            event["preempted"] = preempted
            self._out |= {id_: self._leave(id_) for id_ in preempted}
        new = [(start, *row) for start, _, *row in chunks if row[0] not in rows]
        if new or facts["waiting"] != waited:
            event["waiting"] = self._waiting = facts["waiting"]
        if begun := [told for row in new if (told := self._begin(*row))]:
            event["begun"] = begun
        start = max(before, min(row[4] for row in new)) if idle and new else before
        event |= self._head("step") | {"took": round(self._time - start, 6)}
        event |= self._work(chunks, facts["decode"])
        event |= self._settle(facts["settled"], facts.get("token_ids"))
        if self._engine["blocks"]:
            event |= self._move_blocks(facts)
        shown = self._out.keys() | rows.keys() | {*waited["ids"]} if facts["ended"] else ()
        if ended := sorted([id_, reason] for id_, reason in facts["ended"] if id_ in shown):
            event["ended"] = ended
        for id_ in [id_ for id_, _ in ended if not self._out.pop(id_, None) and id_ in rows]:
            self._leave(id_)
        if hidden := len(rows) - LANES + len(self._lanes):
            event["more"] = event.get("more", {}) | {"rows": hidden}
        return event

    def _work(self, chunks: Iterable[Sequence[Any]], decode: Sequence[int]) -> Event:
        """Return what the step fed the model."""
        rows, more = self._rows, Counter[str]()
        pieces: list[list[int]] = []
        for start, count, id_, *_ in chunks:
            rows[id_].fed = start + count
            if rows[id_].lane is None:
                more.update(pieces=1, tokens=count)
            else:
                pieces.append([id_, start, count])
        for id_ in decode:  # a token each; what drafts add shows once they are settled
            rows[id_].fed += 1
        shown = [id_ for id_ in decode if rows[id_].lane is not None]
        more["decode"] = len(decode) - len(shown)
        event: Event = {"pieces": pieces, "decode": shown}
        return event | ({"more": dict(+more)} if +more else {})

    def _settle(self, settled: Iterable[tuple[int, int, int]], token_ids: Sequence[Sequence[int]] | None) -> Event:
        """Return the tokens that have come, and how long each row had waited for its own.

        Where a row has been fed more than its newest token, drafts were accepted.
        """
        event: Event = {"tokens": [], "ttft": []}
        fed, texts, itl = list[list[int]](), list[str](), Counter[float]()
        for (id_, length, now_fed), newest in sorted(zip(settled, token_ids or repeat(()))):  # noqa: B905, repeat goes on
            row = self._rows.get(id_) or self._out[id_]
            count = length - row.prompt - row.new
            if not count:  # its prompt was all that it was asked for
                continue
            waited, first = round(self._time - row.since, 6), not row.new
            row.new, row.since = row.new + count, self._time
            if first:
                event["ttft"].append([id_, waited])
            else:
                itl[waited] += 1
            itl[0.0] += count - 1  # they came together
            written = row.write(newest[-count:]) if newest else []
            if row.lane is not None:
                event["tokens"] += [id_] * count
                texts += written
                if row.fed < now_fed:
                    row.fed = now_fed
                    fed.append([id_, now_fed])
        event["itl"] = [list(each) for each in (+itl).items()]
        return event | ({"fed": fed} if fed else {}) | ({"texts": texts} if token_ids is not None else {})

    def _own(self, row: _Row, blocks: list[int]) -> None:
        row.table = row.table + blocks
        self._owners.update(blocks)

    def _disown(self, row: _Row) -> list[int]:
        blocks, row.table = row.table, []
        self._owners.subtract(blocks)
        return blocks

    def _move_blocks(self, facts: Event) -> Event:
        """Return the blocks that rows gave back and took, those that stay known by their text, and those now free."""
        given, changed = list[int](), set[int]()
        for id_, _, blocks in facts["left"]:
            changed.update(blocks)
            if row := self._rows.get(id_) or self._out.get(id_):
                self._disown(row)
                given.append(id_)
        taken: list[list[Any]] = []
        for id_, table in facts["tables"]:
            row = self._rows[id_]
            if table[: len(row.table)] != row.table:  # told as if it gave all back, and took the others again
                changed.update(self._disown(row))
                given.append(id_)
            if blocks := table[len(row.table) :]:
                self._own(row, blocks)
                taken.append([id_, blocks])
                changed.update(blocks)
        kept = facts["kept"]
        after = (self._kept - changed).union(kept)
        if len(after) != facts["idle"]:  # a step failed, and all texts were forgotten that were known before
            changed |= self._kept
            after = set(kept)
        if not changed:
            return {}
        self._kept = after
        if self._cell > 1:
            return {"cells": self._picture(changed)}
        free = sorted(block for block in changed.difference(kept) if not self._owners[block])
        return {"blocks": {"given": given, "taken": taken, "cached": kept, "free": free}}

    def _picture(self, blocks: Iterable[int]) -> list[list[int]]:
        """Return, for each cell of these blocks, its number and how many blocks are owned, shared, and kept unowned."""
        picture = []
        for cell in sorted({block // self._cell for block in blocks}):
            members = range(cell * self._cell, (cell + 1) * self._cell)
            owners = [self._owners[block] for block in members]
            kept = sum(block in self._kept for block in members)
            picture.append([cell, sum(n > 0 for n in owners), sum(n > 1 for n in owners), kept])
        return picture
