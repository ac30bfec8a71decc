"""Exercise 8.8: wrong answers (tests that see too little), correct variants, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanocourse.exercises.exercise import edition

Play = Callable[[int, int, list[tuple[str, int, int, int]]], list[list[str] | None]]
Plain = Callable[[str, int, int], str]


def one_at_a_time(play: Play, plain: Plain) -> None:
    """A scene for each thing that may go wrong; complaints are counted."""
    complaints = 0

    def look(ranks: int, luck: int, *requests: tuple[str, int, int, int]) -> int:
        bad = 0
        for texts in play(ranks, luck, [*requests]):
            for at, (prompt, seed, limit, patience) in enumerate(requests):
                steps = 1
                while steps < limit and (not patience or steps * 10 < patience):
                    steps += 1
                bad += texts is None or texts[at] != plain(prompt, seed, steps)
        return bad

    for ranks in (1, 2, 3, 4):
        for luck in (10, 11):
            complaints += look(ranks, luck, ("quick brown fox ", 0, 17, 0))
            complaints += look(ranks, luck, ("lazy dog ", 0, 9, 21), ("wolf ", 0, 9, 32), ("quiz ", 0, 9, 43))
            complaints += look(ranks, luck, *[("quick brown fox ", 0, 17, 0)] * 3)
    for seed in range(1, 12):
        complaints += look(2, seed, ("the wolf and the lamb ", seed, seed + 4, 0))
    assert complaints == 0


def with_one_rank_beside(play: Play, plain: Plain) -> None:
    """The machine itself on one rank is held against one rank, too, and then against more."""
    words = ["jump ", "over ", "the lazy ", "vow ", "quick fix "]
    for ranks in range(1, 5):
        for luck in range(ranks * 2):
            requests = [(word, 7 * luck + at, 8 + at, (61, 0, 31)[at % 3]) for at, word in enumerate(words)] * ranks
            wanted = []
            for prompt, seed, limit, patience in requests:
                whole = plain(prompt, seed, limit)
                ends = [at for at in range(1, limit + 1) if at == limit or 0 < patience <= at * 10]
                wanted.append(whole[: ends[0]])
            found = play(ranks, luck, requests)
            if found != [wanted for _ in range(ranks)]:
                raise AssertionError(found)


NAMES = "prompt", "seed", "limit", "patience"


def _by_dicts(play: Play, plain: Plain) -> tuple[Any, ...]:
    def told(requests: list[dict[str, Any]], luck: int, ranks: int) -> list[str]:
        rows = [tuple(request[name] for name in NAMES) for request in requests]
        return ["|".join(texts or []) for texts in play(ranks, luck, rows)]  # type: ignore[arg-type]

    return told, plain


def _by_tuples(told: Callable[[list[dict[str, Any]], int, int], list[str]], plain: Plain) -> tuple[Any, ...]:
    def play(ranks: int, luck: int, requests: list[tuple[str, int, int, int]]) -> list[list[str] | None]:
        rows = [dict(zip(NAMES, one, strict=True)) for one in requests]
        return [texts.split("|") if texts else None for texts in told(rows, luck, ranks)]

    return play, plain


@edition(
    "told",
    "requests are dicts, and what a rank has written is a str, with a bar between texts",
    args=_by_dicts,
    back=_by_tuples,
)
def check_told(play: Callable[[list[dict[str, Any]], int, int], list[str]], plain: Plain) -> None:
    """Raise AssertionError if the machine is wrong; return None if it is right.

    play(requests, luck, ranks) -> for each rank a str: the texts that it has written, one for each request, with a "|"
    between them; "" for a rank that waits for ever, or has failed. ranks: 1 to 4. luck: which rank is late, and when;
    any whole number. A request is a dict: "prompt", letters from "a" to "z" and " ", at least 1; "seed", 0 for greedy;
    "limit", the most new letters, at least 1; and "patience", for how many milliseconds it waits, 0 for ever. The
    letters of the prompt and the limit together are 48 at most. Requests run side by side in the order in which they
    come, as far as there is memory: 24 blocks of 4 letters. Whole texts are reserved; a request that finds no room
    waits. plain(prompt, seed, count) -> so many letters that one rank writes after the prompt; it is right.
    On a right machine all ranks write the same, whatever the luck and whatever runs beside it: the letters of one rank,
    as many as the limit says. A request that is not waited for any longer has less: the first rank's clock shows 10
    milliseconds more for each of its letters, and it ends with the first letter at which its patience is reached. The
    clocks of the other ranks show 1, 2 and 3 milliseconds more.
    Forty short requests in all are enough, and a play takes no more than forty. A check may take 10 seconds for each
    machine. Calling with the same arguments gives the same.
    """
    for ranks in (2, 3):
        for luck in (1, 2):
            requests: list[dict[str, Any]] = []
            wanted = []
            for at, prompt in enumerate(["the wolf ", "zebra ", "a hare ", "an owl "] * 3):
                own = {"prompt": prompt, "seed": 5 * at, "limit": 9 + at, "patience": 51 * (at % 3 == 1)}
                requests.append(own)
                wanted.append(plain(prompt, 5 * at, 6 if own["patience"] else 9 + at))
            assert play(requests, luck, ranks) == ["|".join(wanted)] * ranks
