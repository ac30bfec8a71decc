"""Exercise 8.7: correct variants, mutants that are none, an edition."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Lines = list[tuple[str, str]]


def all_at_once(worker: str, lines: Lines, seed: int, each: int) -> Program:
    """Shards are cut first, and taken from the last one to the first; a name with the worker's in front."""
    shards = [(start, lines[start : start + each]) for start in range(0, len(lines), each)]
    done = []
    while shards:
        start, own = shards.pop()
        name = "-".join(str(number).zfill(6) for number in (start, start + len(own)))
        names = yield ["names"]
        if name not in names:
            out = []
            for line in own:
                told = yield ["answer", line[1], zlib.crc32(bytes(f"{seed} {line[0]}", "utf-8"))]
                out.append(line[0] + " " + told + "\n")
            mine = "." + worker + "-at-work"
            yield ["write", mine, "".join(out)]
            yield ["rename", mine, name]
            done.insert(0, name)
    return done


def looks_often(worker: str, lines: Lines, seed: int, each: int) -> Program:
    """It looks before each answer, and gives up a shard that somebody else has finished meanwhile."""
    done, at = [], 0
    while at < len(lines):
        end = min(at + each, len(lines))
        name, text = f"{at:06d}-{end:06d}", []
        for id, prompt in lines[at:end]:
            if name in set((yield ("names",))):
                break
            said = yield "answer", prompt, zlib.crc32(f"{seed} {id}".encode())
            text += [id, " ", said, "\n"]
        else:
            place = f".{worker}.{at}"
            yield "write", place, "".join(text)
            yield "rename", place, name
            done += [name]
        at = end
    return done


EQUIVALENT: dict[str, str] = {}


def _named(worker: str, lines: Lines, seed: int, each: int) -> tuple[Any, ...]:
    return worker, dict(lines), seed, each


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


@edition("by-name", "prompts come by their ids", played=_played)
def batch_by_name(worker: str, lines: dict[str, str], seed: int, each: int) -> Program:
    """One run of a batch: it computes all shards that are missing, and returns the names of these alone, in order.

    worker: this run's name; runs that are alive at the same time have different names, and one that goes on after a run
    was killed may have the same. lines: the prompts by their ids, in order. seed: the run's, a whole number. each:
    lines of a shard, at least 1. Shard n, counted from 0, holds the lines from n * each on, `each` of them or as many
    as are left; from line a, counted from 0, up to line b - 1 its name is f"{a:06}-{b:06}". Its file is a str: for each
    of its lines, in order, the id, a space, the answer, and "\\n".
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
    is no "write" and no "rename". The shards may be taken in any order. The dict stays as it is.
    """
    made, ids = [], list(lines)
    for start in range(0, len(ids), each):
        end = min(start + each, len(ids))
        name = f"{start:06}-{end:06}"
        if name not in (yield ("names",)):
            text = ""
            for id in ids[start:end]:
                text += f"{id} {(yield 'answer', lines[id], zlib.crc32(f'{seed} {id}'.encode()))}\n"
            yield "write", f".{name}.{worker}", text
            yield "rename", f".{name}.{worker}", name
            made.append(name)
    return made
