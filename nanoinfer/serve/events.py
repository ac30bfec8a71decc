"""The events that one watches: the recorder's facts, step by step, as records of `events.schema.json`. Chapter 5.

What is here runs where it holds up nobody: in a process of its own, or after a run that is recorded. It keeps the
engine's state as the facts have it, so a watcher who comes late, or fell behind, gets all of it at once, in a keyframe.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
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
    new: int  # its tokens, as long as it has a lane
    text: str | None
    stream: TextStream | None


class Events:
    """Turns facts into events, one a step, in order. tokenizer: None where texts are not to be shown."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._engine: Event = {}
        self._cell = 1  # blocks that one cell of the picture stands for
        self._began: float | None = None
        self._step, self._time, self._idle = -1, 0.0, True
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[int, _Row] = {}  # those that run
        self._shown: dict[int, _Row] = {}  # of these, those with a lane: what is done for each row is done for these
        self._out: dict[int, _Row] = {}  # that were preempted, and wait to begin again
        self._since: dict[int, float] = {}  # of both kinds: when its newest token came, or when it was asked for
        self._fresh: set[int] = set()  # of both kinds, those without a token
        self._going: dict[int, None] = {}  # rows whose prompt has been fed, in no order
        self._launched: deque[list[int]] = deque()  # of each step whose tokens are on their way, who gets them
        self._lanes = list(range(LANES))
        self._waiting: Event = {"count": 0, "ids": []}
        self._tables: dict[int, list[int]] = {}
        self._cached: set[int] = set()
        self._given: set[int] = set()  # blocks of preempted rows, in this step
        self._owners: dict[int, int] = {}  # of blocks that rows own, how many do
        self._cells = [[0, 0, 0] for _ in range(CELLS)]  # blocks that rows own, that several own, that are kept

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
            for id_, row in self._shown.items()
        ]
        event = self._head("keyframe") | {"texts": self._tokenizer is not None, "engine": self._engine}
        event |= {"waiting": self._waiting, "rows": rows}
        if skipped:
            event["skipped"] = skipped
        if more := len(self._rows) - len(rows):
            event["more"] = {"rows": more}
        if self._cell > 1:
            event["cells"] = self._picture({*self._owners, *self._cached})
        elif self._engine["blocks"]:
            tables = [[id_, table] for id_, table in self._tables.items() if table]
            event["blocks"] = {"tables": tables, "cached": sorted(self._cached)}
        return event

    def _head(self, kind: str) -> Event:
        assert self._began is not None
        return {"version": VERSION, "kind": kind, "step": self._step, "time": round(self._time - self._began, 6)}

    def _restart(self, state: Event) -> None:
        self._forget()
        self._cell = -(-(state["engine"]["blocks"] + 1) // CELLS)
        self._engine = state["engine"] | {"lanes": LANES, "cell": self._cell}
        self._wait(state["waiting"])
        for row in state["rows"]:
            self._begin(*row)
        for row in state["out"]:
            self._out[row[0]] = self._made(*row)
        for id_, table in state["tables"].items():
            self._own(id_, table)
        self._going, self._launched = dict.fromkeys(state["going"]), deque(state["launched"])
        self._keep(state["cached"])

    def _begin(self, id_: int, prompt: int, since: float, new: int, ids: Sequence[int], fed: int = 0) -> None:
        row = self._out.pop(id_, None) or self._made(id_, prompt, since, new, ids)
        row.fed, row.new = fed, new
        self._rows[id_], self._tables[id_] = row, []
        if self._lanes:
            row.lane, self._shown[id_] = heapq.heappop(self._lanes), row

    def _made(self, id_: int, prompt: int, since: float, new: int, ids: Sequence[int]) -> _Row:
        text = stream = None
        self._since[id_] = since
        if not new:
            self._fresh.add(id_)
        if self._tokenizer is not None:
            from nanoinfer.text.stop import TextStream

            stream = TextStream(self._tokenizer)
            text = self._tokenizer.decode(ids) + "…" * (prompt > PROMPT)
        return _Row(None, prompt, 0, new, text, stream)

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
        if shown := [row[0] for row in began if row[0] in self._shown]:
            cached = {id_: start for id_, start, *_ in reversed(pieces)}
            event["begun"] = [self._introduced(id_, cached.get(id_, 0)) for id_ in shown]
        ended = facts.get("ended", ())
        cancelled = {id_ for id_, reason in ended if reason == "cancelled"}
        decode = [id_ for id_ in self._going if id_ not in cancelled] if facts["decode"] else []
        event |= self._work(pieces, decode)
        event |= self._settle(facts["in_flight"], cancelled, facts.get("token_ids"), facts.get("runs"))
        if preempted := facts.get("preempted"):
            event["preempted"] = preempted
        for id_ in facts.get("left", ()):
            self._going.pop(id_, None)
        if "taken" in facts:
            event |= self._move_blocks(facts)
        for id_, _ in ended:
            if not self._out.pop(id_, None):
                self._leave(id_)
            del self._since[id_]
            self._fresh.discard(id_)
        if all_ended := [*map(list, ended), *event.pop("gone", ())]:
            event["ended"] = all_ended
        if hidden := len(self._rows) - len(self._shown):
            event["more"] = event.get("more", {}) | {"rows": hidden}
        return event

    def _leave(self, id_: int) -> _Row:
        row = self._rows.pop(id_)
        if row.lane is not None:
            heapq.heappush(self._lanes, row.lane)
            row.lane = None
            del self._shown[id_]
        self._going.pop(id_, None)
        self._given.update(self._disown(id_))
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

    def _work(self, pieces: Iterable[tuple[int, int, int, bool]], decode: list[int]) -> Event:
        """What the step fed the model, and who is to get a token of it."""
        rows, more = self._shown, Counter[str]()
        complete = [id_ for id_, _, _, complete in pieces if complete]
        if decode or pieces:
            self._launched.append(decode + complete)
        self._going.update(dict.fromkeys(complete))
        for id_, start, tokens, _ in pieces:
            if id_ in rows:
                rows[id_].fed = start + tokens
            else:
                more.update(pieces=1, tokens=tokens)
        shown = sorted(id_ for id_ in decode if id_ in rows)
        for id_ in shown:
            rows[id_].fed += 1
        more["decode"] = len(decode) - len(shown)
        event: Event = {"pieces": [[*each[:3]] for each in pieces if each[0] in rows], "decode": shown}
        return event | ({"more": dict(+more)} if +more else {})

    def _settle(
        self,
        in_flight: int,
        cancelled: set[int],
        token_ids: list[tuple[int, int]] | None,
        runs: list[tuple[int, int, int]] | None,
    ) -> Event:
        """The tokens that have come, and how long each row had waited for its own. A row that has ended gets none.

        runs: of an engine with drafts, each row's tokens that have come, and how many it has been fed now.
        Most rows waited since the same step, and have no lane: what is done here for each of them takes no Python.
        """
        since, now, fresh, rows = self._since, self._time, self._fresh, self._shown
        if runs is not None:
            self._launched.clear()
            runs = [run for run in runs if run[0] not in cancelled and run[0] in since]
            got = [id_ for id_, _, _ in runs]
        else:
            got = self._launched.popleft() if len(self._launched) > in_flight else []
        if cancelled or not all(map(since.__contains__, got)):
            got = [id_ for id_ in got if id_ in since and id_ not in cancelled]
        first = fresh.intersection(got) if fresh else ()
        ttft = [[id_, round(now - since[id_], 6)] for id_ in first]
        later = Counter(map(since.__getitem__, got))
        later.subtract(map(since.__getitem__, first))
        itl = Counter[float]()
        for when, count in later.items():
            if count:
                itl[round(now - when, 6)] += count
        since.update(dict.fromkeys(got, now))
        fresh.difference_update(first)
        event: Event = {}
        if runs is not None:
            itl[0.0] += sum(count - 1 for _, count, _ in runs)  # they came together
            event = self._accept(runs)
            got = [id_ for id_, count, _ in runs for _ in range(count)]
        shown = sorted(id_ for id_ in got if id_ in rows)
        for id_ in shown:
            rows[id_].new += 1
        event |= {"tokens": shown, "ttft": ttft, "itl": [list(each) for each in (+itl).items()]}
        return event if token_ids is None else event | {"texts": self._write(shown, token_ids)}

    def _accept(self, runs: Iterable[tuple[int, int, int]]) -> Event:
        """Of rows that were fed more than their newest token, how many they have been fed: drafts were accepted."""
        fed = []
        for id_, _, now in runs:
            row = self._shown.get(id_)
            if row and row.fed < now:  # else later steps have fed it already
                row.fed = now
                fed.append([id_, now])
        return {"fed": sorted(fed)} if fed else {}

    def _write(self, shown: Iterable[int], token_ids: Iterable[tuple[int, int]]) -> list[str]:
        """What the new tokens add to texts."""
        texts = []
        of_row: dict[int, list[int]] = {}
        for id_, token in reversed([*token_ids]):
            of_row.setdefault(id_, []).append(token)
        for id_ in shown:
            row = self._shown[id_]
            assert row.stream is not None
            texts.append(row.stream.push(of_row[id_].pop()))
            row.text = f"{row.text}{texts[-1]}"
        return texts

    def _own(self, id_: int, blocks: list[int]) -> None:
        self._tables[id_] += blocks
        owners, cells, size = self._owners, self._cells, self._cell
        for block in blocks:
            owners[block] = count = owners.get(block, 0) + 1
            if count <= 2:
                cells[block // size][count - 1] += 1

    def _disown(self, id_: int) -> list[int]:
        blocks, self._tables[id_] = self._tables[id_], []
        owners, cells, size = self._owners, self._cells, self._cell
        for block in blocks:
            owners[block] = count = owners[block] - 1
            if count <= 1:
                cells[block // size][count] -= 1
            if not count:
                del owners[block]
        return blocks

    def _keep(self, blocks: Iterable[int]) -> None:
        """Nobody owns these any more, and they are kept for their text."""
        self._cached.update(blocks)
        for block in blocks:
            self._cells[block // self._cell][2] += 1

    def _move_blocks(self, facts: Event) -> Event:
        """Blocks that rows gave back, then took, and those that are kept though nobody owns them."""
        left, cached = facts.get("left", ()), facts["cached"]
        taken: dict[int, list[int]] = {}
        for id_, block in facts["taken"]:
            taken.setdefault(id_, []).append(block)
        cut = {id_ for id_, _ in facts.get("cut", ()) if id_ in self._tables}
        for id_ in cut:  # told as if it gave back all, and took the rest again
            kept = [block for block in self._disown(id_) if (id_, block) not in facts["cut"]]
            taken[id_] = kept + taken.get(id_, [])
        for id_, blocks in taken.items():
            self._own(id_, blocks)
        changed = self._given.union(facts.get("given", ()), *taken.values())
        for id_ in left:
            changed.update(self._disown(id_))
        self._given = set()
        for block in self._cached.intersection(changed):
            self._cached.remove(block)
            self._cells[block // self._cell][2] -= 1
        self._keep(cached)
        if self._cell > 1:
            return {"cells": self._picture(changed)}
        freed = sorted(block for block in changed.difference(cached) if block not in self._owners)
        return {
            "blocks": {
                "given": [*facts.get("preempted", ()), *left, *cut.difference(left)],
                "taken": [[id_, blocks] for id_, blocks in taken.items() if id_ not in left],
                "cached": cached,
                "free": freed,
            }
        }

    def _picture(self, blocks: Iterable[int]) -> list[list[int]]:
        """Of each cell of these: its number, and how many of its blocks rows own, several own, and nobody but kept."""
        return [[cell, *self._cells[cell]] for cell in sorted({block // self._cell for block in blocks})]
