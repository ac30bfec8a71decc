"""Exercise 6.2: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
FREE = 'yield "wait", taken, lambda held: held == number * (count - 1)\n'
SEEN = 'yield "wait", flag, lambda held: held == number + 1\n'
READ = """message = []
            for word in data:
                message.append((yield "load", word))
            received.append(message)
"""
TOOK = 'yield "add", taken, 1\n'
WRONG = (
    Wrong.patch(
        "never-taken", "A receiver that has seen the flag has its data.", FREE, "pass\n",
        "lightseekorg/tokenspeed#1017: ready says that a payload was produced, and not that the peer has consumed it",
    ),
    Wrong.patch(
        "seen-is-taken", "Who has seen the flag has taken the message.", READ + "            " + TOOK,
        TOOK + "            " + READ,
        "an author's own slip: it frees the buffer and then reads it",
    ),
    Wrong.patch(
        "one-taker-frees", "The buffer is free when somebody has taken the message.", "held == number * (count - 1)",
        "held >= number * min(1, count - 1)",
        "an author's own slip: with one receiver it is right",
    ),
    Wrong.patch(
        "a-round-ahead", "A sender may be one message ahead of its receivers.", "held == number * (count - 1)",
        "held >= (number - 1) * (count - 1)",
        "lightseekorg/tokenspeed#1356: there two slots in turn make that enough, and here is one",
    ),
    Wrong.patch(
        "its-own-flag", "The flag tells the sender that its last message is out.", FREE,
        'yield "wait", flag, lambda held: held == number\n',
        "an author's own slip: a poll that looks at the wrong word, and always finds what it put there",
    ),
    Wrong.patch(
        "flag-says-one", "A flag is up or down.", SEEN, 'yield "wait", flag, lambda held: held >= 1\n',
        "hw-native-sys/pypto#1829: it waits for at least 1, and after the first round all slots stay satisfied",
    ),
    Wrong.patch(
        "flag-goes-down", "Who has read the message takes the flag down.", SEEN + "            " + READ,
        SEEN + "            " + READ + '            yield "store", flag, 0\n',
        "an author's own slip: the second receiver never sees it up, or the store arrives on the next message's flag",
    ),
    Wrong.patch(
        "taken-by-store", "Each receiver says in the word which message it has taken.", TOOK,
        'yield "store", taken, (yield "load", taken) + 1\n',
        "an author's own slip: two of them read the same number, and one more is lost",
    ),
    Wrong.patch(
        "no-fence", "What is stored first arrives first.", 'yield ("fence",)\n', "pass\n",
        "vllm-project/vllm#57059: torn reads behind a start barrier that orders nothing",
    ),
    Wrong.patch(
        "fence-once", "The first fence puts all in order.", 'yield ("fence",)\n',
        'if number == 0:\n                yield ("fence",)\n',
        "an author's own slip: a fence waits for the stores ahead of it alone",
    ),
    Wrong.patch(
        "fence-behind-first-word", "One word that has arrived stands for the message.",
        'yield "store", word, value\n            yield ("fence",)\n',
        'yield "store", word, value\n                if word == data[0]:\n                    yield ("fence",)\n',
        "NVIDIA/nccl#2053: the second half of a message may become visible behind its flag",
    ),
    Wrong.patch(
        "somebody-receives", "There is always somebody who takes a message.", "number * (count - 1)",
        "number * max(1, count - 1)",
        "an author's own slip: alone, a program waits for ever",
    ),
    Wrong.patch(
        "waits-behind-flag", "The sender waits for its message to be taken, and then it is done.", FREE,
        'yield "wait", taken, lambda held: held == (number + 1) * (count - 1)\n',
        "an author's own slip: it waits for a message to be taken that it has not sent",
    ),
)  # fmt: skip


def in_turns(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> Program:
    """The sender waits behind each message, and takes the flag by an addition; receivers poll."""
    received: list[list[int]] = []
    if me == 0:
        for at, message in enumerate(messages):
            for place in range(len(data)):
                yield "store", data[place], message[place]
            yield ("fence",)
            yield "add", flag, 1
            yield "wait", taken, lambda held: held >= (at + 1) * (count - 1)
        return None
    while len(received) < rounds:
        while (yield "load", flag) <= len(received):
            pass
        values = [0] * len(data)
        for place in range(len(data)):
            values[place] = yield "load", data[place]
        received += [values]
        yield "add", taken, 1
    return received


def flag_is_a_state(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> Program:
    """What is taken goes back to 0, by the sender, ahead of its next message."""
    if me == 0:
        for number, message in enumerate(messages, 1):
            for word, value in zip(data, message, strict=True):
                yield "store", word, value
            yield "store", taken, 0
            yield ("fence",)
            yield "store", flag, number
            yield "wait", taken, lambda held: held == count - 1
        return
    mine = []
    for number in range(1, rounds + 1):
        yield "wait", flag, lambda held: held >= number
        got = []
        for word in data:
            got.append((yield "load", word))
        mine.append(got)
        yield "add", taken, 1
    return mine


def one_after_the_other(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> Program:
    """Receivers take a message in the order of their numbers, which costs time and no correctness."""
    others, told = count - 1, []
    for at in range(rounds):
        if me:
            yield "wait", flag, lambda held: held == at + 1
            yield "wait", taken, lambda held: held == at * others + me - 1
            line = []
            for word in data[::-1]:
                line.insert(0, (yield "load", word))
            told.append(line)
            yield "store", taken, at * others + me
            yield ("fence",)
        else:
            while others and (yield "load", taken) != at * others:
                pass
            for word, value in zip(data, messages[at], strict=True):
                yield "store", word, value
                yield ("fence",)
            yield "store", flag, at + 1
    return told if me else None


RIGHT = (Right(in_turns), Right(flag_is_a_state), Right(one_after_the_other))
EQUIVALENT = {"for word, value in zip(data, messages[number], strict=False):": "they are equally long"}


def passed_on(
    words: dict[str, str | list[str]], receivers: int, me: int, rounds: int, messages: list[list[int]] | None
) -> Program:
    """The sender is given messages, as many receivers are given None: what each of these returns is a list of them.

    me: a receiver's number, from 0 on; -1 for the sender, which returns None. words: under "data" names of as many
    words as each message has values: there is no other place for a message, and one after the other they go through
    it; under "flag" and "taken" the names of two more words. rounds: how many messages there are. Before the launch
    flag and taken hold 0, and the words for data anything.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it.
    """
    received = []
    for number in range(rounds):
        if messages is not None:
            yield "wait", words["taken"], lambda held: held == number * receivers
            for word, value in zip(words["data"], messages[number], strict=True):
                yield "store", word, value
            yield ("fence",)
            yield "store", words["flag"], number + 1
        else:
            yield "wait", words["flag"], lambda held: held == number + 1
            message = []
            for word in words["data"]:
                message.append((yield "load", word))
            received.append(message)
            yield "add", words["taken"], 1
    return received if messages is None else None


def _named(
    me: int, count: int, data: list[str], flag: str, taken: str, rounds: int, messages: list[list[int]]
) -> tuple[Any, ...]:
    words = {"data": data, "flag": flag, "taken": taken}
    return words, count - 1, me - 1, rounds, None if me else messages


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


EDITIONS = (Edition("passed-on", "words come by name, and the sender has no number", passed_on, played=_played),)
