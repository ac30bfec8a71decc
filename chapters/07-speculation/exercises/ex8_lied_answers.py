"""Exercise 7.8: wrong answers (tests that see too little), correct variants, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanocourse.exercises.exercise import edition

Play = Callable[[int, list[tuple[str, int, int, str, str]]], list[list[str]]]
Plain = Callable[[str, int, int], str]


def at_random(play: Play, plain: Plain) -> None:
    """Requests at random, several at once; what each step gives is computed from the end."""
    import random

    draw = random.Random(3)

    def steps(text: str, guess: str, most: int, stop: str) -> list[str]:
        if not text:
            return []
        drafts = guess[: min(most, len(text) - 1)].partition("-")[0]
        kept = 0
        while kept < len(drafts) and drafts[kept] == text[kept]:
            kept += 1
        run = text[: kept + 1]
        for at in range(len(run)):
            if run[at] in set(stop):
                return [run[: at + 1]]
        return [run, *steps(text[kept + 1 :], guess[kept + 1 :], most, stop)]

    for _ in range(40):
        most, requests, wanted = draw.randint(1, 5), [], []
        for _ in range(draw.randint(1, 3)):
            prompt = "".join(draw.choices("abcdefghij", k=draw.choice([1, 3, 8, 15, 19, 23])))
            seed, limit = draw.choice([0, 0, 1, 2, 3]), draw.choice([1, 4, 9, 30])
            text = plain(prompt, seed, min(limit, 24 - len(prompt)))
            guess = "".join(one if draw.random() < 0.75 else draw.choice("abcdefghij-") for one in text)
            stop = draw.choice(["", "", draw.choice(text)])
            requests.append((prompt, seed, limit, stop, guess))
            wanted.append(steps(text, guess, most, stop))
        assert [list(runs) for runs in play(most, requests)] == wanted


def with_a_machine_of_its_own(play: Play, plain: Plain) -> None:
    """A right machine in a few lines, to compare with."""

    def mine(most: int, request: tuple[str, int, int, str, str]) -> list[str]:
        prompt, seed, limit, stop, guess = request
        new, runs = "", [""]
        room = min(limit, 24 - len(prompt))
        text = plain(prompt, seed, room)
        brought = guess[: min(most, room - 1)].split("-")[0]
        while len(new) < room:
            letter = text[len(new)]
            new, runs[-1] = new + letter, runs[-1] + letter
            if letter in stop:
                break
            if brought[:1] == letter:
                brought = brought[1:]
            else:
                runs.append("")
                brought = guess[len(new) :][: min(most, room - len(new) - 1)].split("-")[0]
        return [run for run in runs if run]

    for most in (1, 2, 3, 6):
        for prompt in ("a", "fee", "gachadeachifacade", "abcabcabcabcabcabcabcab"):
            for limit in (2, 7, 40):
                requests: list[tuple[str, int, int, str, str]] = []
                for seed in (0, 0, 9, 8):
                    text = plain(prompt, seed, 24 - len(prompt))
                    at = len(requests) + most
                    guess = text[:at] + "j" + text[at + 1 :] if len(requests) % 2 else text
                    wrong = text[:1] + "".join("c" if one == "d" else "d" for one in text[1:4]) + text[4:]
                    stop = text[min(2, len(text) - 1)] if most == 6 else ""
                    requests += [(prompt, seed, limit, stop, guess), (prompt, seed, limit, "", wrong)]
                    requests += [(prompt, seed, limit, "", text[:2] + "-" + text[3:])]
                assert play(most, requests) == [mine(most, request) for request in requests]


def _by_dicts(play: Play, plain: Plain) -> tuple[Any, ...]:
    def told(requests: list[dict[str, Any]]) -> list[str]:
        names = "prompt", "seed", "limit", "stop", "guess"
        rows = [tuple(request[name] for name in names) for request in requests]
        return ["|".join(runs) for runs in play(requests[0]["most"], rows)]  # type: ignore[arg-type]

    return told, plain


def _by_tuples(told: Callable[[list[dict[str, Any]]], list[str]], plain: Plain) -> tuple[Any, ...]:
    def play(most: int, requests: list[tuple[str, int, int, str, str]]) -> list[list[str]]:
        names = "prompt", "seed", "limit", "stop", "guess"
        return [
            runs.split("|") for runs in told([dict(zip(names, one, strict=True)) | {"most": most} for one in requests])
        ]

    return play, plain


@edition(
    "told",
    "requests are dicts, and what a machine gave one is a str, with a bar between steps",
    args=_by_dicts,
    back=_by_tuples,
)
def check_told(play: Callable[[list[dict[str, Any]]], list[str]], plain: Plain) -> None:
    """Raise AssertionError if the machine is wrong; return None if it is right.

    play(requests) -> for each request what it was given, a str with a "|" between one step and the next, at least one
    letter each. All requests run side by side from the first step on, each until it ends. A request is a dict:
    "prompt", letters from "a" to "j", 1 to 23; "seed", 0 for greedy; "limit", the most new letters, at least 1; "stop",
    letters each of which ends it, or ""; "guess", what somebody guesses that it writes, from its first new letter on,
    with a "-" for no guess; and "most", its drafts in one step at most, at least 1 and the same for all of them.
    plain(prompt, seed, count) -> so many letters that plain decoding writes after the prompt; it is right.
    A right machine gives a request the letters of plain decoding, up to the first that ends it: one of its stop, which
    is given too; the last one of its limit; or the 24th with its prompt. In each step it brings as drafts the letters
    of the guess for its next places: up to the first "-" or the end of the guess, "most" at most, and no more than
    leave room for one letter after them, by its limit and by the 24. The step gives it the drafts up to the first
    wrong one, and one letter more; less, where one of them ends the request. What runs beside it changes nothing.
    A hundred short requests are enough: machines are played many times. Calling with the same arguments gives the same.
    """
    for most in (2, 4):
        for prompt, limit in (("abc", 9), ("hidden", 40), ("abcdefghijabcdefgh", 40)):
            requests: list[dict[str, Any]] = []
            wanted = []
            rows = ((5, 1, -1), (6, 3, -1), (0, 9, 2), (0, 2, -1), (7, 99, 3), (7, 0, -1), (9, 1, -1))
            for seed, wrong, stop in rows:
                text = plain(prompt, seed, min(limit, 24 - len(prompt)))
                other = {at: "-" if seed == 9 else "ab"[text[at] == "a"] for at in range(wrong, len(text))[:1]}
                guess = "".join(other.get(at, one) for at, one in enumerate(text))
                own: dict[str, Any] = {
                    "prompt": prompt,
                    "seed": seed,
                    "limit": limit,
                    "stop": text[stop] if stop >= 0 else "",
                }
                requests.append(own | {"guess": guess, "most": most})
                told, brought = "", min(most, len(text) - 1)
                for at, one in enumerate(text):
                    told += one
                    if one in own["stop"] or at == len(text) - 1:
                        break
                    if brought and guess[at] == one:
                        brought -= 1
                    else:
                        told, brought = told + "|", min(most, len(text) - at - 2)
                wanted.append(told)
            assert play(requests) == wanted
