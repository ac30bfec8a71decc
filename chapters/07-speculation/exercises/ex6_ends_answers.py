"""Exercise 7.6: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from nanocourse.exercises.exercise import edition

Run = list[tuple[int, str]]
Answer = tuple[int, str, str]


def one_after_the_other(run: Run, row: dict[str, Any], params: dict[str, Any]) -> Answer:
    """Recursion: the first token, and then the rest for the row as it is then."""
    (token, piece), *rest = run
    if token in params["stop_ids"]:
        return 1, "stop", row["text"]
    text = row["text"] + piece
    begins = min((text.index(stop) for stop in params["stops"] if stop in text), default=-1)
    if begins >= 0:
        return 1, "stop", text[:begins]
    after = {"new": row["new"] + 1, "length": row["length"] + 1, "text": text}
    if after["new"] >= params["max_tokens"] or after["length"] >= params["context"]:
        return 1, "length", text
    if not rest:
        return 1, "", text
    count, reason, told = one_after_the_other(rest, after, params)
    return 1 + count, reason, told


def three_ends(run: Run, row: dict[str, Any], params: dict[str, Any]) -> Answer:
    """Where each kind of end would be; the smallest of them, stops first."""
    never = len(run) + 1
    texts = list(accumulate((piece for _, piece in run), initial=row["text"]))
    by_id = next((at for at, (token, _) in enumerate(run, 1) if token in set(params["stop_ids"])), never)
    holds = [any(stop in text for stop in params["stops"]) for text in texts]
    by_text = holds.index(True) if True in holds else never
    by_length = min(params["max_tokens"] - row["new"], params["context"] - row["length"])
    first = min(by_id, by_text, by_length)
    if first >= never:
        return len(run), "", texts[-1]
    if first == by_id:
        return first, "stop", texts[first - 1]
    if first == by_text:
        return first, "stop", texts[first][: min(texts[first].find(s) for s in params["stops"] if s in texts[first])]
    return first, "length", texts[first]


def _room(run: Run, row: dict[str, Any], params: dict[str, Any]) -> tuple[Any, ...]:
    room = params["max_tokens"] - row["new"], params["context"] - row["length"]
    return [token for token, _ in run], [piece for _, piece in run], room, row["text"], [
        *params["stop_ids"], *params["stops"]
    ]  # fmt: skip


def _named(ids: list[int], pieces: list[str], room: tuple[int, int], had: str, stops: list[Any]) -> tuple[Any, ...]:
    by_id, by_text = ([stop for stop in stops if isinstance(stop, kind)] for kind in (int, str))
    row = {"new": 4, "length": 9, "text": had}
    params = {"max_tokens": 4 + room[0], "context": 9 + room[1], "stop_ids": by_id, "stops": by_text}
    return list(zip(ids, pieces, strict=True)), row, params


@edition(
    "by-room",
    "ids and texts are lists, what is left is given, and the answer is a dict",
    args=_room,
    back=_named,
    result=lambda result, run, *_: {
        "ids": [token for token, _ in run[: result[0]]],
        "text": result[2],
        "why": result[1] or None,
    },
    axes=("list", "token"),
)
def taken(ids: list[int], pieces: list[str], room: tuple[int, int], had: str, stops: list[Any]) -> dict[str, Any]:
    """What the row takes of a run: its "ids", the "text" of all its new tokens then, and "why" it ends, or None.

    ids, pieces: what one step has given the row, in order, each id with its text; at least one. room: how many more
    tokens the row may have by its limit, and by the context; both are at least 1. had: the text of its new tokens ahead
    of the step, in which no stop string stands. stops: ids, which are whole numbers, and strings that are not empty.
    All is as if the tokens had come one by one. The row ends with the first token that ends it, which is its last one.
    An id of stops ends it by "stop"; its text is not added. Otherwise its text is added, and if a stop string stands in
    the text now, also one that began in an earlier token, the row ends by "stop", and its text ends ahead of the stop
    string: of several ahead of that which begins first. A token that does neither ends the row by "length" if it is the
    last one that either has room for.
    """
    text, strings = had, [stop for stop in stops if isinstance(stop, str)]
    for at, (token, piece) in enumerate(zip(ids, pieces, strict=True), 1):
        if token in stops:
            return {"ids": ids[:at], "text": text, "why": "stop"}
        text += piece
        if any(stop in text for stop in strings):
            end = min(text.find(stop) for stop in strings if stop in text)
            return {"ids": ids[:at], "text": text[:end], "why": "stop"}
        if at == min(room):
            return {"ids": ids[:at], "text": text, "why": "length"}
    return {"ids": ids, "text": text, "why": None}
