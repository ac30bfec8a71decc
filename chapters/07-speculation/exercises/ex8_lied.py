"""Exercise 7.8: a test of machines that are given guesses: right ones pass it, and those that lie fail."""

from __future__ import annotations

from collections.abc import Callable

from nanocourse.exercises import Call, Case, Check, Spec, beside, call

MANY = 100
LIARS = beside(__file__, "liars.py")


def check_guesses(
    play: Callable[[int, list[tuple[str, int, int, str, str]]], list[list[str]]],
    plain: Callable[[str, int, int], str],
) -> None:
    """Raise AssertionError if the machine is wrong; return None if it is right.

    play(most, requests) -> for each request a list of what it was given in each of its steps, at least one letter
    each. All requests run side by side from the first step on, each until it ends. most: drafts of a request in one
    step at most, at least 1. A request is (prompt, seed, limit, stop, guess): letters from "a" to "j", 1 to 23; its
    seed, 0 for greedy; the most new letters, at least 1; letters each of which ends the request, or ""; and what
    somebody guesses that it writes, from its first new letter on. A "-" in the guess stands for no guess.
    plain(prompt, seed, count) -> so many letters that plain decoding writes after the prompt; it is right.
    A right machine gives a request the letters of plain decoding, up to the first that ends it: one of `stop`, which is
    given too; the last one of its limit; or the 24th with its prompt. In each step it brings as drafts the letters of
    the guess for its next places: up to the first "-" or the end of the guess, `most` at most, and no more than leave
    room for one letter after them, by its limit and by the 24. The step gives it the drafts up to the first wrong one,
    and one letter more; less, where one of them ends the request. What runs beside it changes nothing.
    A hundred short requests are enough: machines are played many times. Calling with the same arguments gives the same.
    """
    scenes = [
        "3 abc:0:9::r abc:5:9::rr-rr-r",
        "3 abc:0:9::rrwrrwrr abc:5:9::rwrrrwrrr",
        "2 hij:7:11::wwwwwwwww hij:0:11::nnnnnnnnnn",
        "3 de:5:12::r fg:8:12::w",
        "4 ab:6:20:3:r ab:6:20:4:r ab:0:20:2:rr",
        "4 abcdefghijabcdefghi:5:90::r abcdefghijabcdefghij:0:9::r",
    ]
    for scene in scenes:
        most, *words = scene.split(" ")
        requests, wanted = [], []
        for word in words:
            prompt, seed, limit, stop, marks = word.split(":")
            ends = min(int(limit), 24 - len(prompt))
            text = plain(prompt, int(seed), ends)
            wrong = {"w": "bcdefghija", "n": "badcfehgji"}
            marks = marks if marks != "r" else "r" * ends
            guess = "".join(
                letter if mark == "r" else wrong.get(mark, "----------")["abcdefghij".index(letter)]
                for mark, letter in zip(marks, text, strict=False)
            )
            stops = text[int(stop)] if stop else ""
            runs, at = [], 0
            while at < ends:
                drafts = guess[at : at + int(most)].split("-")[0]
                run = ""
                for letter, draft in zip(text[at:], drafts + " ", strict=False):
                    run += letter
                    if letter in stops or letter != draft:
                        break
                runs.append(run)
                at += len(run)
                if run[-1] in stops:
                    break
            requests.append((prompt, int(seed), int(limit), stops, guess))
            wanted.append(runs)
        assert play(int(most), requests) == wanted


def lent(kind: type, sort: str = "") -> Call:
    """A call with the functions that play such a machine, and plain decoding."""

    def play(most: int, requests: list[tuple[str, int, int, str, str]]) -> list[list[str]]:
        """what each request is given in each of its steps"""
        for prompt, seed, limit, stop, guess in requests:
            if not (isinstance(prompt + stop + guess, str) and 0 < len(prompt) < LIARS.CONTEXT and limit > 0 <= seed):
                raise ValueError("a request is a prompt of 1 to 23 letters, a seed, a limit above 0, and two strings")
        if most < 1 or len(requests) > MANY:
            raise ValueError(f"there is 1 draft at least, and there are {MANY} requests at most")
        runs: list[list[str]] = kind(most).play([tuple(request) for request in requests])
        return runs

    def plain(prompt: str, seed: int, count: int) -> str:
        """so many letters after the prompt"""
        if count > MANY:
            raise ValueError(f"a text has no more than {LIARS.CONTEXT} letters")
        text: str = LIARS.plain(prompt, seed, count)
        return text

    first = (kind.__doc__ or "").split(".")[0]
    return call(play, plain, about=f"{sort}: {first}." if sort else "")


def liar(case: Case, *names: str) -> Call:
    """One of these liars, in turn."""
    return lent(LIARS.LIARS[case.turn(names)], "The machine that is wrong")


EXERCISE = Spec(
    reference=check_guesses,
    lines=40,
    example=lambda: lent(LIARS.Machine),
    section="Guesses that lied",
    verdicts=True,
    fixed=True,
)  # fmt: skip


def right_machines(case: Case) -> Call:
    """Machines pass that are right, though they keep their text otherwise or take rows in another order."""
    return lent(LIARS.RIGHT[case.turn(tuple(LIARS.RIGHT))], "The machine that is right")


def ends_too_late(case: Case) -> Call:
    """Machines fail that go on after a stop, a limit or the end of the context where it lies within a run."""
    return liar(case, "last-letter-alone", "limit-after-the-run", "past-the-context")


def another_noise(case: Case) -> Call:
    """Machines fail whose noise is not that of the place: one for a whole step, or shifted by what others guess."""
    return liar(case, "noise-by-step", "neighbours-noise")


def another_text(case: Case) -> Call:
    """Machines fail that read or keep rejected letters, or do not go on by the right ones ahead of these."""
    return liar(case, "nothing-rolled-back", "rejected-positions", "thrown-away", "first-unseen", "good-enough",
                "wrong-one-kept", "all-or-none", "none-behind-some")  # fmt: skip


def other_runs(case: Case) -> Call:
    """Machines fail whose steps give another number of letters: none after the last draft, or as few as any row's."""
    return liar(case, "none-behind-all", "slowest-of-all", "first-dash-ends", "dashes-are-right")


CHECKS = (
    Check(right_machines, 4), Check(ends_too_late, 3), Check(another_noise), Check(another_text, 8),
    Check(other_runs, 4),
)  # fmt: skip
