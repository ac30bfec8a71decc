"""Exercise 7.6: where a run of several tokens ends a row."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises import Call, Case, Check, Spec, call

Run = list[tuple[int, str]]


def end_run(run: list[tuple[int, str]], row: dict[str, Any], params: dict[str, Any]) -> tuple[int, str, str]:
    """How many tokens of the run the row keeps, its finish reason, "" where it goes on, and its text afterwards.

    run: what one step has given the row, in order: (id, its text), at least one; the text of an id may be "".
    row: as it is ahead of the step: "new", how many new tokens it has; "length", how many tokens with its prompt;
    "text", that of its new tokens, in which no stop string stands. params: "max_tokens", the most new tokens;
    "context", the most tokens with the prompt; the row has had room for one token more by both; "stop_ids", a list of
    ids, and "stops", a list of strings that are not empty.
    All is as if the tokens had come one by one. The row ends with the first token that ends it, which is its last one.
    An id of stop_ids ends it by "stop"; its text is not added. Otherwise its text is added, and if a stop string stands
    in the text now, also one that began in an earlier token, the row ends by "stop", and its text ends ahead of the
    stop string: of several ahead of that which begins first. A token that does neither ends the row by "length" if it
    is the last one that max_tokens or context has room for.
    """
    left = min(params["max_tokens"] - row["new"], params["context"] - row["length"])
    text = row["text"]
    for count, (token, piece) in enumerate(run, start=1):
        if token in params["stop_ids"]:
            return count, "stop", text
        text += piece
        found = [text.find(stop) for stop in params["stops"] if stop in text]
        if found:
            return count, "stop", text[: min(found)]
        if count == left:
            return count, "length", text
    return len(run), "", text


def _call(case: Case, run: Run, row: tuple[int, int, str], limits: tuple[int, int], ids: list[int], stops: list[str],
          turned: bool = False) -> Call:  # fmt: skip
    """Dicts by hand; turned: their names in the other order."""
    own = {"new": row[0], "length": row[1], "text": row[2]}
    params = {"max_tokens": limits[0], "context": limits[1], "stop_ids": ids, "stops": stops}
    if turned:
        own, params = (dict(reversed(list(one.items()))) for one in (own, params))
    return call(run, own, params)


def _example() -> Call:
    row = {"new": 2, "length": 12, "text": "The w"}
    params = {"max_tokens": 9, "context": 100, "stop_ids": [0], "stops": ["olf."]}
    return call([(7, "ol"), (8, "f. T"), (9, "he"), (0, "<end>")], row, params)


EXERCISE = Spec(
    reference=end_run,
    lines=13,
    example=_example,
    section="A run that ends in the middle",
    axes=("part",),
    typed=True,
    refuse=("nanoinfer.engine.queue:QueueEngine.take", "nanoinfer.text.stop:TextStream.push"),
)  # fmt: skip

LETTERS = "abcdefgh"


def _run(case: Case, count: int) -> Run:
    """Ids from 10 on, each with two letters, in which no "x" and no "yz" stands."""
    ids = case.sample("ids", range(10, 90), count)
    pieces = case.ints("pieces", 0, len(LETTERS) - 1, count, 2).tolist()
    return [(token, "".join(LETTERS[at] for at in piece)) for token, piece in zip(ids, pieces, strict=True)]


def an_id_that_stops(case: Case) -> Call:
    """An id that stops ends the row wherever it stands in the run; the row keeps it, without its text."""
    run = _run(case, case.size("tokens", 2, 6))
    at = case.turn((0, len(run) // 2, len(run) - 1))
    stop = [run[at][0], 3] if case.turn((True, True, True, False)) else [3]
    return _call(case, run, (4, 9, "ab"), (90, 900), stop, [])


def a_stop_string(case: Case) -> Call:
    """A stop string may stand in one token, in several, or begin in what the row had before; text ends ahead of it."""
    run = _run(case, case.size("tokens", 4, 6))
    at = case.choice("at", range(len(run) - 2))
    before = "ab"
    form = case.turn(("inside", "across", "before", "two", "two in one"))
    stops = ["xyz"]
    if form == "inside":
        run[at] = (run[at][0], "axyzb")
    elif form == "before":
        before, run[:4] = "abx", [(run[n][0], piece) for n, piece in enumerate(("y", "zc", "x", "yz"))]
    elif form == "two in one":
        run[at], stops = (run[at][0], "axyzb"), ["z", "yz", "xyz"]
    else:
        run[at], run[at + 1], run[at + 2] = (run[at][0], "bx"), (run[at + 1][0], "y"), (run[at + 2][0], "zcxyz")
        stops = ["xyz", "x"] if form == "two" else ["xyz"]
    return _call(case, run, (4, 9, before), (90, 900), [], stops)


def no_room(case: Case) -> Call:
    """The limit of new tokens and the context's end cut a run, whichever comes first; at the last token, too."""
    run, new, length = _run(case, case.size("tokens", 2, 6)), case.size("new", 0, 5), case.size("length", 6, 20)
    room = case.choice("room", range(1, len(run) + 1))
    more = case.size("more", 1, 3)
    limits = case.turn(((room, room + more), (room + more, room), (room, room), (len(run) + 1, len(run) + 2)))
    return _call(case, run, (new, length, ""), (new + limits[0], length + limits[1]), [], ["nowhere"])


def a_stop_and_no_room(case: Case) -> Call:
    """Of a stop and a limit the one that comes first ends the row; at the same token it is the stop."""
    run = _run(case, 5)
    stop, room = case.turn(((1, 4), (4, 1), (2, 3), (3, 3), (2, 2)))
    by_id = case.choice("by id", (True, False))
    if not by_id:
        run[stop - 1] = (run[stop - 1][0], "cx")
    row, limits = (3, 7, "a"), case.choice("limit", ((3 + room, 99), (99, 7 + room)))
    return _call(case, run, row, limits, [run[stop - 1][0]] if by_id else [], [] if by_id else ["x"])


KINDS = ("one", "nothing", "one left", "equal", "id 0", "no text", "turned", "several", "several", "large", "long")


def any_run(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """One token, a hundred, no stops, equal ids, ids that are 0 or large, tokens without any text."""
    kind = case.turn(KINDS)
    if kind == "one":
        return _call(case, _run(case, 1), (0, 1, ""), (1, 2), [], [])
    if kind == "nothing":
        return _call(case, _run(case, 4), (7, 80, "abc"), (20, 100), [], [])
    if kind == "one left":
        return _call(case, _run(case, 3), (9, 99, "ab"), (50, 100), [3], ["xyz"])
    if kind == "equal":
        return _call(case, [(5, "y")] * 6, (0, 3, "z"), (90, 90), [], ["yyyy", "yyy"])
    if kind == "large":
        run = [(2**24 + at, "h") for at in range(6)]
        return _call(case, run, (70_000, 140_000, ""), (70_006, 150_000), [2**24 + 4, 2**40], ["hhhhhhh"])
    if kind == "id 0":
        return _call(case, [(9, "a"), (0, "b"), (9, "c")], (0, 1, ""), (4, 90), [0], ["0"])
    if kind == "no text":
        return _call(case, [(9, ""), (8, "x"), (7, ""), (6, "y")], (1, 2, ""), (9, 9), [], ["xy"])
    if kind == "long":
        run = [(at + 200, LETTERS[at % 8]) for at in range(100)]
        run[70:73] = [(1, "x"), (2, ""), (3, "yz")]
        return _call(case, run, (2, 5, "h"), (case.choice("limit", (60, 75, 300)), 900), [4], ["xyz"])
    run = _run(case, 5)
    stop = run[case.choice("stop", range(5))][0]
    return _call(case, run, (3, 8, "xy"), (case.choice("limit", (5, 7, 90)), 90), [stop], ["xyz"], kind == "turned")


CHECKS = (
    Check(any_run, len(KINDS), wide=True), Check(an_id_that_stops, 4), Check(a_stop_string, 5), Check(no_room, 4),
    Check(a_stop_and_no_room, 5),
)  # fmt: skip
