"""Exercise 8.6: which of several engines a request goes to, and where it goes on when that one dies."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises import Call, Case, Check, Spec, call

Sent = list[tuple[int, str, list[int], int, int]]
Known = dict[int, set[tuple[int, ...]]]
Live = dict[str, tuple[int, list[int], int, int]]


def route(
    replicas: int, block: int, worth: int, history: list[tuple[Any, ...]]
) -> tuple[list[tuple[int, str, list[int], int, int]], list[tuple[int, int]], list[str]]:
    """What was sent to which replica; of each that lives (replica, its rows), in order; and which rows have failed.

    replicas: how many engines there are, numbered from 0; at first all live, and know no text. block: tokens of a
    block of their caches. history: what happens, one after the other:
    ("ask", row, text, limit): a request: a name that no other has, at least one token id, and how many new tokens it
    wants, at least 1. It is sent to a replica at once: (replica, row, text, 0, limit) is noted.
    ("tokens", row, ids): its replica has given the row these new tokens, which may be none; never more than the limit.
    ("end", row, why): the row has ended; `why` makes no difference. Its replica has one row less.
    ("dies", replica): it is never sent anything again. Each row that it has, in the order in which they were asked,
    goes on elsewhere, as if nothing had happened: what is sent is its text with all new tokens that it has been given
    so far, how many of its tokens are new, since noise and limit count these, and the limit: (replica, row, text, new,
    limit). A row that has all of its new tokens by then has ended. A row whose second replica dies fails. A replica
    that has died already does not die again.
    Where no replica lives a request, or a row that should go on, fails. Of a row that has ended or failed nothing is
    heard any more: "tokens" and "end" change nothing.
    A replica's cost for a text: the rows that it has, less the blocks of the text that it knows, counting at most
    `worth` of these. It knows a block of a text if it was ever sent a text that begins alike up to that block's end;
    blocks that are not full do not count. The text goes to the replica with the lowest cost; among equals to the one
    that was sent something the longest ago, one that was never sent anything first of all; and among these to the one
    with the lowest number. (The engine's own rule is a different one.) Rows that fail are listed in the order in which
    they do, and of one death in the order in which they were asked.
    """
    rows = dict.fromkeys(range(replicas), 0)  # of those that live
    last = dict.fromkeys(range(replicas), 0)
    known: Known = {replica: set() for replica in range(replicas)}
    live: Live = {}  # where a row is, its text by now, how much of it is new, and the limit
    moved: set[str] = set()
    sent: Sent = []
    failed: list[str] = []

    def send(row: str, text: list[int], new: int, limit: int) -> None:
        begins = [tuple(text[:end]) for end in range(block, len(text) + 1, block)]

        def cost(replica: int) -> tuple[int, int, int]:
            hits = sum(begin in known[replica] for begin in begins)
            return rows[replica] - min(hits, worth), last[replica], replica

        if not rows:
            failed.append(row)
            live.pop(row, None)
            return
        best = min(rows, key=cost)
        rows[best] += 1
        known[best].update(begins)
        sent.append((best, row, text, new, limit))
        last[best] = len(sent)
        live[row] = best, text, new, limit

    for what, of, *rest in history:
        if what == "ask":
            text, limit = rest
            send(of, text, 0, limit)
        elif what == "dies" and of in rows:
            del rows[of]
            for row, (replica, text, new, limit) in list(live.items()):
                if replica == of and new < limit and row not in moved:
                    moved.add(row)
                    send(row, text, new, limit)
                elif replica == of:
                    del live[row]
                    failed += [row] * (new < limit)
        elif what == "tokens" and of in live:
            (ids,) = rest
            replica, text, new, limit = live[of]
            live[of] = replica, text + ids, new + len(ids), limit
        elif what == "end" and of in live:
            replica, *_ = live.pop(of)
            rows[replica] -= 1
    return sent, list(rows.items()), failed


def _example() -> Call:
    return call(
        2, 2, 1, [("ask", "a", [5, 6, 7], 4), ("ask", "b", [1, 2], 9), ("tokens", "a", [8]), ("dies", 0)]
    )  # fmt: skip


EXERCISE = Spec(
    reference=route,
    lines=35,
    example=_example,
    section="Replicas",
    axes=(("sent", "message", "part"), ("rows", "replica", "item"), ("failed", "row")),
    typed=True,
    refuse=("nanoinfer.parallel.replicas:ReplicaLoop.submit",),
)

History = list[tuple[Any, ...]]


def _text(case: Case, name: str, length: int, high: int = 99) -> list[int]:
    return case.ints(name, 0, high, length).tolist()


def the_least(case: Case) -> Call:
    """The replica with the fewest rows; among equals the one that was sent something the longest ago."""
    replicas = case.size("replicas", 2, 4)
    names = [f"r{at}" for at in range(case.size("rows", 3, 8))]
    history: History = []
    for at, row in enumerate(names):
        history.append(("ask", row, _text(case, row, 3), 9))
        if case.choice(f"ends {row}", (True, False)):
            history.append(
                (
                    "end",
                    case.choice(f"which {row}", names[: at + 1]),
                    case.choice(f"why {row}", ("done", "cancelled", "error")),
                )
            )
    history += [("ask", f"s{at}", _text(case, f"s{at}", 2), 1) for at in range(3)]
    return call(replicas, 4, 2, history)


def hits(case: Case) -> Call:
    """Blocks that a replica knows from the text's beginning count, up to what they are worth."""
    block, worth = case.turn((2, 3, 2, 1)), case.turn((2, 1, 3, 2))
    texts = [_text(case, f"text {at}", 3 * block, 2) for at in range(2)]
    history: History = [("ask", "a", texts[0], 5), ("ask", "b", texts[1], 5)]
    for at in range(case.size("more", 4, 8)):
        text = texts[case.choice(f"like {at}", (0, 0, 0, 1))]
        cut = case.choice(f"cut {at}", range(1, len(text) + 1))
        skip = case.choice(f"skip {at}", (0, 0, 0, block))
        history.append(
            (
                "ask",
                f"r{at}",
                [*text[skip:cut], *_text(case, f"tail {at}", case.choice(f"long {at}", (0, 0, 3)))] or [1],
                5,
            )
        )
    return call(3, block, worth, history)


def goes_on(case: Case) -> Call:
    """When a replica dies its rows go on behind what they have been given, in the order in which they were asked."""
    names = [f"r{at}" for at in range(case.size("rows", 3, 6))]
    texts = {row: _text(case, row, 3) for row in names}
    history: History = [("ask", row, texts[row], 9) for row in names]
    for at, row in enumerate(names * 2):
        new = _text(case, f"new {at}", case.choice(f"count {at}", (0, 2, 4)))
        history.append(("tokens", row, new))
        texts[row] = texts[row] + new
    history.append(("dies", case.turn((0, 1, 0, 1, 0))))
    history += [("tokens", row, _text(case, f"last {row}", 1)) for row in names]
    for row in names[:2]:  # what was said is known where it was sent
        history += [("ask", f"{row} {at}", [*texts[row], at], 3) for at in range(3)]
    history += [("ask", "new", _text(case, "new", 2), 3), ("end", names[0], "done"), ("ask", "newer", [1], 3)]
    return call(case.turn((3, 2, 4, 3, 3)), 2, case.turn((4, 0, 3, 4, 2)), history)


def to_the_end(case: Case) -> Call:
    """A row that has all of its tokens ends with its replica; one whose second replica dies fails; all may die."""
    replicas = case.turn((3, 3, 2, 4))
    history: History = [("ask", f"r{at}", _text(case, f"r{at}", 2), 3) for at in range(2 * replicas)]
    history += [("tokens", f"r{at}", _text(case, f"new {at}", 3)) for at in range(case.turn((0, 1)), 2 * replicas, 3)]
    order = case.permutation("order", replicas).tolist()
    given = {row for what, row, *_ in history if what == "tokens"}
    late = case.turn((True, False))  # rows may have all of their tokens on their second replica
    for at, dead in enumerate(order[: case.turn((2, 3, 2, 3))]):
        history.append(("dies", dead))
        for row in [f"r{at}" for at in range(2 * replicas) if f"r{at}" not in given]:
            if late and case.choice(f"{row} after {at}", (True, False, False)):
                history.append(("tokens", row, _text(case, f"more {row}", 3)))
                given.add(row)
        history.append(("ask", f"s{at}", _text(case, f"s{at}", 2), 2))
        history.append(("dies", dead))
        history.append(("end", f"r{case.choice(f'end {at}', range(2 * replicas))}", "done"))
    return call(replicas, 1, 1, history)


KINDS = ("nothing", "said", "one", "alone dies", "burst", "common", "large", "zeros", "equal", "worthless", "exactly",
         "partly", "partly more", "long", *["some"] * 9)  # fmt: skip


def any_history(case: Case) -> Call:  # noqa: PLR0911, PLR0912  one for each kind
    """Nothing, one replica, bursts, one prompt for all, large ids, long texts; all that happens, in any order."""
    kind = case.turn(KINDS)
    if kind == "nothing":
        return call(2, 3, 1, [])
    if kind == "said":  # the second replica knows a's new tokens, and has two rows by then
        text = _text(case, "text", 7)
        history = [
            ("ask", "a", text[:2], 9),
            ("ask", "b", [100], 9),
            ("ask", "c", [101], 9),
            ("tokens", "a", text[2:6]),
        ]
        return call(3, 2, 3, [*history, ("dies", 0), ("end", "c", "done"), ("ask", "d", text, 9)])
    if kind == "one":
        return call(1, 1, 1, [("ask", "a", [0], 1), ("tokens", "a", [0]), ("end", "a", "done"), ("end", "a", "again")])
    if kind == "alone dies":
        return call(1, 2, 1, [("ask", "a", [1, 2], 3), ("dies", 0), ("ask", "b", [1], 1), ("tokens", "a", [3])])
    if kind == "burst":
        return call(3, 16, 4, [("ask", f"r{at}", _text(case, f"r{at}", 5), 9) for at in range(70)])
    if kind in ("common", "worthless", "equal"):
        text = _text(case, "text", 12)
        asked: History = [("ask", f"r{at}", text if kind == "equal" else [*text, at], 9) for at in range(24)]
        return call(4, 4, 0 if kind == "worthless" else 2, asked)
    if kind == "exactly":
        return call(2, 3, 2, [("ask", "a", [1, 2, 3], 9), ("ask", "b", [9], 9), ("ask", "c", [1, 2, 3], 9),
                              ("ask", "d", [1, 2, 3, 1, 2, 3], 1), ("ask", "e", [1, 2], 1)])  # fmt: skip
    if kind.startswith("partly"):
        length = 4 if kind == "partly" else 8
        return call(3, 3, 9, [("ask", f"r{at}", [1, 2, 3, 4, 5, 6, 7, 8][:length], 9) for at in range(5)])
    high = 2**33 if kind == "large" else 2
    replicas, block = 3, 5 if kind == "long" else 2
    history = []
    asked_for: dict[str, int] = {}
    for at in range(18):
        what = case.choice(f"what {at}", ("ask", "ask", "ask", "tokens", "tokens", "end", "dies"))
        row = case.choice(f"row {at}", [*asked_for, "x"])
        if what == "ask":
            length = case.choice(f"length {at}", (1, 2, 4, 5)) * (20 if kind == "long" else 1)
            asked_for[f"q{at}"] = case.choice(f"limit {at}", (1, 2, 5, 9))
            text = [0] * length if kind == "zeros" else _text(case, f"text {at}", length, high)
            history.append(("ask", f"q{at}", text, asked_for[f"q{at}"]))
        elif what == "tokens" and row in asked_for:
            count = min(asked_for[row], case.choice(f"count {at}", (0, 1, 1, 2)))
            asked_for[row] -= count
            history.append(("tokens", row, _text(case, f"new {at}", count, high)))
        elif what == "end":
            history.append(("end", row, "cancelled"))
        elif what == "dies":
            history.append(("dies", case.choice(f"dead {at}", range(replicas))))
    return call(replicas, block, 1, history)


CHECKS = (
    Check(any_history, len(KINDS), wide=True), Check(the_least, 4), Check(hits, 8), Check(goes_on, 5),
    Check(to_the_end, 8),
)  # fmt: skip
