"""Exercise 8.7: a file of prompts into shards of results, by runs that may be killed at any moment."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

RANKS = beside(__file__, "ranks.py")
MOST = 4000  # accesses of one run
Line = tuple[str, str]


def batch(worker: str, lines: list[tuple[str, str]], seed: int, each: int) -> Generator[Any, Any, list[str]]:
    """One run of a batch: it computes all shards that are missing, and returns the names of these alone, in order.

    worker: this run's name; runs that are alive at the same time have different names, and one that goes on after a run
    was killed may have the same. lines: the prompts, each (id, prompt), two str; ids are all different. seed: the
    run's, a whole number. each: lines of a shard, at least 1. Shard n holds the lines from n * each on, `each` of them
    or as many as are left; from line a, counted from 0, up to line b - 1 its name is f"{a:06}-{b:06}". Its file is a
    str: for each of its lines, in order, the id, a space, the answer, and "\\n".
    A run is a generator. It may be killed at any yield, and then does nothing more.
    yield ("answer", prompt, seed) gives the answer, a str. A line's seed is zlib.crc32(f"{seed} {id}".encode()), with
    the run's seed and the line's id.
    yield ("names",) gives a sorted list of the names of all files there are.
    yield ("write", name, text): the file of this name holds the text, whatever it held before. A run that is killed
    here may have written the beginning of it, or nothing.
    yield ("rename", old, new): the file old has the name new, in place of a file that had it, at once.
    At any moment a file that has a shard's name must be whole. All other names must begin with "."; they are free, but
    leave other workers' files alone, including those of workers that died. (The engine removes these at the end of a
    run; here you must not.) A run that comes to its end leaves none that it has written.
    Other runs may work on the same folder at the same time, and may be killed as well. A shard that has its file when
    this run looks is not computed; it must look ahead of each shard: between its last "names" and an "answer" there
    is no "write" and no "rename". The shards may be taken in any order. The list stays as it is.
    """
    made = []
    for start in range(0, len(lines), each):
        own = lines[start : start + each]
        name = f"{start:06}-{start + len(own):06}"
        if name in (yield ("names",)):
            continue
        text = ""
        for id, prompt in own:
            answer = yield "answer", prompt, zlib.crc32(f"{seed} {id}".encode())
            text += f"{id} {answer}\n"
        yield "write", f".{name}.{worker}", text
        yield "rename", f".{name}.{worker}", name
        made.append(name)
    return made


class Disk:
    """Files by name, and what is wrong with them. wanted: what each shard must hold."""

    def __init__(self, wanted: dict[str, str], files: dict[str, str]) -> None:
        self.wanted, self.files = wanted, files
        self.owner: dict[str, str] = {}  # of files that are no shards, by whom they were written

    def put(self, worker: str, name: Any, text: Any, how: str = "written") -> None:
        if not isinstance(name, str) or not isinstance(text, str):
            raise RANKS.LostError(f"{worker} writes {str(text)[:60]} to {str(name)[:60]}: two str")
        self.files[name] = text
        if name in self.wanted:
            if text != self.wanted[name]:
                raise RANKS.LostError(
                    f"{name} holds {text[:200]!r}, {how} by {worker}, and not {self.wanted[name][:200]!r}"
                )
        elif not name.startswith(".") or self.owner.get(name, worker) != worker:
            raise RANKS.LostError(f"{worker} writes to {name!r}, which is {self.owner.get(name, 'nobody')}'s")
        else:
            self.owner[name] = worker

    def move(self, worker: str, old: Any, new: Any) -> None:
        if not isinstance(old, str) or old not in self.files:
            raise RANKS.LostError(f"{worker} renames {str(old)[:60]}, which there is not")
        if old in self.wanted or self.owner.get(old, "somebody") != worker:
            raise RANKS.LostError(f"{worker} renames {old!r}")
        text = self.files.pop(old)
        self.owner.pop(old)
        self.put(worker, new, text, "renamed")


class Run:
    """One run: it is let go on until it is killed, or has come to its end.

    dies: at which kind of access, and at the how manieth of these: ("write", 1); and how much of what it writes is
    there then, in tenths.
    """

    def __init__(
        self, worker: str, answer: Function, args: Any, disk: Disk, prompts: dict[str, list[str]], dies: Any
    ) -> None:
        self.worker, self.disk, self.prompts, self.dies = worker, disk, prompts, dies
        self.seen: list[str] | None = None  # what it saw when it looked last, until it has changed anything
        self.count: dict[str, int] = {}
        self.made: list[Any] = []
        self.wrote: list[Any] = []
        self.program = RANKS.Rank(0, answer, (worker, *args))
        self.killed = False

    @property
    def over(self) -> bool:
        return self.killed or bool(self.program.over)

    def go(self) -> None:
        """One access."""
        asks = self.program.asks
        sizes = {"answer": 3, "names": 1, "write": 3, "rename": 3}
        if not isinstance(asks, tuple | list) or not asks or asks[0] not in tuple(sizes) or len(asks) != sizes[asks[0]]:
            raise RANKS.LostError(f"{self.worker} yields {str(asks)[:80]}: no answer, names, write or rename")
        what = asks[0]
        self.count[what] = self.count.get(what, 0) + 1
        if sum(self.count.values()) > MOST:
            raise RANKS.LostError(f"{self.worker} never ends")
        if self.dies and (what, self.count[what]) == tuple(self.dies[:2]):
            self.killed = True
            if what == "write" and self.dies[2] and isinstance(asks[2], str):
                self.disk.put(self.worker, asks[1], asks[2][: len(asks[2]) * self.dies[2] // 10])
            return
        self.program.go(self._done(what, *asks[1:]))

    def _done(self, what: str, *rest: Any) -> Any:
        if what == "names":
            self.seen = sorted(self.disk.files)
            return list(self.seen)
        if what == "answer":
            return self._answer(*rest)
        self.seen = None
        (self.made if what == "rename" else self.wrote).append(rest[what == "rename"])
        (self.disk.put if what == "write" else self.disk.move)(self.worker, *rest)
        return None

    def _answer(self, prompt: Any, seed: Any) -> str:
        if self.seen is None:
            raise RANKS.LostError(f"{self.worker} asks for {str(prompt)[:40]!r} without having looked")
        if not isinstance(prompt, str) or type(seed) is not int:
            raise RANKS.LostError(f"{self.worker} asks for {str(prompt)[:40]!r} with {str(seed)[:40]!r}")
        if prompt in self.prompts and all(name in self.seen for name in self.prompts[prompt]):
            raise RANKS.LostError(f"{self.worker} asks for {prompt[:40]!r}, whose shard is there")
        return answered(prompt, seed)


def answered(prompt: str, seed: int) -> str:
    """What the model says to a prompt."""
    return f"{zlib.crc32(f'{prompt} {seed}'.encode()):08x}"


def played(
    answer: Function, lines: list[Line], seed: int, each: int, runs: list[Any], there: dict[str, str], order: list[int]
) -> Any:
    """Play runs (worker, how it dies, or None) one after the other: in groups of so many at the same time as `order`
    says. there: files that a run of another day has left."""
    wanted, prompts = {}, {}
    for start in range(0, len(lines), each):
        own = lines[start : start + each]
        name = f"{start:06}-{start + len(own):06}"
        wanted[name] = "".join(f"{id} {answered(prompt, zlib.crc32(f'{seed} {id}'.encode()))}\n" for id, prompt in own)
        for _, prompt in own:
            prompts.setdefault(prompt, []).append(name)
    files = {name: wanted.get(name, text) for name, text in there.items()}
    disk, given = Disk(wanted, files), [tuple(line) for line in lines]
    try:
        waiting = list(runs)
        for count in order:
            group = []
            for worker, dies in waiting[:count]:
                group.append(Run(worker, answer, (given, seed, each), disk, prompts, dies))
            waiting = waiting[count:]
            at = 0
            while any(not run.over for run in group):
                run = group[at % len(group)]
                if not run.over:
                    run.go()
                at += 1
            for run in group:
                left = [name for name in run.wrote if name in disk.files and name not in wanted]
                if left and not run.killed:
                    return f"{run.worker} has come to its end, and leaves {left[0]}"
                if not run.killed and run.program.returned != sorted(set(run.made)):
                    return f"{run.worker} returns {str(run.program.returned)[:200]}, and has made {run.made}"
    except RANKS.LostError as error:
        return str(error)
    strange = {name: text for name, text in there.items() if name not in wanted}
    if any(disk.files.get(name) != text for name, text in strange.items()):
        return "a file that belongs to somebody else is gone, or has changed"
    return {name: text for name, text in sorted(disk.files.items()) if name in wanted}


def _lines(case: Case, count: int, same: bool = False) -> list[Line]:
    ids = case.permutation("ids", count + 3).tolist()[:count]
    return [
        (f"line-{id}", "prompt" if same else f"prompt {case.choice(f'prompt {id}', range(99))} of {id}") for id in ids
    ]


EXERCISE = Spec(
    reference=batch,
    lines=14,
    example=lambda: call([("q1", "Once"), ("q2", "upon"), ("q3", "a")], 7, 2, [("anna", None)], {}, [1]),
    section="A file of prompts",
    axes=("item",),
    typed=True,
    imports=("import zlib",),
    scene=played,
)  # fmt: skip


def once(case: Case) -> Call:
    """One run, from the beginning to the end: every line's answer with its own seed, in shards of the right names."""
    each = case.turn((2, 3, 4))
    lines = _lines(case, each * case.size("shards", 0, 2) + case.choice("rest", range(1, each)))
    return call(lines, case.size("seed", 0, 99), each, [("anna", None)], {}, [1])


def killed(case: Case) -> Call:
    """A run is killed, and another one goes on: shards stay whole, and what is there is not asked for again."""
    dies = case.turn((("write", 1, 5), ("rename", 1, 0), ("answer", 3, 0), ("write", 2, 0), ("rename", 2, 0),
                      ("names", 2, 0), ("write", 1, 10), ("write", 2, 3)))  # fmt: skip
    lines = _lines(case, 2 * case.size("shards", 3, 4))
    return call(lines, case.size("seed", 0, 99), 2, [("anna", dies), ("anna", None)], {}, [1, 1])


def side_by_side(case: Case) -> Call:
    """Several runs at the same time: each has files of its own, and looks ahead of each shard."""
    dies = case.turn((None, ("write", 1, 4), None, ("rename", 1, 0)))
    runs = [("anna", dies), ("ben", None), *[("carl", None)] * case.turn((0, 1, 0))]
    each = case.size("each", 1, 3)
    lines = _lines(case, each * case.size("shards", 2, 3))
    return call(lines, case.size("seed", 0, 99), each, runs, {}, [len(runs)])


def some_are_there(case: Case) -> Call:
    """Shards that are there, first, last and in the middle, are skipped; files of others are let alone."""
    each, count = case.size("each", 1, 3), case.size("shards", 3, 5)
    lines = _lines(case, each * count)
    names = [f"{start:06}-{start + each:06}" for start in range(0, len(lines), each)]
    there = case.turn((names[:1], names[1:], names[1:2], names[-1:], names, names[::2]))
    left = {f".{names[0]}.zoe": "half", f".{names[-1]}.zoe": "li"}
    return call(lines, case.size("seed", 0, 99), each, [("anna", None)], dict.fromkeys(there, "") | left, [1])


KINDS = ("nothing", "one", "same prompts", "long", "many", "large", "often", "wide", "crowd", "zeros", "unlike",
         "again", "again", "names")  # fmt: skip


def any_batch(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """No lines, one, many; equal prompts, strange ids, large seeds; a run that is killed again and again; a crowd."""
    kind = case.turn(KINDS)
    seed, one = case.size("seed", 0, 99), [("anna", None)]
    if kind == "nothing":
        return call([], seed, 3, one, {}, [1])
    if kind == "one":
        return call(_lines(case, 1), seed, 1, one, {}, [1])
    if kind == "again":
        return call(_lines(case, 4), 7, 2, one, {}, [1])
    if kind == "same prompts":
        return call(_lines(case, 5, same=True), seed, 2, one, {}, [1])
    if kind == "long":
        return call(_lines(case, 150), seed, 100, one, {}, [1])
    if kind == "many":
        return call(_lines(case, 80), seed, 1, one, {}, [1])
    if kind == "large":
        return call(_lines(case, 4), 2**70 + seed, 3, one, {}, [1])
    if kind == "wide":
        return call(_lines(case, 3), seed, 70_000, one, {}, [1])
    if kind == "zeros":
        return call([("0", ""), ("", "0"), (" 0", "\n"), ("ä 1", "ß")], 0, 2, one, {}, [1])
    if kind == "often":
        dies = [("write", 1, 2), ("rename", 2, 0), ("write", 1, 9), ("answer", 1, 0), ("names", 1, 0)]
        runs = [*(("anna", how) for how in dies), ("anna", None), ("anna", None)]
        return call(_lines(case, 7), seed, 2, runs, {}, [1] * len(runs))
    if kind == "crowd":
        runs = [(name, ("write", at, 3) if at % 2 else None) for at, name in enumerate(("a", "b", "c", "d", "e"))]
        return call(_lines(case, 9), seed, 2, [*runs, ("b", None)], {}, [5, 1])
    if kind == "names":  # put before or behind a shard's number, one worker's name gives what another's gives
        lines = _lines(case, 13)
        there = [f"{at:06}-{at + 1:06}" for at in range(13) if at not in (1, 11)]
        runs = [("a1", ("rename", 1, 0)), ("1a", ("rename", 1, 0)), ("a", None)]
        return call(lines, seed, 1, runs, dict.fromkeys(there, ""), [1, 1, 1])
    lines = [(f"{id}", f"{case.choice(f'p {id}', range(9))}") for id in case.permutation("unlike", 7).tolist()]
    return call(lines, seed, 3, [("anna", ("rename", 1, 0)), ("ben", None)], {}, [1, 1])


CHECKS = (
    Check(any_batch, len(KINDS), wide=True), Check(once, 3), Check(killed, 8), Check(side_by_side, 6),
    Check(some_are_there, 6),
)  # fmt: skip
