"""Exercise 8.6: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises.exercise import Edition, Right, Wrong

History = list[tuple[Any, ...]]
Answer = tuple[list[tuple[int, str, list[int], int, int]], list[tuple[int, int]], list[str]]

HITS = "hits = sum(begin in known[replica] for begin in begins)"
COST = "return rows[replica] - min(hits, worth), last[replica], replica"
BEGINS = "begins = [tuple(text[:end]) for end in range(block, len(text) + 1, block)]"
MORE = "        rows[best] += 1\n"
LEARNS = "known[best].update(begins)"
SECOND = """if replica == of and new < limit and row not in moved:
                    moved.add(row)
                    send(row, text, new, limit)
                elif replica == of:
                    del live[row]
                    failed += [row] * (new < limit)"""
TOKENS = "live[of] = replica, text + ids, new + len(ids), limit"
DIES = 'elif what == "dies" and of in rows:\n            del rows[of]\n'
END = 'elif what == "end" and of in live:\n            replica, *_ = live.pop(of)\n            rows[replica] -= 1'
WRONG = (
    Wrong.patch(
        "ties-to-the-first", "Among equals the first one.", COST, "return rows[replica] - min(hits, worth), 0, replica",
        "vllm-project/vllm#47420: every tie went to the same engine, and the skew added up",
    ),
    Wrong.patch(
        "round-robin", "Each in its turn is fair.", COST, "return last[replica], 0, replica",
        "ROCm/ATOM#1638: round-robin, whatever load each rank had",
    ),
    Wrong.patch(
        "affinity-without-end", "Who knows a text computes less of it, always.", "min(hits, worth)", "hits * 1000",
        "ls1intum/edutelligence#838: at low load all requests stuck to one node, for their prefixes",
    ),
    Wrong.patch(
        "hits-uncapped", "Each block that is known is worth a row.", "min(hits, worth)", "hits",
        "an author's own slip: long prompts outweigh any load",
    ),
    Wrong.patch(
        "hits-or-none", "Somebody knows the beginning, or nobody does.", "min(hits, worth)", "worth * (hits > 0)",
        "an author's own slip: one block is worth as much as all of them",
    ),
    Wrong.patch(
        "hits-break-ties", "Load first, and then hits.", COST, "return rows[replica], -min(hits, worth), last[replica]",
        "an author's own slip: a hit never wins against a row",
    ),
    Wrong.patch(
        "load-when-it-answers", "A replica has a row once it gives tokens.", MORE, "",
        "sgl-project/sglang#27547: load was counted when the answer came, so that all loads were equal until then",
    ),
    Wrong.patch(
        "blocks-by-content", "A block is known by its own tokens.", BEGINS,
        "begins = [tuple(text[end - block : end]) for end in range(block, len(text) + 1, block)]",
        "chapter 5: a block's name holds all before it",
    ),
    Wrong.patch(
        "part-of-a-block", "The last block counts as far as it is filled.", BEGINS,
        "begins = [tuple(text[:end]) for end in range(block, len(text) + block, block)]",
        "chapter 5: a block that is not full is nobody else's",
    ),
    Wrong.patch(
        "last-text-alone", "A replica knows what it was sent last.", LEARNS, "known[best] = set(begins)",
        "an author's own slip: = for |=",
    ),
    Wrong.patch(
        "all-know-it", "What one has computed is known.", LEARNS,
        "for others in known.values():\n            others.update(begins)",
        "an author's own slip: each replica has a cache of its own", unnamed="round-robin",
    ),
    Wrong.patch(
        "knows-what-ended", "A replica knows a text when its row has ended.", LEARNS, "pass",
        "from the stub alone, by the author, and put the line in another place, where no history comes to",
        unnamed="round-robin",
    ),
    Wrong.patch(
        "knows-prompts-alone", "What a replica knows of a row is its prompt.", BEGINS,
        BEGINS.replace("len(text) + 1", "len(text) - new + 1"),
        "from the stub alone, by the author: what was said before is text as well",
    ),
    Wrong.patch(
        "worth-of-all", "Hits are worth so much over all rows.", "min(hits, worth)",
        "min(hits, max(0, worth - rows[replica]))",
        "from the stub alone, by the author: the limit, taken from the wrong number",
    ),
    Wrong.patch(
        "refilled-from-front", "A replica that was never sent anything is as good as any other.", COST,
        "return rows[replica] - min(hits, worth), -last[replica], replica",
        "from the stub alone, by the author: the one that was sent something last, since it is warm",
    ),
    Wrong.patch(
        "begins-again", "A row that lost its replica is asked again.", TOKENS, "pass",
        "ray-project/ray#40986: what is run again appears twice",
    ),
    Wrong.patch(
        "whole-limit", "It goes on with its text and its parameters.", TOKENS,
        "live[of] = replica, text + ids, new, limit",
        "an author's own slip: as many tokens again as it wanted in all",
    ),
    Wrong.patch(
        "a-longer-prompt", "To go on is to be asked with a longer prompt.",
        "sent.append((best, row, text, new, limit))",
        "sent.append((best, row, text, 0, limit - new))",
        "this chapter's text shows it: noise is counted from 0 again, and another text comes out",
    ),
    Wrong.patch(
        "only-the-last-tokens", "The text goes on with what came last.", TOKENS,
        "live[of] = replica, text[:1] + ids, new + len(ids), limit",
        "an author's own slip: each message in place of the one before it",
    ),
    Wrong.patch(
        "asks-for-nothing", "Whoever was on it goes on elsewhere.", SECOND,
        SECOND.replace("new < limit and ", "").replace(" * (new < limit)", ""),
        "an author's own slip: a row that only lacked the word that it had ended",
    ),
    Wrong.patch(
        "as-often-as-it-takes", "A row goes on as long as anybody lives.", SECOND,
        SECOND.replace(" and row not in moved", ""),
        "an author's own slip: a row that kills its engine kills all of them, one by one",
    ),
    Wrong.patch(
        "fails-at-once", "A row dies with its replica.", SECOND,
        SECOND.replace("and new < limit and row not in moved", "and not row"),
        "vllm-project/vllm#15000, of the same family: nobody answers any more",
    ),
    Wrong.patch(
        "nobody-goes-on", "A replica that has died gets no new ones.", SECOND,
        "if replica == of:\n                    del live[row]",
        "vllm-project/vllm#53597, of the same family: what was on it is waited for, for ever",
    ),
    Wrong.patch(
        "dead-but-idle", "A replica that has died has no rows, and so the least to do.", DIES,
        DIES.replace("del rows[of]", "rows[of] = 0"),
        "an author's own slip: an engine that answers nothing looks idle",
    ),
    Wrong.patch(
        "all-to-one", "The rows of a dead one go to whoever has the least.", SECOND,
        SECOND.replace("new, limit)\n", "new, limit)\n                    if row in live:\n"
                       "                        rows[live[row][0]] -= 1\n", 1),
        "an author's own slip: load is counted where requests come in, and these come in at another door",
    ),
    Wrong.patch(
        "ended-twice", "An end is an end.", END,
        'elif what == "end" and of in [row for _, row, *_ in sent]:\n'
        "            place = next(to for to, row, *_ in sent[::-1] if row == of)\n"
        "            live.pop(of, None)\n"
        "            if place in rows:\n                rows[place] -= 1",
        "an author's own slip: an end that is heard twice takes a row from another one's count",
    ),
    Wrong.patch(
        "errors-stay", "A row that is done leaves.", END,
        END.replace("of in live", 'of in live and rest == ["done"]'),
        "an author's own slip: cancelled rows are counted for ever",
    ),
    Wrong.patch(
        "moved-ones-last", "Who has been moved stands behind all others.", SECOND,
        SECOND.replace("moved.add(row)", "moved.add(row)\n                    del live[row]"),
        "an author's own slip, in the first version of this exercise's right answer: a dict keeps its order, until "
        "something is taken out and put back",
    ),
    Wrong.patch(
        "last-asked-first", "The rows of a dead one, newest first.", "list(live.items()):", "list(live.items())[::-1]:",
        "an author's own slip: pop() takes from the end",
    ),
)  # fmt: skip


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


def with_a_queue(replicas: int, block: int, worth: int, history: History) -> Answer:
    """Replicas stand in a list in the order in which they were sent something; the first of the best is taken."""
    queue = list(range(replicas))
    prefixes: dict[int, dict[str, bool]] = {n: {} for n in queue}
    where: dict[str, int] = {}
    text_of: dict[str, list[int]] = {}
    limits: dict[str, int] = {}
    left: dict[str, int] = {}
    lives: dict[str, int] = {}
    sent, failed = [], []

    def send(row: str) -> None:
        if not queue:
            failed.append(row)
            return
        text = text_of[row]
        names = [" ".join(map(str, text[: at * block])) for at in range(1, len(text) // block + 1)]
        costs = []
        for replica in queue:
            hits = 0
            while hits < min(worth, len(names)) and names[hits] in prefixes[replica]:
                hits += 1
            costs.append(list(where.values()).count(replica) - hits)
        best = queue.pop(costs.index(min(costs)))
        queue.append(best)
        where[row] = best
        lives[row] = lives.get(row, 0) + 1
        for name in names:
            prefixes[best][name] = True
        sent.append((best, row, text, limits[row] - left[row], limits[row]))

    for what, first, *rest in history:
        if what == "ask":
            text_of[first], limits[first], left[first] = list(rest[0]), rest[1], rest[1]
            send(first)
        elif what == "tokens":
            if first in where:
                text_of[first] = text_of[first] + list(rest[0])
                left[first] -= len(rest[0])
        elif what == "end":
            where.pop(first, None)
        elif first in queue:
            queue.remove(first)
            orphans = [row for row in text_of if where.get(row) == first]
            for row in orphans:
                del where[row]
            for row in orphans:
                if left[row] > 0:
                    if lives[row] > 1:
                        failed.append(row)
                    else:
                        send(row)
    return sent, [(n, [*where.values()].count(n)) for n in sorted(queue)], failed


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


RIGHT = (Right(by_objects), Right(with_a_queue), Right(from_the_history))
EQUIVALENT = {
    "last = dict.fromkeys(range(replicas), -1)": "any number below that of the first message",
    "return (rows[replica] - min(worth, hits), last[replica], replica)": "the smaller of two, in any order",
}


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


EDITIONS = (
    Edition(
        "with-names", "replicas have names, and all that happens is told by dicts", route_dicts, args=_named,
        back=_plain, result=_told, axes=("item",),
    ),
)  # fmt: skip
