"""Exercise 8.6: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises.exercise import edition

History = list[tuple[Any, ...]]
Answer = tuple[list[tuple[int, str, list[int], int, int]], list[tuple[int, int]], list[str]]


def by_objects(replicas: int, block: int, worth: int, history: History) -> Answer:
    """Each replica and each row is a dict; everything is computed from the list of what was sent."""
    engines = [{"number": n, "lives": True, "texts": [], "rows": [], "last": -1} for n in range(replicas)]
    requests: dict[str, dict[str, Any]] = {}
    sent: list[tuple[int, str, list[int], int, int]] = []
    failed = []

    def shared(one: list[int], other: list[int]) -> int:
        same = 0
        for a, b in zip(one, other, strict=False):
            if a != b:
                break
            same += 1
        return same // block

    def place(request: dict[str, Any]) -> None:
        text = request["prompt"] + request["new"]
        best, lowest = None, None
        for engine in engines:
            if engine["lives"]:
                hits = max((shared(text, other) for other in engine["texts"]), default=0)
                cost = (len(engine["rows"]) - (hits if hits < worth else worth), engine["last"])
                if lowest is None or cost < lowest:
                    best, lowest = engine, cost
        if best is None:
            failed.append(request["name"])
            request["state"] = "failed"
            return
        best["texts"].append(text)
        best["rows"].append(request["name"])
        best["last"] = len(sent)
        request["on"].append(best["number"])
        sent.append((best["number"], request["name"], text, len(request["new"]), request["limit"]))

    for event in history:
        if event[0] == "ask":
            requests[event[1]] = {
                "name": event[1], "prompt": list(event[2]), "new": [], "limit": event[3], "on": [], "state": "runs",
            }  # fmt: skip
            place(requests[event[1]])
        elif event[0] == "dies":
            engine = engines[event[1]]
            if not engine["lives"]:
                continue
            engine["lives"] = False
            for name, request in requests.items():
                if request["state"] == "runs" and request["on"][-1] == event[1]:
                    if len(request["new"]) == request["limit"]:
                        request["state"] = "done"
                    elif len(request["on"]) == 2:
                        request["state"] = "failed"
                        failed.append(name)
                    else:
                        place(request)
        elif event[1] in requests and requests[event[1]]["state"] == "runs":
            request = requests[event[1]]
            if event[0] == "tokens":
                request["new"] = [*request["new"], *event[2]]
            else:
                request["state"] = "done"
                engines[request["on"][-1]]["rows"].remove(event[1])
    return sent, [(one["number"], len(one["rows"])) for one in engines if one["lives"]], failed


def from_the_history(replicas: int, block: int, worth: int, history: History) -> Answer:
    """Little is kept: what a row has and where it is, is looked up in what has happened."""
    sent: list[tuple[int, str, list[int], int, int]] = []
    dead: list[int] = []
    ended: set[str] = set()
    failed: list[str] = []
    given: dict[str, list[int]] = {}
    asked: dict[str, tuple[list[int], int]] = {}

    def on(replica: int) -> list[str]:
        latest = {row: to for to, row, *_ in sent}
        return [row for row in asked if latest.get(row) == replica and row not in ended]

    def cost(replica: int, text: list[int]) -> tuple[int, int, int]:
        hits = 0
        while hits < worth and (hits + 1) * block <= len(text):
            end = (hits + 1) * block
            if not any(to == replica and other[:end] == text[:end] for to, _, other, *_ in sent):
                break
            hits += 1
        times = [at for at, message in enumerate(sent) if message[0] == replica]
        return len(on(replica)) - hits, times[-1] if times else -1, replica

    def send(row: str) -> None:
        text, new, limit = asked[row][0] + given[row], len(given[row]), asked[row][1]
        alive = [replica for replica in range(replicas) if replica not in dead]
        if alive:
            sent.append((min(alive, key=lambda replica: cost(replica, text)), row, text, new, limit))
        else:
            failed.append(row)
            ended.add(row)

    for event in history:
        if event[0] == "ask":
            asked[event[1]], given[event[1]] = (event[2], event[3]), []
            send(event[1])
        elif event[0] == "tokens" and event[1] in asked and event[1] not in ended:
            given[event[1]] = given[event[1]] + event[2]
        elif event[0] == "end":
            ended.add(event[1])
        elif event[0] == "dies" and event[1] not in dead:
            rows = on(event[1])
            dead.append(event[1])
            for row in rows:
                if len(given[row]) >= asked[row][1]:
                    ended.add(row)
                elif [one for _, one, *_ in sent].count(row) > 1:
                    failed.append(row)
                    ended.add(row)
                else:
                    send(row)
    return sent, [(replica, len(on(replica))) for replica in range(replicas) if replica not in dead], failed


EQUIVALENT = {
    "last = dict.fromkeys(range(replicas), -1)": "any number below that of the first message",
}


FIELDS = {"ask": ("row", "text", "limit"), "tokens": ("row", "ids"), "end": ("row", "why"), "dies": ("replica",)}


def _named(replicas: int, block: int, worth: int, history: History) -> tuple[Any, ...]:
    events = [{"what": what} | dict(zip(FIELDS[what], rest, strict=True)) for what, *rest in history]
    named = [event | ({"replica": f"r{event['replica']}"} if "replica" in event else {}) for event in events]
    return [f"r{n}" for n in range(replicas)], block, worth, named


def _plain(names: list[str], block: int, worth: int, history: list[dict[str, Any]]) -> tuple[Any, ...]:
    events = [event | ({"replica": int(event["replica"][1:])} if "replica" in event else {}) for event in history]
    return len(names), block, worth, [tuple(event.values()) for event in events]


def _told(result: Answer, *_: object) -> dict[str, Any]:
    sent, rows, failed = result
    parts = ("row", "text", "new", "limit")
    messages = [{"to": f"r{to}"} | dict(zip(parts, rest, strict=True)) for to, *rest in sent]
    return {"sent": messages, "rows": {f"r{n}": count for n, count in rows}, "failed": failed}


@edition(
    "with-names",
    "replicas have names, and all that happens is told by dicts",
    args=_named,
    back=_plain,
    result=_told,
    axes=("item",),
)
def route_dicts(names: list[str], block: int, worth: int, history: list[dict[str, Any]]) -> dict[str, Any]:
    """A dict of "sent", the messages to replicas; "rows", how many each has that lives; and "failed", names of rows.

    names: of the engines; at first all live, and know no text. block: tokens of a block of their caches.
    history: what happens, one after the other, each a dict with "what":
    "ask", with "row", a name that no other has, "text", at least one token id, and "limit", how many new tokens it
    wants, at least 1. It is sent to a replica at once: a dict of "to", "row", "text", "new", 0 here, and "limit".
    "tokens", with "row" and "ids": its replica has given the row these new tokens, which may be none; never more than
    the limit. "end", with "row": it has ended. Its replica has one row less.
    "dies", with "replica", its name: it is never sent anything again. Each row that it has, in the order in which they
    were asked, goes on elsewhere, as if nothing had happened: what is sent is its text with all new tokens that it has
    been given so far, "new", how many of its tokens are new, since noise and limit count these, and the limit. A row
    that has all of its new tokens by then has ended. A row whose second replica dies fails. A replica that has died
    already does not die again.
    Where no replica lives a request, or a row that should go on, fails. Of a row that has ended or failed nothing is
    heard any more: "tokens" and "end" change nothing.
    A replica's cost for a text: the rows that it has, less the blocks of the text that it knows, counting at most
    `worth` of these. It knows a block of a text if it was ever sent a text that begins alike up to that block's end;
    blocks that are not full do not count. The text goes to the replica with the lowest cost; among equals to the one
    that was sent something the longest ago, one that was never sent anything first of all; and among these to the one
    that stands first in `names`. (The engine's own rule is a different one.) Rows that fail are listed in the order in
    which they do, and of one death in the order in which they were asked.
    """
    queue = list(names)  # as they were sent something, the longest ago first
    known: dict[str, list[list[int]]] = {name: [] for name in names}
    live: dict[str, list[Any]] = {}
    moved: list[str] = []
    sent: list[dict[str, Any]] = []
    failed: list[str] = []

    def rows(name: str) -> int:
        return sum(place == name for place, *_ in live.values())

    def send(row: str, text: list[int], new: int, limit: int) -> None:
        def cost(name: str) -> int:
            ends = range(block, len(text) + 1, block)
            hits = sum(any(other[:end] == text[:end] for other in known[name]) for end in ends)
            return rows(name) - min(hits, worth)

        if not queue:
            failed.append(row)
            live.pop(row, None)
            return
        best = min(queue, key=cost)
        queue.remove(best)
        queue.append(best)
        known[best].append(text)
        live[row] = [best, text, new, limit]
        sent.append({"to": best, "row": row, "text": text, "new": new, "limit": limit})

    for event in history:
        if event["what"] == "ask":
            send(event["row"], event["text"], 0, event["limit"])
        elif event["what"] == "dies" and event["replica"] in queue:
            queue.remove(event["replica"])
            for row, (place, text, new, limit) in list(live.items()):
                if place == event["replica"] and new < limit and row not in moved:
                    moved.append(row)
                    send(row, text, new, limit)
                elif place == event["replica"]:
                    del live[row]
                    failed += [row] * (new < limit)
        elif event["what"] == "tokens" and event["row"] in live:
            place, text, new, limit = live[event["row"]]
            live[event["row"]] = [place, text + event["ids"], new + len(event["ids"]), limit]
        elif event["what"] == "end":
            live.pop(event["row"], None)
    return {"sent": sent, "rows": {name: rows(name) for name in names if name in queue}, "failed": failed}
