"""The machine of small.py, for programs that another process may run: it searches the orders in which they lose.

A program is a generator, and each `yield` one access to words that all programs share. What a program does next hangs
on what it was told alone, so it is asked for once: its accesses are a tree, and a branch for each answer. Runs that
stand at the same point go on as one. A load that is asked for again and again with the same answer is a poll, and a
poll changes nothing until its word does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanocourse.exercises.scene import Remote, Resumed

RIGHT = "right in every order that was tried"
POLLS = 4  # so many equal loads with equal answers are a poll
LONG = 1100  # loads that a poll goes on for, where it must not give up
PATIENCE = 80  # accesses of each program, once all of them poll
STEPS = 1500  # of one walk
SHOWN = 90  # events of a trace
MANY = 5  # programs; more than that are not tried in all orders
Make = Callable[[], Any]
Judge = Callable[[list[Any], dict[str, int]], str]  # what programs returned, and the words: what is wrong, or ""
NAMES = {"load": 2, "store": 3, "add": 3, "fence": 1, "wait": 3}


class LostError(Exception):
    """A program that is none: what it did, in a sentence."""


@dataclass(eq=False)
class Node:
    """A point of a program: its next access, or what it returned."""

    access: tuple[Any, ...]  # empty where it has ended
    value: Any = None
    before: Node | None = None
    told: Any = None  # the answer that led here from `before`
    then: dict[Any, Node] = field(default_factory=dict)
    real: dict[Any, Node] = field(default_factory=dict)  # as `then`, where polls are counted
    holds: dict[int, bool] = field(default_factory=dict)  # of a wait: its condition, by value

    @property
    def line(self) -> list[Node]:
        """All points from the first one to this one."""
        points = [self]
        while points[-1].before is not None:
            points.append(points[-1].before)
        return points[::-1]


class Program:
    """The tree of one program. make: makes its generator. endless: its polls must not give up."""

    def __init__(self, number: int, make: Make, words: Mapping[str, int], bits: int, endless: bool = False) -> None:
        self.number, self._make, self._words, self._bits, self._endless = number, make, words, bits, endless
        self._live: dict[Node, Resumed | Remote] = {}
        made = self._made()
        self.root = self._node(made, [None], None, None)

    def _made(self) -> Resumed | Remote:
        made = self._make()
        if isinstance(made, Remote):
            return made
        if not hasattr(made, "send"):
            raise LostError(f"program {self.number} is {type(made).__name__}, and no generator")
        return Resumed(made)

    def _node(self, made: Resumed | Remote, answers: list[Any], before: Node | None, told: Any) -> Node:
        """Where the answers lead, from the beginning or from `before`. made: what stands there."""
        got = made(answers)
        if not (isinstance(got, list | tuple) and len(got) == 2 and isinstance(got[0], list | tuple) and got[0]):
            raise LostError(f"program {self.number} is no generator")
        yielded, ended = got
        known = [node.access for node in before.line[1 - len(yielded) :]] if before and len(answers) > 1 else []
        again = [self._access(one) for one in yielded[: len(known)]]
        if len(yielded) != len(answers) or not all(map(_same, known, again)):
            raise LostError(f"program {self.number} does not always do the same when it is told the same")
        if ended:
            return Node((), yielded[-1], before, told)
        node = Node(self._access(yielded[-1]), None, before, told)
        if node.access[0] != "wait":  # its condition may look at what the generator holds, which must not go on
            self._live[node] = made
        return node

    def _access(self, yielded: Any) -> tuple[Any, ...]:
        """What was yielded, if it is an access."""
        says = f"program {self.number} yields {str(yielded)[:80]}"
        if not isinstance(yielded, tuple | list) or not yielded or yielded[0] not in tuple(NAMES):
            raise LostError(f"{says}: no load, store, add, wait or fence")
        name, *rest = yielded
        if len(yielded) != NAMES[name]:
            raise LostError(f"{says}: {name} takes {NAMES[name] - 1} more")
        if rest and (not isinstance(rest[0], str) or rest[0] not in self._words):
            raise LostError(f"{says}: there is no such word")
        if name in ("store", "add"):
            if type(rest[1]) is not int:
                raise LostError(f"{says}: a word holds a whole number")
            rest[1] %= 1 << self._bits
        if name == "wait" and not callable(rest[1]):
            raise LostError(f"{says}: a condition is a function of a word")
        return name, *rest

    def step(self, node: Node, answer: Any) -> Node:
        """The point behind an answer, polls counted."""
        if answer not in node.real:
            made = self._live.pop(node, None)
            answers = [answer] if made else [*(point.told for point in node.line), answer]
            node.real[answer] = self._node(made or self._made(), answers, node, answer)
        return node.real[answer]

    def behind(self, node: Node, answer: Any) -> Node:
        """The point behind an answer; of a poll that was in vain the same point."""
        if answer not in node.then:
            found = behind = self.step(node, answer)
            if node.access[0] == "load":
                for _ in range(POLLS):
                    if behind.access != node.access:
                        break
                    behind = self.step(behind, answer)
                else:
                    found = node
                    if self._endless:
                        self._go_on(behind, answer)
            node.then[answer] = found
        return node.then[answer]

    def _go_on(self, node: Node, answer: Any) -> None:
        """LostError for a poll that ends though nothing has changed."""
        made = self._live.pop(node, None)
        answers = [answer] * LONG
        yielded, ended = (made or self._made())(answers if made else [*(point.told for point in node.line), *answers])
        if ended or any(self._access(one) != node.access for one in yielded[-LONG:]):
            raise LostError(f"program {self.number} gives up a poll of {node.access[1]}")

    def holds(self, node: Node, value: int) -> bool:
        """Whether the condition of a wait holds."""
        if value not in node.holds:
            node.holds[value] = bool(node.access[2](value))
        return node.holds[value]


@dataclass(frozen=True)
class Point:
    """Where all programs stand, what has not arrived of each, and what the words hold."""

    nodes: tuple[Node, ...]
    buffers: tuple[tuple[tuple[str, int], ...], ...]
    words: tuple[int, ...]


class Machine:
    """Programs over words. resident: how many run at once; the next one begins as one of these ends."""

    def __init__(
        self, makes: Sequence[Make], words: Mapping[str, int], resident: int = 1000, bits: int = 64,
        endless: bool = False,
    ) -> None:  # fmt: skip
        self.names, self.resident, self.bits = {name: at for at, name in enumerate(words)}, resident, bits
        self.programs = [Program(number, make, words, bits, endless) for number, make in enumerate(makes)]
        nodes = tuple(program.root for program in self.programs)
        self.first = Point(nodes, ((),) * len(nodes), tuple(words.values()))

    def running(self, point: Point) -> list[int]:
        """Those that are resident."""
        return [n for n, node in enumerate(point.nodes) if node.access][: self.resident]

    def settled(self, point: Point, events: list[str]) -> Point:
        """With all stores done that come next: they go to their buffer, where no other program sees them."""
        nodes, buffers = list(point.nodes), list(point.buffers)
        moved, begun = True, len(events)
        while moved:
            moved = False
            for n in self.running(Point(tuple(nodes), tuple(buffers), point.words)):
                while nodes[n].access and (
                    nodes[n].access[0] == "store" or (nodes[n].access[0] == "fence" and not buffers[n])
                ):
                    name, *rest = nodes[n].access
                    if rest:
                        buffers[n] = (*buffers[n], (rest[0], rest[1]))
                    events.append(f"{n}: {name}" + (f" {rest[0]} = {rest[1]}" if rest else ""))
                    if len(events) > begun + STEPS:
                        raise LostError(f"program {n} stores and fences without end")
                    nodes[n] = self.programs[n].behind(nodes[n], None)
                    moved = not nodes[n].access
        return Point(tuple(nodes), tuple(buffers), point.words)

    def read(self, point: Point, n: int, address: str) -> int:
        """What a program reads: its own stores at once."""
        own = dict(point.buffers[n])
        return own[address] if address in own else point.words[self.names[address]]

    def after(self, point: Point, counted: bool = False) -> Iterator[tuple[str, Point]]:
        """What can happen next, each with the point behind it. counted: polls that are in vain are something, too."""
        for n in self.running(point):
            yield from self.access(point, n, counted)
        for n in range(len(point.nodes)):
            yield from self.arrivals(point, n)

    def access(self, point: Point, n: int, counted: bool = False) -> Iterator[tuple[str, Point]]:
        """A program's next access, if it can be."""
        node, program = point.nodes[n], self.programs[n]
        name, *rest = node.access
        if name == "fence" or (name == "add" and rest[0] in dict(point.buffers[n])):
            return  # it waits for stores of its own
        value = self.read(point, n, rest[0])
        if name == "wait" and not program.holds(node, value):
            return
        then = (program.step if counted else program.behind)(node, value)
        words = self._with(point.words, rest[0], value + rest[1]) if name == "add" else point.words
        if then is not node or words != point.words:
            nodes = (*point.nodes[:n], then, *point.nodes[n + 1 :])
            more = f" + {rest[1]}" if name == "add" else ""
            yield f"{n}: {name} {rest[0]}: {value}{more}", Point(nodes, point.buffers, words)

    def arrivals(self, point: Point, n: int) -> Iterator[tuple[str, Point]]:
        """Each store of a program that may arrive now: of one word's the oldest."""
        buffer = point.buffers[n]
        for address in dict(buffer):
            first = next(at for at, (name, _) in enumerate(buffer) if name == address)
            left = buffer[:first] + buffer[first + 1 :]
            buffers = (*point.buffers[:n], left, *point.buffers[n + 1 :])
            words = self._with(point.words, address, buffer[first][1])
            yield f"{n}: {address} = {buffer[first][1]} arrives", Point(point.nodes, buffers, words)

    def _with(self, words: tuple[int, ...], address: str, value: int) -> tuple[int, ...]:
        at = self.names[address]
        return (*words[:at], value % (1 << self.bits), *words[at + 1 :])

    def end(self, point: Point, judge: Judge) -> str:
        """What is wrong where nothing but polls can happen; these go on for a while, since some give up."""
        for _ in range(PATIENCE):
            for n in self.running(point):
                if n in self.running(point):  # it may have ended when another one began
                    then = next((then for _, then in self.access(point, n, counted=True)), point)
                    point = self.settled(then, [])
            while late := [n for n, buffer in enumerate(point.buffers) if buffer]:
                point = self.settled(next(then for _, then in self.arrivals(point, late[0])), [])
        if waiting := [
            f"{n}, at {' '.join(map(str, node.access[:2]))}" for n, node in enumerate(point.nodes) if node.access
        ]:
            more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
            return f"these wait for ever: program {'; program '.join(waiting[:4])}{more}"
        return judge([node.value for node in point.nodes], dict(zip(self.names, point.words, strict=True)))

    def search(self, judge: Judge, most: int, walks: int, seed: str) -> tuple[str, dict[str, int]]:
        """What is wrong, in the shortest order that shows it, or RIGHT; and what the words hold at a right end.

        most: points that are looked at, those of short runs first; behind that come walks at random.
        """
        events: list[str] = []
        first = self.settled(self.first, events)
        came: dict[Point, tuple[Point | None, list[str]]] = {first: (None, events)}
        left, words = [first], None
        for point in left if len(self.programs) <= MANY else []:
            following = list(self.after(point))
            if not following:
                if wrong := self.end(point, judge):
                    return self._told(wrong, came, point), {}
                words = words or dict(zip(self.names, point.words, strict=True))
            for event, behind in following:
                events = [event]
                then = self.settled(behind, events)
                if then not in came:
                    came[then] = point, events
                    left.append(then)
            if len(came) > most:
                break
        else:
            if len(self.programs) <= MANY:
                return RIGHT, words or {}
        for walk in range(walks):
            wrong, words = self._walk(first, judge, random.Random(f"{seed}/{walk}"))
            if wrong:
                return wrong, {}
        return RIGHT, words or {}

    def _walk(self, first: Point, judge: Judge, draw: random.Random) -> tuple[str, dict[str, int]]:
        """One order at random: some programs are slow in it, and so are some stores."""
        point, trace = first, list[str]()
        slow = [draw.choice((1, 1, 1, 8, 60)) for _ in self.programs]
        late = draw.choice((1, 1, 10))
        for _ in range(STEPS):
            chances = [(draw.random() ** slow[n], n, True) for n in self.running(point) if self._may(point, n, draw)]
            chances += [(draw.random() ** late, n, False) for n, buffer in enumerate(point.buffers) if buffer]
            for _, n, access in sorted(chances, reverse=True):
                following = list((self.access if access else self.arrivals)(point, n))
                if following:
                    break
            else:
                following = list(self.after(point))
            if not following:
                wrong = self.end(point, judge)
                told = wrong + _joined(trace) if wrong else ""
                return told, dict(zip(self.names, point.words, strict=True))
            event, point = draw.choice(following)
            trace.append(event)
            point = self.settled(point, trace)
        return f"programs still run after {STEPS} accesses", {}

    def _may(self, point: Point, n: int, draw: random.Random) -> bool:
        """Whether a program may be asked: of many, those that only look wait for those that do something."""
        looks = point.nodes[n].access[0] in ("load", "wait")
        return len(self.programs) <= MANY or not looks or draw.random() < 0.002

    def _told(self, wrong: str, came: Mapping[Point, tuple[Point | None, list[str]]], last: Point) -> str:
        parts: list[list[str]] = []
        at: Point | None = last
        while at is not None:
            at, events = came[at]
            parts.append(events)
        return wrong + _joined([event for part in parts[::-1] for event in part])


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two accesses are the same; the conditions of waits are not looked at."""
    return one[:2] == other[:2] and (one[0] == "wait" or one == other)


def _joined(events: Sequence[str]) -> str:
    """Events behind what they led to."""
    if not events:
        return ", whatever the others do"
    return ". In this order: " + ("... " if len(events) > SHOWN else "") + "; ".join(events[-SHOWN:])


def tried(
    makes: Sequence[Make], words: Mapping[str, int], judge: Judge, *, resident: int = 1000, bits: int = 64,
    most: int = 1500, walks: int = 12, seed: str = "", decoys: Sequence[Make] = (), endless: bool = False,
) -> tuple[str, dict[str, int]]:  # fmt: skip
    """What is wrong with programs, in a sentence and the order that shows it, or RIGHT; and the words behind them.

    decoys: programs of another launch, which are begun and go no further: who tells the others anything through a
    variable of Python's tells them that. endless: polls must not give up.
    """
    try:
        machine = Machine(makes, words, resident, bits, endless)
        for number, make in enumerate(decoys):
            Program(number, make, words, bits)
        return machine.search(judge, most, walks, seed)
    except LostError as error:
        return str(error), {}
