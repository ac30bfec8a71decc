"""Exercise 5.7: a test of queues, marked both ways: right ones pass it; what starves, leaks or mixes up rows fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanocourse.exercises import Call, Case, Check, Spec, call, run_folder

LIES = run_folder(Path(__file__).parents[1] / "lies")
toy, catalogue, variants = LIES("toy"), LIES("catalogue"), LIES("variants")
MOST = 10_000
IN_STEP = ("prompts-first", "two-prompts-first", "counts-early")  # pauses would give rows their turn


def check_queue(play: Callable[[int, int, int, list[tuple[Any, ...]]], list[Any]]) -> None:
    """Raise AssertionError if the queue is wrong; return None if it is right.

    play(rows, blocks, budget, events) -> a list: what each of these events gives, in a new and empty queue; the same
    events give the same. At most so many rows run at once, the pool has so many blocks of 4 letters each, and a step
    feeds at most `budget` letters, of which there are at least as many as rows. Blocks and events are 10,000 at most.
    ("submit", prompt, letters): gives the request's number, counted from 0 over those that are not refused, or None for
    one that is, since its prompt and letters would not fit into the pool if it were alone. A prompt is a str that is
    not empty, and asks for 1 letter or more. ("cancel", number): gives None; nothing more comes of that request. Cancel
    only what is sure not to have ended: a step gives a request one letter at most.
    ("step",): gives a list of (number, fed, letter) for the requests that were fed: how many letters of its text, and
    the letter that came, or "" where more of its text is still to be fed.
    A right queue gives each request the letters it asked for: its prompt, again and again, all of it in capitals if
    it begins with a capital. Of those that have not ended, the one that came first is fed in one of any two steps,
    whichever that is at the time. What has ended or was cancelled takes no room. Everything else, such as who
    shares blocks and who is preempted, is up to the queue. A hundred short histories are enough: queues are played many
    times.
    """
    scenes = [
        "1 5 6 Wolfhares:10 haresheep:10 owls_and_ox:9 Wolfhares:10",
        "3 20 6 wolf:8 - - hare_and_dog:1 hare_and_dog:1 hare_and_cat:1 hare_and_fox:1 hare_and_ape:1 hare_and_hen:1",
        "2 8 24 wolf_hare_:10|wolf_hare_:10",
        "2 5 8 wolf:11|hens:12|wolves:15",
        "2 7 8 the_old_wolf:4|the_old_oxen_and_hens:1|the_hares_and_the_hounds:4 - - cancel",
    ]
    for scene in scenes:
        *limits, words = scene.split(" ", 3)
        rows, blocks, budget = map(int, limits)
        events: list[Any] = []
        for word in words.split(" ") + ["-"] * 60:
            for prompt, _, letters in [each.partition(":") for each in word.split("|")]:
                if letters:
                    events.append(("submit", prompt, int(letters)))
                elif prompt == "cancel":
                    events.append(("cancel", 0))
            events.append(("step",))
        left: Any = {}
        late = 0
        for event, gave in zip(events, play(rows, blocks, budget, events), strict=True):
            if event[0] == "submit":
                text = event[1].upper() if event[1][0].isupper() else event[1]
                assert (gave is None) == (len(text) + event[2] > 4 * blocks)
                if gave is not None:
                    left[gave] = (text * event[2])[: event[2]]
            elif event[0] == "cancel":
                del left[0]
            else:
                assert sum(letters for _, letters, _ in gave) <= budget
                fed = [number for number, _, _ in gave]
                late = 0 if not left or min(left) in fed else late + 1
                assert late < 2
                for number, _, new in gave:
                    left[number] = left[number].removeprefix(new)
                    if not left[number]:
                        del left[number]
        assert not left


def lent(kind: type, sort: str = "") -> Call:
    """A call with the function that plays days in such queues. sort: what is said of one where the check fails."""

    def play(rows: int, blocks: int, budget: int, events: list[tuple[Any, ...]]) -> list[Any]:
        if max(blocks, len(events)) > MOST:
            raise ValueError(f"a queue is played with {MOST} blocks and {MOST} events at most")
        queue, gave = kind(rows, blocks, budget), list[Any]()
        for name, *given in events:
            try:
                gave.append({"submit": queue.submit, "step": queue.step, "cancel": queue.cancel}[name](*given))
            except toy.Refused:
                gave.append(None)
        return gave

    first = (kind.__doc__ or "").split(".")[0]
    return call(play, about=f"{sort}: {first}." if sort else "")


def liar(case: Case, *names: str) -> Call:
    """One of these liars, in turn."""
    name = case.turn(names)
    mixed = (variants.Unordered, variants.Pauses)[: 1 + (name not in IN_STEP)]
    return lent(variants.drawn(case.seed, *mixed, catalogue.LIARS[name]), "The queue that is wrong")


EXERCISE = Spec(
    reference=check_queue,
    lines=35,
    example=lambda: lent(toy.Queue),
    section="Queues that starved",
    verdicts=True,
    fixed=True,
)  # fmt: skip


def right_queues(case: Case) -> Call:
    """Queues pass that are right, though they share, admit, pause, take turns, list or choose blocks otherwise."""
    kind, plain = catalogue.RIGHT[case.turn(tuple(catalogue.RIGHT))], case.turn((True,) * 5 + (False,) * 5)
    if plain:
        return lent(kind, "The queue that is right")
    mixed = (variants.Unordered, variants.Pauses)[: 1 + (kind is not variants.TakesTurns)]
    return lent(variants.drawn(case.seed, *mixed, kind), "The queue that is right")


def starved(case: Case) -> Call:
    """Queues fail in which a row that writes waits as long as prompts keep coming, or for two of them each time."""
    return liar(case, "prompts-first", "two-prompts-first")


def too_large(case: Case) -> Call:
    """A queue fails that takes a request which will never fit, and all behind it wait."""
    return liar(case, "never-fits")


def lost_blocks(case: Case) -> Call:
    """Queues fail that lose blocks: of a request that waits for room, or of one that was cancelled."""
    return liar(case, "counts-early", "cancel-keeps")


def lost_places(case: Case) -> Call:
    """A queue fails that loses the place of a request which has ended with its first letter."""
    return liar(case, "one-letter")


def wrong_blocks(case: Case) -> Call:
    """Queues fail that share a block before it is written, after it was taken anew, or after another beginning."""
    return liar(case, "unwritten", "stale-map", "letters-alone")


def half_resumed(case: Case) -> Call:
    """A queue fails that goes on after a preemption without what the row had written."""
    return liar(case, "half-resumed")


def over_budget(case: Case) -> Call:
    """A queue fails that feeds a prompt whole, whatever the budget is."""
    return liar(case, "whole-prompts")


CHECKS = (
    Check(right_queues, 10), Check(starved), Check(too_large, 1), Check(lost_blocks), Check(lost_places, 1),
    Check(wrong_blocks, 3), Check(half_resumed, 1), Check(over_budget, 1),
)  # fmt: skip
