"""Exercise 8.7: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
Lines = list[tuple[str, str]]

LOOP = "for start in range(0, len(lines), each):"
NAME = 'name = f"{start:06}-{start + len(own):06}"'
LOOK = 'if name in (yield ("names",)):\n            continue'
ASK = 'answer = yield "answer", prompt, zlib.crc32(f"{seed} {id}".encode())'
SEED = 'zlib.crc32(f"{seed} {id}".encode())'
LINE = 'text += f"{id} {answer}\\n"'
WRITE = 'yield "write", f".{name}.{worker}", text\n'
RENAME = 'yield "rename", f".{name}.{worker}", name\n'
WRONG = (
    Wrong.patch(
        "written-in-place", "A shard is written where it belongs.", WRITE + "        " + RENAME,
        'yield "write", name, text\n',
        "ray-project/ray#40986, of the same family: a writer that failed half-way, and what it had written by then",
    ),
    Wrong.patch(
        "grows-in-place", "Each answer is written as soon as it is there.", LINE,
        LINE + '\n            yield "write", name, text\n            yield ("names",)',
        "an author's own slip: a stream is written so, and is not whole before its end",
    ),
    Wrong.patch(
        "renamed-first", "The name is taken, and then the file is written.", WRITE + "        " + RENAME,
        'yield "write", f".{name}.{worker}", ""\n        ' + RENAME + '        yield "write", name, text\n',
        "vllm-project/vllm#2760, its kin: a flag that tells too early",
    ),
    Wrong.patch(
        "one-name-for-all", "What is not finished has one name.", WRITE + "        " + RENAME,
        'yield "write", f".{name}.tmp", text\n        yield "rename", f".{name}.tmp", name\n',
        "AstroVela/vane#405: a worker that was taken for dead was still writing",
    ),
    Wrong.patch(
        "never-renamed", "It is written, and safe.", RENAME, "\n",
        "an author's own slip: the next run finds nothing, and begins again",
    ),
    Wrong.patch(
        "begins-again", "A run computes everything, and writes over what is there.", LOOK, 'yield ("names",)',
        "ray-project/ray#40986: what is run again appears twice, or costs twice",
    ),
    Wrong.patch(
        "looks-once", "What was not there when the run began is missing.", LOOK,
        'if start == 0:\n            names = yield ("names",)\n        if name in names:\n            continue',
        "Ray's retries and a worker that was slow: two compute the same shard, which costs twice",
    ),
    Wrong.patch(
        "behind-the-last", "A run goes on behind the last shard that is there.", LOOK,
        'if any(other >= name and other[0] != "." for other in (yield ("names",))):\n            continue',
        "an author's own slip: one worker, in order; with several, holes stay",
    ),
    Wrong.patch(
        "counts-what-is-there", "As many shards as there are files are finished.", LOOK,
        'names = [other for other in (yield ("names",)) if other[0] != "."]\n'
        "        if start // each < len(names):\n            continue",
        "an author's own slip: the same as the first ones only if nobody else works here",
    ),
    Wrong.patch(
        "any-file-counts", "A file whose name holds the shard's name is the shard.", LOOK,
        'if any(name in other for other in (yield ("names",))):\n            continue',
        "an author's own slip: what a killed run has left counts as finished, and nothing is ever in its place",
    ),
    Wrong.patch(
        "takes-what-was-left", "What was written under my own name needs only its right name.", LOOK,
        'names = yield ("names",)\n        if name in names:\n            continue\n'
        '        if f".{name}.{worker}" in names:\n'
        '            yield "rename", f".{name}.{worker}", name\n            made.append(name)\n            continue',
        "an author's own slip: it may be the beginning of what should have been written",
    ),
    Wrong.patch(
        "one-seed", "A run has one seed.", ASK, ASK.replace(SEED, "zlib.crc32(str(seed).encode())"),
        "an author's own slip: equal prompts get equal answers",
    ),
    Wrong.patch(
        "seed-by-place", "The n-th line of a shard has the n-th seed.", ASK,
        ASK.replace(SEED, 'zlib.crc32(f"{seed} {own.index((id, prompt))}".encode())'),
        "an author's own slip: other shards, other answers",
    ),
    Wrong.patch(
        "seed-by-line", "A line's number tells its seed.", ASK,
        ASK.replace(SEED, 'zlib.crc32(f"{seed} {lines.index((id, prompt))}".encode())'),
        "an author's own slip: a line that is put in front changes all answers behind it",
    ),
    Wrong.patch(
        "seed-by-worker", "Each worker draws for itself.", ASK,
        ASK.replace(SEED, 'zlib.crc32(f"{seed} {worker} {id}".encode())'),
        "NVIDIA/FasterTransformer#390: seeds that differed by process",
    ),
    Wrong.patch(
        "seed-by-prompt", "A line is its prompt.", ASK, ASK.replace(SEED, 'zlib.crc32(f"{seed} {prompt}".encode())'),
        "an author's own slip: who asks the same thing twice wants two answers",
    ),
    Wrong.patch(
        "seed-and-id-in-one", "A seed and an id, one behind the other.", ASK, ASK.replace("{seed} {id}", "{seed}{id}"),
        "from the stub alone, by the author: seed 1 and id 12 are seed 11 and id 2",
    ),
    Wrong.patch(
        "31-bits", "A seed is a whole number of 31 bits.", ASK, ASK.replace(SEED, SEED + " & 0x7FFFFFFF"),
        "from the stub alone, by the author: a habit from other generators",
    ),
    Wrong.patch(
        "skips-the-rest", "What is there was done in order, so that a run is over when it finds none missing.", LOOK,
        'if name in (yield ("names",)):\n            if start:\n                break\n            continue',
        "from the stub alone, by the author: another worker has been here, and has not been everywhere",
    ),
    Wrong.patch(
        "salted", "hash() gives a number for everything.", ASK, ASK.replace(SEED, "hash((seed, id))"),
        "an author's own slip: Python salts it, and every process has another salt",
        unnamed="one-seed",
    ),
    Wrong.patch(
        "last-shard-lost", "There are len(lines) // each shards.", LOOP,
        "for start in range(0, len(lines) // each * each, each):",
        "an author's own slip: the last shard is shorter, and is lost",
    ),
    Wrong.patch(
        "full-names", "A shard's name tells where the next one starts.", NAME, 'name = f"{start:06}-{start + each:06}"',
        "an author's own slip: the last one is shorter",
    ),
    Wrong.patch(
        "numbered", "Shards are numbered.", NAME, 'name = f"{start // each:06}-{start // each + 1:06}"',
        "an author's own slip: another cut gives the same names to other lines",
    ),
    Wrong.patch(
        "sorted-by-id", "Results are in the order of their ids.", "for id, prompt in own:",
        "for id, prompt in sorted(own):", "an author's own slip: the order of the input is part of the contract",
    ),
    Wrong.patch(
        "as-it-came", "Lines end where the next one begins.", LINE,
        'text += ("\\n" if text else "") + f"{id} {answer}"',
        "an author's own slip: the last line has no end, and a file that is put behind it goes on in it",
    ),
    Wrong.patch(
        "names-all", "A run returns what is finished.", LOOK,
        'if name in (yield ("names",)):\n            made.append(name)\n            continue',
        "an author's own slip: what was asked for is what this run has done",
    ),
)  # fmt: skip


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


def written_twice(worker: str, lines: Lines, seed: int, each: int) -> Program:
    """The file of its own is begun with nothing in it, and written again when all answers are there."""
    last = len(lines)

    def name_of(number: int) -> str:
        return "%06d-%06d" % (number * each, min(last, number * each + each))  # noqa: UP031

    made: list[str] = []
    for number in range(-(-last // each)):
        there = yield ("names",)
        if name_of(number) not in there:
            answers = {}
            for id, prompt in lines[number * each : number * each + each]:
                answers[id] = yield ("answer", prompt, zlib.crc32(f"{seed} {id}".encode()))
            beside = f".{name_of(number)}.{worker}.part"
            yield ("write", beside, "")
            yield ("write", beside, "".join(f"{id} {said}\n" for id, said in answers.items()))
            yield ("rename", beside, name_of(number))
            made = [*made, name_of(number)]
    return made


RIGHT = (Right(all_at_once), Right(looks_often), Right(written_twice))
EQUIVALENT: dict[str, str] = {}


def batch_by_name(worker: str, lines: dict[str, str], seed: int, each: int) -> Program:
    """One run of a batch: it computes all shards that are missing, and returns their names, in order.

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


def _named(worker: str, lines: Lines, seed: int, each: int) -> tuple[Any, ...]:
    return worker, dict(lines), seed, each


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda program, *args: program)


EDITIONS = (Edition("by-name", "prompts come by their ids", batch_by_name, played=_played),)
