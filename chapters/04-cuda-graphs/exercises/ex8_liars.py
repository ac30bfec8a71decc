"""Exercise 4.8: a test of engines that replay graphs, marked both ways: right ones pass it, hidden liars fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanocourse.exercises import Call, Case, Check, Spec, beside, call

scenes = beside(__file__, "scenes.py")


def check_engine(make: Callable[..., Any]) -> None:
    """Raise AssertionError, or let the engine break down, if it is wrong; return None if it is right.

    make(): a new engine, which replays graphs. make(graphs=False): the same one, with every step called from Python; it
    is always right. fill=: what the cache holds before anybody has written to it, 0.0 unless given. An engine has
    six rows at most, and captures a graph where it meets a shape for the first time. A step writes a letter a row: the
    one that followed where its newest letter stood the time before, in the row's own text with a space put before it;
    noise comes on top where it is hot.
    engine.admit(text, temperature=0.0, seed=0): a new row, the last one; a text has two letters at least, of those in
    " abcdefghijklmnopqrstuvwxyz.,'!?", and grows to 31 at most. engine.release(row): the last row moves into its place.
    engine.reset(): all rows end, and the cache is empty. engine.step() -> letters (n,) int64, one for each row, the
    caller's to keep. engine.texts() -> what was admitted and written, by row. engine.missed: how many steps were not
    replayed. What else engines do and hold is their own business.
    """
    engines = [make(graphs=graphs, fill=float("nan")) for graphs in [True, False]]
    for seed, heat in enumerate([0.0, 4.0]):
        told = []
        for engine in engines:
            kept = []
            for word in ["wolf ", "crane ", "ox ", "lark ", "hen ", "bat "]:
                engine.admit(word, heat, seed)
                kept.append(engine.step())
            for _ in range(4):
                engine.release(0)
            engine.admit("abracadabra ")
            kept += [engine.step() for _ in range(5)]
            engine.reset()
            told.append([letters.tolist() for letters in kept])
        assert told[0] == told[1]
    assert engines[0].missed == 0


KNOWN = dict.fromkeys(scenes.MARKING.RIGHT, "passes") | dict.fromkeys(scenes.MARKING.LIARS, "fails")
check_engine.__dict__["kept"] = KNOWN  # what it makes of each, which a test holds it to: nobody waits for that again


EXERCISE = Spec(
    reference=check_engine,
    lines=16,
    example=lambda: call(["engine"]),
    section="A test of one's own",
    scene=scenes.marked,
    limit_s=180.0,  # a thorough test asks engines thousands of times, from process to process: 70 s on a busy machine
    verdicts=True,
)


def right_engines(case: Case) -> Call:
    """Engines pass that are right, though they capture, store or hand out otherwise."""
    return call(["engine", "zeroes-what-is-freed"])


def noise(case: Case) -> Call:
    """Engines fail that go on with the seeds, the temperatures, or the very noise of the capture."""
    return call(["count", "seed", "temperature"])


def longer_texts(case: Case) -> Call:
    """An engine fails that reads as much of a text as it did at the capture."""
    return call(["key"])


def rows_that_leave(case: Case) -> Call:
    """Engines fail whose padding rows write into the blocks of live ones, or read nothing."""
    return call(["slot", "tail", "length"])


def kept_results(case: Case) -> Call:
    """An engine fails that hands out a tensor which the next replay overwrites."""
    return call(["result"])


def a_second_conversation(case: Case) -> Call:
    """An engine fails that replays, after a reset, graphs of a cache that is gone."""
    return call(["cache"])


def dirty_memory(case: Case) -> Call:
    """An engine fails that reads what nobody has written, and gives it no weight."""
    return call(["nan"])


def every_number_of_rows(case: Case) -> Call:
    """An engine fails whose largest graph is smaller than its largest batch."""
    return call(["ladder"])


def graphs_that_are_used(case: Case) -> Call:
    """Engines fail that capture graphs and do not find them again, or break down in a capture."""
    return call(["lookup", "cold"])


CHECKS = (
    Check(right_engines, 1), Check(noise, 1), Check(longer_texts, 1), Check(rows_that_leave, 1),
    Check(kept_results, 1), Check(a_second_conversation, 1), Check(dirty_memory, 1), Check(every_number_of_rows, 1),
    Check(graphs_that_are_used, 1),
)  # fmt: skip
