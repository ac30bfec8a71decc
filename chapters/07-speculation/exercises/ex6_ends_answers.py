"""Exercise 7.6: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

from nanocourse.exercises.exercise import Edition, Right, Wrong

Run = list[tuple[int, str]]
Answer = tuple[int, str, str]

LEFT = 'min(params["max_tokens"] - row["new"], params["context"] - row["length"])'
BY_ID = 'if token in params["stop_ids"]:'
FOUND = 'found = [text.find(stop) for stop in params["stops"] if stop in text]'
BY_TEXT = 'return count, "stop", text[: min(found)]'
BY_LENGTH = """        if count == left:
            return count, "length", text
"""
WRONG = (
    Wrong.patch(
        "last-token-alone", "A step is over, and its last token tells whether the row is.", BY_ID,
        'if token in params["stop_ids"] and count == len(run):',
        "huggingface/transformers#47912, LostRuins/koboldcpp#1276: text after an end in the middle of a run",
    ),
    Wrong.patch(
        "length-first", "Whatever goes beyond the limit ends for length.", '    text = row["text"]\n',
        '    text = row["text"]\n    if len(run) >= left:\n'
        '        return left, "length", text + "".join(piece for _, piece in run[:left])\n',
        "sgl-project/sglang#31599: the cap was tested first, and hid a stop that came before it",
    ),
    Wrong.patch(
        "limit-of-steps", "A step is never cut: the limit is looked at after it.", BY_LENGTH,
        '        if count == len(run) >= left:\n            return count, "length", text\n',
        "an author's own slip: a row of 10 tokens at most gets 12",
    ),
    Wrong.patch(
        "context-forgotten", "The limit is what the request asks for.", LEFT, 'params["max_tokens"] - row["new"]',
        "vllm-project/vllm#42533: tokens past the longest text that the model takes",
    ),
    Wrong.patch(
        "limit-forgotten", "A row ends where its context does.", LEFT, 'params["context"] - row["length"]',
        "an author's own slip: one of two limits, the one that tests meet less often",
    ),
    Wrong.patch(
        "context-one-less", "The last position is kept for the token that follows.", LEFT,
        'min(params["max_tokens"] - row["new"], max(1, params["context"] - row["length"] - 1))',
        "an author's own slip: off by one at the context's end, where a plain row gets one token more",
    ),
    Wrong.patch(
        "context-one-more", "The last token is not fed, so it needs no place in the context.", LEFT,
        'min(params["max_tokens"] - row["new"], params["context"] - row["length"] + 1)',
        "an author's own slip: off by one the other way about",
    ),
    Wrong.patch(
        "stop-text-added", "The text is that of all tokens.", 'return count, "stop", text\n',
        'return count, "stop", text + piece\n', "an author's own slip: <end> at the end of an answer",
    ),
    Wrong.patch(
        "stop-id-dropped", "The id that stops is no part of the answer.", 'return count, "stop", text\n',
        'return count - 1, "stop", text\n', "engines that count it and engines that do not; this one does",
    ),
    Wrong.patch(
        "stop-string-kept", "The text ends with what it was stopped by.", BY_TEXT, 'return count, "stop", text',
        "an author's own slip: what has been sent already cannot be taken back",
    ),
    Wrong.patch(
        "cut-at-a-token", "The token in which the stop string ends is not a part of the text.", BY_TEXT,
        'return count, "stop", text[: len(text) - len(piece)]',
        "an author's own slip: a stop string begins in the middle of a token, or in an earlier one",
    ),
    Wrong.patch(
        "tokens-dropped", "Tokens of the stop string are not counted.", BY_TEXT,
        'return count - 1, "stop", text[: min(found)]', "an author's own slip: usage that is one too small",
    ),
    Wrong.patch(
        "ids-left-behind", "What is cut is the text.", BY_TEXT, 'return len(run), "stop", text[: min(found)]',
        "vllm-project/vllm#47616: ids and logprobs after the token that held the stop string",
    ),
    Wrong.patch(
        "one-token-window", "A stop string stands in the newest token.", FOUND,
        'found = [text.find(stop) for stop in params["stops"] if stop in piece]',
        "sgl-project/sglang#23802: a window that was too short for runs of several tokens",
    ),
    Wrong.patch(
        "one-step-window", "A stop string stands in what the step has brought.", FOUND,
        'found = [text.find(stop) for stop in params["stops"] if stop in text[len(row["text"]) :]]',
        "sgl-project/sglang#23802, from the other side: what began before the step is not found",
    ),
    Wrong.patch(
        "first-in-the-list", "Of several stop strings the first one of the list counts.", "min(found)", "found[0]",
        "vllm-project/vllm#49391: several stop strings in one step, and the first of the list was taken",
    ),
    Wrong.patch(
        "last-one-unseen", "The last token of a run is looked at in the next step.", BY_ID,
        f"if count == len(run) > 1:\n            return count, \"\", text + piece\n        {BY_ID}",
        "an author's own slip: the token that the model chose itself is forgotten, since it is no draft",
    ),
    Wrong.patch(
        "length-wins", "A row that has used its limit ends for length.", BY_TEXT,
        'return count, "length" if count == left else "stop", text[: min(found)]',
        "sgl-project/sglang#31569, the repair of #31599: a cap wins only where it lies ahead of the stop",
    ),
)  # fmt: skip


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


def by_pattern(run: Run, row: dict[str, Any], params: dict[str, Any]) -> Answer:
    """Stop strings as one pattern with look-ahead, so that the place that comes first is found."""
    pattern = re.compile("|".join(f"(?={re.escape(stop)})" for stop in params["stops"]) or r"(?!)")
    said, new, length = row["text"], row["new"], row["length"]
    while True:
        token, piece = run[new - row["new"]]
        new, length = new + 1, length + 1
        stopped = token in params["stop_ids"]
        said = said if stopped else said + piece
        match = None if stopped else pattern.search(said)
        if stopped or match:
            return new - row["new"], "stop", said[: match.start()] if match else said
        if new == params["max_tokens"] or length == params["context"]:
            return new - row["new"], "length", said
        if new - row["new"] == len(run):
            return len(run), "", said


RIGHT = (Right(one_after_the_other), Right(three_ends), Right(by_pattern))
_ORDER = "the smaller of two, in any order"
EQUIVALENT = {"left = min(params['context'] - row['length'], params['max_tokens'] - row['new'])": _ORDER}


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


EDITIONS = (
    Edition(
        "by-room", "ids and texts are lists, what is left is given, and the answer is a dict", taken,
        args=_room, back=_named,
        result=lambda result, run, *_: {
            "ids": [token for token, _ in run[: result[0]]], "text": result[2], "why": result[1] or None
        },
        axes=("list", "token"),
    ),
)  # fmt: skip
