"""Exercise 8.8: a test of machines of several ranks: right ones pass it, and those whose ranks disagree fail."""

from __future__ import annotations

from collections.abc import Callable

from nanocourse.exercises import Call, Case, Check, Spec, beside, call

MANY = 40
LIARS = beside(__file__, "liars.py")


def check_ranks(
    play: Callable[[int, int, list[tuple[str, int, int, int]]], list[list[str] | None]],
    plain: Callable[[str, int, int], str],
) -> None:
    """Raise AssertionError if the machine is wrong; return None if it is right.

    play(ranks, luck, requests) -> for each rank a list of the texts that it has written, one for each request; None for
    a rank that waits for ever, or has failed. ranks: 1 to 4. luck: which rank is late, and when; any whole number.
    A request is (prompt, seed, limit, patience): letters from "a" to "z" and " ", at least 1; its seed, 0 for greedy;
    the most new letters, at least 1; and for how many milliseconds it waits, 0 for ever. The letters of the prompt and
    the limit together are 48 at most. Requests run side by side in the order in which they come, as far as there is
    memory: 24 blocks of 4 letters. Whole texts are reserved; a request that finds no room waits.
    plain(prompt, seed, count) -> so many letters that one rank writes after the prompt; it is right.
    On a right machine all ranks write the same, whatever the luck and whatever runs beside it: the letters of one rank,
    as many as the limit says. A request that is not waited for any longer has less: the first rank's clock shows 10
    milliseconds more for each of its letters, and it ends with the first letter at which its patience is reached. The
    clocks of the other ranks show 1, 2 and 3 milliseconds more.
    Forty short requests in all are enough, and a play takes no more than forty. A check may take 10 seconds for each
    machine. Calling with the same arguments gives the same.
    """
    scenes = [
        "2 1 the_wolf_:0:18:0 a_hare_:0:9:0",
        "2 3 zebra:0:14:91 the_wolf_:0:14:0",
        "2 4 a_hare_:5:9:0 an_owl_:6:16:0",
        "3 2 the_wolf_:4:16:0",
        "2 0 the_wolf_:0:39:0 the_wolf_:0:39:0",
    ]
    for scene in scenes:
        ranks, luck, *words = scene.split(" ")
        requests, wanted = [], []
        for word in words:
            prompt, seed, limit, patience = word.replace("_", " ").split(":")
            requests.append((prompt, int(seed), int(limit), int(patience)))
            count = min(int(limit), -(-int(patience) // 10) or int(limit))
            wanted.append(plain(prompt, int(seed), count))
        assert play(int(ranks), int(luck), requests) == [wanted] * int(ranks)


def lent(kind: type, sort: str = "") -> Call:
    """A call with the functions that play such a machine, and one rank."""

    def play(ranks: int, luck: int, requests: list[tuple[str, int, int, int]]) -> list[list[str] | None]:
        """what each rank has written for each request"""
        for prompt, seed, limit, patience in requests:
            if not (prompt and set(prompt) <= set(LIARS.LETTERS) and limit > 0 <= seed and patience >= 0):
                raise ValueError("a request is a prompt, a seed, a limit above 0, and a patience of 0 or more")
            if len(prompt) + limit > LIARS.LONGEST:
                raise ValueError(f"a text has no more than {LIARS.LONGEST} letters, its prompt counted")
        if not 1 <= ranks <= LIARS.RANKS or len(requests) > MANY:
            raise ValueError(f"there are {LIARS.RANKS} ranks and {MANY} requests at most")
        texts: list[list[str] | None] = LIARS.play(kind, ranks, luck, requests)
        return texts

    def plain(prompt: str, seed: int, count: int) -> str:
        """so many letters behind the prompt"""
        if len(prompt) + count > LIARS.LONGEST:
            raise ValueError(f"a text has no more than {LIARS.LONGEST} letters, its prompt counted")
        text: str = LIARS.plain(prompt, seed, count)
        return text

    first = (kind.__doc__ or "").split(".")[0]
    return call(play, plain, about=f"{sort}: {first}." if sort else "")


def liar(case: Case, *names: str) -> Call:
    """One of these liars, in turn."""
    return lent(LIARS.LIARS[case.turn(names)], "The machine that is wrong")


EXERCISE = Spec(
    reference=check_ranks,
    lines=20,
    example=lambda: lent(LIARS.RIGHT["two-slots"]),
    section="Ranks that disagreed",
    verdicts=True,
    fixed=True,
)  # fmt: skip


def right_machines(case: Case) -> Call:
    """Machines pass that are right, though they meet otherwise, let one rank choose, or write one text at a time."""
    return lent(LIARS.RIGHT[case.turn(tuple(LIARS.RIGHT))], "The machine that is right")


def wrong_sums(case: Case) -> Call:
    """Machines fail that add what belongs together only by chance: a bias on each rank, rows in another order."""
    return liar(case, "bias-on-each", "own-order")


def read_too_late(case: Case) -> Call:
    """Machines fail whose ranks read what another rank has written over, or not yet written."""
    return liar(case, "still-read", "first-two")


def wrong_letters(case: Case) -> Call:
    """Machines fail that choose a letter which there is not, or never choose one which there is."""
    return liar(case, "padding-wins", "letters-lost")


def another_noise(case: Case) -> Call:
    """Machines fail whose ranks draw for themselves, in some places or in all, or number letters for themselves."""
    return liar(case, "own-dice", "own-numbers", "last-undrawn")


def another_clock(case: Case) -> Call:
    """Machines fail in which a request's patience is over on one rank and not on another, or by the wrong clock."""
    return liar(case, "own-clock", "last-clock", "enters-alone")


def another_memory(case: Case) -> Call:
    """Machines fail whose ranks use what fits on one of them and not on another."""
    return liar(case, "own-pool")


CHECKS = (
    Check(right_machines, 4), Check(wrong_sums), Check(read_too_late), Check(wrong_letters), Check(another_noise, 3),
    Check(another_clock, 3), Check(another_memory, 1),
)  # fmt: skip
