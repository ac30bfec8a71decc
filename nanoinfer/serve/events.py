"""The events that one watches: the facts of a `Recorder`, step by step, as records of `events.schema.json`. Chapter 5.

This code runs where it holds nobody up: in a process of its own, or after a run that is recorded. It compares the facts
of each step with the state before. A watcher who comes late, or fell behind, gets that state as a keyframe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from nanoinfer.text.stop import TextStream
from nanoinfer.text.tokenizer import Tokenizer

VERSION = 1
LANES = 64  # rows that are shown one by one
CELLS = 4096  # of the picture of a pool: a larger pool has several blocks a cell

Event = dict[str, Any]


@dataclass
class _Row:
    """A request that runs or was preempted. since: when its newest token came, or when it was asked for.

    text: where texts are shown, its prompt's beginning and what has come.
    """

    prompt: int  # tokens
    new: int
    since: float
    fed: int = 0
    lane: int = 0  # where it is shown; from LANES on it is only counted
    table: list[int] = field(default_factory=list)
    text: TextStream | None = None

    def told(self, id_: int, fed: str) -> Event:
        """Return what a reader is to know of it; fed: the name of that field."""
        event = {"id": id_, "lane": self.lane, "prompt": self.prompt, fed: self.fed, "new": self.new}
        return event | {"text": self.text.text} if self.text else event


class Events:
    """Turns facts into events, one a step, in order. tokenizer: None where texts are not to be shown."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._step, self._began, self._time = -1, 0.0, 0.0

    def take(self, facts: Event) -> Event:
        """Return the event of these facts: a keyframe of those that hold the whole state, or what the step did."""
        self._began = self._began or facts["time"]
        before, self._step, self._time = self._time, facts["step"], facts["time"]
        if "engine" in facts:
            self._restart(facts)
            return self.keyframe()
        return self._event(facts, before)

    def keyframe(self, skipped: int = 0) -> Event:
        """Return all that is known after the newest step. skipped: steps before it of which there is no event."""
        rows = [row.told(id_, "fed") for id_, row in self._rows.items() if row.lane < LANES]
        event = self._head("keyframe") | {"texts": self._tokenizer is not None, "engine": self._engine}
        event |= {"waiting": self._waiting, "rows": rows}
        if self._cell > 1:
            event["cells"] = self._picture({*self._owners, *self._kept})
        elif self._engine["blocks"]:
            tables = [[id_, row.table] for id_, row in self._rows.items() if row.table]
            event["blocks"] = {"tables": tables, "cached": sorted(self._kept)}
        return event | _filled(skipped=skipped, more=_filled(rows=len(self._rows) - len(rows)))

    def _head(self, kind: str) -> Event:
        return {"version": VERSION, "kind": kind, "step": self._step, "time": round(self._time - self._began, 6)}

    def _restart(self, state: Event) -> None:
        self._cell = -(-(state["engine"]["blocks"] + 1) // CELLS)  # blocks that one cell of the picture stands for
        self._engine = state["engine"] | {"lanes": LANES, "cell": self._cell}
        self._waiting = state["waiting"]
        self._owners = Counter[int]()  # how many rows own each block
        self._kept = set(state["kept"])  # blocks that no row owns, known by their text
        self._out = {row[0]: self._made(*row[1:]) for row in state["out"]}  # preempted, and waiting to begin again
        self._rows: dict[int, _Row] = {}
        for fed, table, *row in state["rows"]:
            self._begin(fed, *row).table = table
            self._owners.update(table)

    def _made(self, prompt: int, new: int, since: float, ids: Sequence[int]) -> _Row:
        row = _Row(prompt, new, since)
        if self._tokenizer:
            row.text = TextStream(self._tokenizer)
            row.text.text = self._tokenizer.decode(ids) + "…" * (prompt > len(ids))
        return row

    def _begin(self, fed: int, id_: int, *of_row: Any) -> _Row:
        """Let a row run, in the first lane that is free."""
        row, used = self._out.pop(id_, None) or self._made(*of_row), {row.lane for row in self._rows.values()}
        row.fed, row.lane = fed, min({*range(len(used) + 1)} - used)
        self._rows[id_] = row
        return row

    def _event(self, facts: Event, before: float) -> Event:
        """Return what a step did, in the order in which a reader applies it."""
        rows, waited, chunks = self._rows, self._waiting, facts["chunks"]
        idle = not rows and not waited["count"]
        preempted = [id_ for id_, again, _ in facts["left"] if again]
        self._out |= {id_: rows.pop(id_) for id_ in preempted}
        new = [(start, *row) for start, _, *row in chunks if row[0] not in rows]
        start = max(before, min(since for *_, since, _ in new)) if idle and new else before
        begun = {row[1]: self._begin(*row).told(row[1], "cached") for row in new}
        shown = {id_ for id_, row in rows.items() if row.lane < LANES}
        for begins, count, id_, *_ in chunks:
            rows[id_].fed = begins + count
        for id_ in facts["decode"]:  # a token each; what drafts add shows once they are settled
            rows[id_].fed += 1
        pieces = [[id_, begins, count] for begins, count, id_, *_ in chunks]
        event = self._head("step") | {"took": round(self._time - start, 6), "in_flight": facts["in_flight"]}
        event["pieces"] = [piece for piece in pieces if piece[0] in shown]
        event["decode"] = [id_ for id_ in facts["decode"] if id_ in shown]
        event |= self._settle(facts["settled"], facts.get("token_ids"), shown)
        if self._engine["blocks"]:
            event |= self._move_blocks(facts)
        heard_of = self._out.keys() | rows.keys() | {*waited["ids"]}
        ended = sorted([id_, reason] for id_, reason in facts["ended"] if id_ in heard_of)
        for id_, _ in ended:
            self._out.pop(id_, None) or rows.pop(id_, None)
        more = {"decode": len(facts["decode"]) - len(event["decode"]), "pieces": len(pieces) - len(event["pieces"])}
        more["tokens"] = sum(count for id_, _, count in pieces if id_ not in shown)
        more["rows"] = sum(row.lane >= LANES for row in rows.values())
        self._waiting = facts["waiting"]
        return event | _filled(
            preempted=preempted,
            waiting=self._waiting if new or self._waiting != waited else None,
            begun=[told for id_, told in begun.items() if id_ in shown],
            ended=ended,
            more=_filled(**more),
        )

    def _settle(
        self, settled: Iterable[tuple[int, int, int]], token_ids: Sequence[Sequence[int]] | None, shown: set[int]
    ) -> Event:
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
            written = [*map(row.text.push, newest[-count:])] if row.text else []
            if id_ in shown:
                event["tokens"] += [id_] * count
                texts += written
                if row.fed < now_fed:
                    row.fed = now_fed
                    fed.append([id_, now_fed])
        event["itl"] = [list(each) for each in (+itl).items()]
        return event | _filled(fed=fed) | ({} if token_ids is None else {"texts": texts})

    def _move_blocks(self, facts: Event) -> Event:
        """Return the blocks that rows gave back and took, those that stay known by their text, and those now free."""
        given, taken = list[int](), list[list[Any]]()
        changed = {block for _, _, blocks in facts["left"] for block in blocks}
        for id_, table in [*((id_, []) for id_, *_ in facts["left"]), *facts["tables"]]:
            if not (row := self._rows.get(id_) or self._out.get(id_)):
                continue
            known, row.table = row.table, table
            if known and table[: len(known)] != known:  # told as if it gave all back, and took the others again
                given.append(id_)
                changed.update(known)
                self._owners.subtract(known)
                known = []
            if blocks := table[len(known) :]:
                taken.append([id_, blocks])
                changed.update(blocks)
                self._owners.update(blocks)
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


def _filled(**fields: Any) -> Event:
    """Return the fields that say something."""
    return {name: value for name, value in fields.items() if value}
