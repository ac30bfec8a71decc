"""The events that one watches: the recorder's facts, step by step, as records of `events.schema.json`. Chapter 5.

What is here runs where it holds up no engine: in the server's event loop, or after a run that is recorded. It keeps the
engine's state as the facts have it, so a watcher who comes late, or fell behind, gets all of it at once, in a keyframe.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoinfer.serve.recorder import PROMPT

if TYPE_CHECKING:
    from nanoinfer.text.stop import TextStream
    from nanoinfer.text.tokenizer import Tokenizer

VERSION = 1
LANES = 64  # rows that are shown one by one
CELLS = 4096  # of the picture of a pool: a larger pool has several blocks a cell

Event = dict[str, Any]


@dataclass
class _Row:
    """A request that runs, as far as facts have told."""

    lane: int | None  # where it is shown; None for one of those that are only counted
    prompt: int
    fed: int
    new: int
    since: float  # when its newest token came, or when it was asked for
    text: str | None
    stream: TextStream | None


class Events:
    """Turns facts into events, one a step, in order. tokenizer: None where texts are not to be shown."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._engine: Event = {}
        self._began: float | None = None
        self._step, self._time, self._idle = -1, 0.0, True
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[int, _Row] = {}  # those that run
        self._out: dict[int, _Row] = {}  # that were preempted, and wait to begin again
        self._lanes = list(range(LANES))
        self._waiting: Event = {"count": 0, "ids": []}
        self._tables: dict[int, list[int]] = {}
        self._cached: set[int] = set()
        self._owners: Counter[int] = Counter()

    @property
    def known(self) -> bool:
        """Whether any facts have come, so that there may be a keyframe."""
        return self._began is not None

    def take(self, facts: Event) -> Event:
        """The event of these facts: a keyframe for those that hold the whole state, else what the step did."""
        if self._began is None:
            self._began = facts["time"]
        if "state" in facts:
            self._restart(facts["state"])
            self._step, self._time, self._idle = facts["step"], facts["time"], not self._rows
            return self.keyframe()
        event = self._event(facts)
        self._step, self._time = facts["step"], facts["time"]
        self._idle = not self._rows and not self._waiting["count"]
        return event

    def keyframe(self, skipped: int = 0) -> Event:
        """All that is known after the newest step. skipped: steps before it of which there is no event."""
        rows = [
            {"id": id_, "lane": row.lane, "prompt": row.prompt, "fed": row.fed, "new": row.new}
            | ({"text": row.text} if row.text is not None else {})
            for id_, row in self._rows.items()
            if row.lane is not None
        ]
        event = self._head("keyframe") | {"texts": self._tokenizer is not None, "engine": self._engine}
        event |= {"waiting": self._waiting, "rows": rows}
        if skipped:
            event["skipped"] = skipped
        if more := len(self._rows) - len(rows):
            event["more"] = {"rows": more}
        if self._cell > 1:
            event["cells"] = self._cells({block // self._cell for block in (*self._owners, *self._cached)})
        elif self._engine["blocks"]:
            tables = [[id_, table] for id_, table in self._tables.items() if table]
            event["blocks"] = {"tables": tables, "cached": sorted(self._cached)}
        return event

    def _head(self, kind: str) -> Event:
        assert self._began is not None
        return {"version": VERSION, "kind": kind, "step": self._step, "time": round(self._time - self._began, 6)}

    @property
    def _cell(self) -> int:
        """Blocks that one cell of the picture stands for."""
        cell: int = self._engine["cell"]
        return cell

    def _restart(self, state: Event) -> None:
        self._forget()
        blocks = state["engine"]["blocks"]
        self._engine = state["engine"] | {"lanes": LANES, "cell": -(-(blocks + 1) // CELLS)}
        self._wait(state["waiting"])
        for row in state["rows"]:
            self._begin(*row)
        for row in state["out"]:
            self._out[row[0]] = self._made(*row)
        for id_, table in state["tables"].items():
            self._own(id_, table)
        self._cached = set(state["cached"])

    def _begin(self, id_: int, prompt: int, since: float, new: int, ids: Sequence[int], fed: int = 0) -> None:
        row = self._out.pop(id_, None) or self._made(id_, prompt, since, new, ids)
        row.fed, row.lane = fed, heapq.heappop(self._lanes) if self._lanes else None
        self._rows[id_], self._tables[id_] = row, []

    def _made(self, _: int, prompt: int, since: float, new: int, ids: Sequence[int]) -> _Row:
        text = stream = None
        if self._tokenizer is not None:
            from nanoinfer.text.stop import TextStream

            stream = TextStream(self._tokenizer)
            text = self._tokenizer.decode(ids) + "…" * (prompt > PROMPT)
        return _Row(None, prompt, 0, new, since, text, stream)

    def _event(self, facts: Event) -> Event:
        self._step, began, before = facts["step"], facts.get("begun", ()), self._time
        self._time, asked = facts["time"], [row[2] for row in began]
        start = max(before, min(asked)) if self._idle and asked else before
        event = self._head("step") | {"took": round(self._time - start, 6), "in_flight": facts["in_flight"]}
        for id_ in facts.get("preempted", ()):
            self._out[id_] = self._leave(id_)
        event |= self._queue(facts, {row[0] for row in began}) if "waiting" in facts else {}
        pieces = facts.get("pieces", ())
        for row in began:
            self._begin(*row)
        if shown := [row[0] for row in began if self._rows[row[0]].lane is not None]:
            cached = {id_: start for id_, start, _ in reversed(pieces)}
            event["begun"] = [self._introduced(id_, cached.get(id_, 0)) for id_ in shown]
        event |= self._work(pieces, facts["decode"])
        event |= self._settle(facts["got"], facts.get("token_ids"))
        if preempted := facts.get("preempted"):
            event["preempted"] = preempted
        if "taken" in facts:
            event |= self._move_blocks(facts)
        for id_, _ in (ended := facts.get("ended", ())):
            if not self._out.pop(id_, None):
                self._leave(id_)
        if all_ended := [*map(list, ended), *event.pop("gone", ())]:
            event["ended"] = all_ended
        if hidden := len(self._rows) - (LANES - len(self._lanes)):
            event["more"] = event.get("more", {}) | {"rows": hidden}
        return event

    def _leave(self, id_: int) -> _Row:
        row = self._rows.pop(id_)
        if row.lane is not None:
            heapq.heappush(self._lanes, row.lane)
            row.lane = None
        self._disown(id_)
        del self._tables[id_]
        return row

    def _wait(self, waiting: tuple[int, list[int]]) -> None:
        self._waiting = {"count": waiting[0], "ids": waiting[1]}

    def _queue(self, facts: Event, begun: set[int]) -> Event:
        """Who waits. Numbers stand in order, so one that is missing and has not begun has been cancelled."""
        before, ids = self._waiting["ids"], facts["waiting"][1]
        begun = begun.union([id_ for id_, _ in facts.get("ended", ())])
        self._wait(facts["waiting"])
        last = ids[-1] if len(ids) < self._waiting["count"] else float("inf")
        gone = [[id_, "cancelled"] for id_ in before if id_ < last and id_ not in begun and id_ not in ids]
        return {"waiting": self._waiting} | ({"gone": gone} if gone else {})

    def _introduced(self, id_: int, cached: int) -> Event:
        row = self._rows[id_]
        row.fed = cached
        event = {"id": id_, "lane": row.lane, "prompt": row.prompt, "cached": cached, "new": row.new}
        return event if row.text is None else event | {"text": row.text}

    def _work(self, pieces: Iterable[tuple[int, int, int]], decode: list[int]) -> Event:
        """What the step fed the model."""
        rows, more = self._rows, Counter[str]()
        for id_, start, tokens in pieces:
            rows[id_].fed = start + tokens
            if rows[id_].lane is None:
                more.update(pieces=1, tokens=tokens)
        shown = [id_ for id_ in decode if id_ in rows and rows[id_].lane is not None]
        for id_ in shown:
            rows[id_].fed += 1
        more["decode"] = len(decode) - len(shown)
        event: Event = {"pieces": [list(each) for each in pieces if rows[each[0]].lane is not None], "decode": shown}
        return event | ({"more": dict(+more)} if +more else {})

    def _settle(self, got: list[int], token_ids: list[int] | None) -> Event:
        """The tokens that have come, and how long each row had waited for its own."""
        rows, ttft, itl, shown, texts = self._rows, [], Counter[float](), [], []
        for place, id_ in enumerate(got):
            row = rows.get(id_) or self._out.get(id_)
            if row is None:  # it left before anybody watched
                continue
            waited, row.since = round(self._time - row.since, 6), self._time
            if row.new:
                itl[waited] += 1
            else:
                ttft.append([id_, waited])
            row.new += 1
            if row.lane is None:
                continue
            shown.append(id_)
            if token_ids is not None and row.stream is not None:
                texts.append(row.stream.push(token_ids[place]))
                row.text = f"{row.text}{texts[-1]}"
        event: Event = {"tokens": shown, "ttft": ttft, "itl": [list(each) for each in itl.items()]}
        return event if token_ids is None else event | {"texts": texts}

    def _own(self, id_: int, blocks: list[int]) -> None:
        self._tables[id_] += blocks
        self._owners.update(blocks)

    def _disown(self, id_: int) -> list[int]:
        blocks, self._tables[id_] = self._tables[id_], []
        for block in blocks:
            self._owners[block] -= 1
            if not self._owners[block]:
                del self._owners[block]
        return blocks

    def _move_blocks(self, facts: Event) -> Event:
        """Blocks that rows gave back, then took, and those that are kept though nobody owns them."""
        given, taken, cached = facts["given"], facts["taken"], facts["cached"]
        changed = set(facts["touched"])
        for id_ in given:
            changed.update(self._disown(id_) if id_ in self._tables else ())
        tables: dict[int, list[int]] = {}
        for id_, block in taken:
            tables.setdefault(id_, []).append(block)
        for id_, blocks in tables.items():
            self._own(id_, blocks)
        self._cached.difference_update(facts["touched"])
        self._cached.update(cached)
        if self._cell > 1:
            return {"cells": self._cells({block // self._cell for block in changed})}
        freed = sorted(changed.difference(cached, self._owners))
        return {
            "blocks": {
                "given": given,
                "taken": [list(each) for each in tables.items()],
                "cached": cached,
                "free": freed,
            }
        }

    def _cells(self, cells: Iterable[int]) -> list[list[int]]:
        """Of each of these cells: its number, and how many of its blocks rows own, several own, and nobody but kept."""
        found = []
        for cell in sorted(cells):
            blocks = range(cell * self._cell, (cell + 1) * self._cell)
            owners = [self._owners[block] for block in blocks if block in self._owners]
            shared, cached = sum(count > 1 for count in owners), sum(block in self._cached for block in blocks)
            found.append([cell, len(owners), shared, cached])
        return found
