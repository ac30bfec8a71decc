"""Exercise 6.2: one buffer for many messages: a flag that says ready, and a word that says taken."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

MACHINE = beside(__file__, "machine.py")
Program = Generator[Any, Any, Any]


def relay(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> Program:
    """Program 0 sends messages, each of the others receives all of them: what these return is a list of the messages.

    me: the program's number, below count. data: names of as many words as each message has values: there is no other
    place for a message, and one after the other they go through it. flag, taken: two more words. rounds: how many
    messages there are. messages: a list for each, which program 0 alone may look at; it returns None. Before the
    launch flag and taken hold 0, and the words of `data` anything.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    received = []
    for number in range(rounds):
        if me == 0:
            yield "wait", taken, lambda held: held == number * (count - 1)
            for word, value in zip(data, messages[number], strict=True):
                yield "store", word, value
            yield ("fence",)
            yield "store", flag, number + 1
        else:
            yield "wait", flag, lambda held: held == number + 1
            message = []
            for word in data:
                message.append((yield "load", word))
            received.append(message)
            yield "add", taken, 1
    return received if me else None


def relayed(answer: Function, count: int, messages: list[list[int]], old: list[int]) -> str:
    """Run as many programs in all orders. old: what the words for data hold before."""
    data = [f"data[{at}]" for at in range(len(old))]
    words = dict(zip(data, old, strict=True)) | {"flag": 0, "taken": 0}

    def make(me: int, more: int = 0) -> Any:
        own = [[value + more for value in message] for message in messages] if me == 0 else []
        return answer(me, count, list(data), "flag", "taken", len(messages), own)

    def judge(returned: list[Any], held: dict[str, int]) -> str:
        wanted = [None, *[messages] * (count - 1)]
        for me, (one, other) in enumerate(zip(returned, wanted, strict=True)):
            if repr(one) != repr(other):
                return f"program {me} returns {one}, and not {other}"
        return ""

    makes = [lambda me=me: make(me) for me in range(count)]
    settings = {"bits": 32, "most": 900, "walks": 10, "seed": str(messages), "decoys": [lambda: make(0, 1)]}
    return MACHINE.tried(makes, words, judge, **settings)[0]


EXERCISE = Spec(
    reference=relay,
    lines=16,
    example=lambda: call(2, [[5], [6]], [9]),
    section="A flag behind the data",
    scene=relayed,
)


def _messages(case: Case, count: int, width: int) -> list[list[int]]:
    found: list[list[int]] = case.ints("messages", 1, 9, count, width).tolist()
    return [[value + 10 * at for value in message] for at, message in enumerate(found)]


def one_receiver(case: Case) -> Call:
    """A message is overwritten after it was read, and not after it was seen."""
    return call(2, _messages(case, case.turn((2, 3, 2)), 2), [99, 98])


def two_receivers(case: Case) -> Call:
    """The slowest of several receivers counts, and none is counted for another."""
    return call(3, _messages(case, case.size("messages", 2, 3), 1), [99])


def any_relay(case: Case) -> Call:
    """No receiver or many; no message, one or a long run of them; zeros, equal ones, large ones, and empty ones."""
    kind = case.turn(("nobody", "none", "one", "two", "zeros", "equal", "large", "empty", "long", "many"))
    count = {"nobody": 1, "many": 6, "empty": 3, "two": 3}.get(kind, 2)
    rounds = {"none": 0, "one": 1, "long": 70}.get(kind, case.size("rounds", 2, 3))
    width = {"empty": 0, "one": 2}.get(kind, 1)
    messages = _messages(case, rounds, width)
    if kind == "zeros":
        messages = [[0] * width for _ in messages]
    if kind == "equal":
        messages = [messages[0], [messages[0][0] + 1], messages[0], messages[0]]
    if kind == "large":
        messages = [[2**32 - 1 - value for value in message] for message in messages]
    return call(count, messages, _old(case, width))


def _old(case: Case, width: int) -> list[int]:
    return case.ints("old", 100, 999, width).tolist()


CHECKS = (Check(any_relay, 10, wide=True), Check(one_receiver, 3), Check(two_receivers, 2))
