"""Exercise 6.5: wrong answers and where they come from, correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]
GRID = "grid = min(len(tiles), resident)"
REFUSES = "if tiles and resident < 1:"
LEFT = """left = polls
        while left and (yield "load", arrived) != grid:
            left -= 1
"""
VAIN = """if not left:
            yield "store", failed, 1
            return None
"""
ADD = 'yield "add", arrived, 1\n'
LOOP = """for at in range(me, len(tiles), grid):
            if tiles[at]:
                yield "store", out[at], tiles[at] ** 2
"""
WRONG = (
    Wrong.patch(
        "one-for-each-tile", "There is a program for each tile.", GRID, "grid = len(tiles)",
        "NVIDIA/cub#369: a grid barrier among 128 blocks, of which 56 run at once",
    ),
    Wrong.patch(
        "too-many-are-refused", "A launch with more tiles than places cannot be.", REFUSES,
        "if len(tiles) > resident:",
        "cupy/cupy#3894: a grid that exceeds the limit is an error where it cannot be reduced; tiles can be dealt out",
    ),
    Wrong.patch(
        "as-many-as-fit", "The grid is as large as the device allows.", GRID, "grid = resident",
        "an author's own slip: programs without a tile, which all others wait for",
    ),
    Wrong.patch(
        "waits-for-tiles", "All is done when each tile has arrived.", '(yield "load", arrived) != grid',
        '(yield "load", arrived) != len(tiles)',
        "an author's own slip: programs arrive, and tiles do not",
    ),
    Wrong.patch(
        "waits-for-ever", "A barrier among programs that fit always ends.", LEFT,
        'left = 1\n        yield "wait", arrived, lambda held: held == grid\n',
        "NVIDIA/cutlass#1938: nothing promises that as many blocks run as the device has places for",
    ),
    Wrong.patch(
        "empty-one-leaves", "A program with nothing to do may end.", LOOP,
        'if not any(tiles[me::grid]):\n            return sum(tile * tile for tile in tiles)\n        ' + LOOP,
        "pytorch/pytorch#136007: an early exit ahead of a barrier, behind which the others wait",
    ),
    Wrong.patch(
        "tiles-arrive", "Each tile arrives when it is done.", LOOP + '        yield ("fence",)\n        ' + ADD,
        LOOP + '                yield ("fence",)\n                ' + ADD,
        "vllm-project/vllm#26026: a program that came round arrived at the same barrier once more",
    ),
    Wrong.patch(
        "empty-one-arrives-twice", "An empty tile arrives at once, since nothing is to be done.",
        'yield "store", out[at], tiles[at] ** 2\n',
        'yield "store", out[at], tiles[at] ** 2\n            else:\n                yield "add", arrived, 1\n',
        "Dao-AILab/flash-attention#2258: empty tiles arrived at barriers where nobody waited for them",
    ),
    Wrong.patch(
        "rest-is-lost", "Each program has as many tiles as the others.", "range(me, len(tiles), grid)",
        "range(me * (len(tiles) // grid), (me + 1) * (len(tiles) // grid))",
        "tile-ai/tilelang#2010: a length divided by the splits, rounded down, and its rest in no split",
    ),
    Wrong.patch(
        "no-fence", "Who has arrived has stored.", 'yield ("fence",)\n', "pass\n",
        "ROCm/triton#745: the lock was signalled while part of the stores had not begun",
    ),
    Wrong.patch(
        "fails-silently", "Whoever returns None has said enough.", 'yield "store", failed, 1\n            return None',
        "return None",
        "an author's own slip: what programs return is nobody's, and the host looks at the word",
    ),
    Wrong.patch(
        "goes-on-in-vain", "When the polls are used up, what is there must do.",
        'yield "store", failed, 1\n            return None', 'yield "store", failed, 1',
        "an author's own slip: half of the tiles, and an error word that somebody may look at",
    ),
    Wrong.patch(
        "no-place-is-one", "One program always fits.",
        REFUSES + '\n        raise ValueError("no program fits")\n    ' + GRID,
        "grid = min(len(tiles), max(1, resident))",
        "ROCm/rocm-systems#7105: a warning is printed, and the launch goes on",
    ),
    Wrong.patch(
        "empty-ones-count", "An empty tile's word is 0.", "            if tiles[at]:\n                total +=",
        "            if True:\n                total +=",
        "ROCm/aiter#4420: a split without tokens is trusted like all others",
    ),
)  # fmt: skip


def in_lines(tiles: list[int], resident: int, out: list[str], arrived: str, failed: str, polls: int) -> list[Program]:
    """Each program has tiles that lie side by side; a for loop with an end."""
    places = resident if resident < len(tiles) else len(tiles)
    if len(tiles) > 0 == resident:
        raise ValueError

    def run(begin: int, end: int) -> Program:
        for at in range(begin, end):
            if tiles[at] != 0:
                yield "store", out[at], tiles[at] * tiles[at]
                yield ("fence",)
        came = 1 + (yield "add", arrived, 1)
        for _ in range(polls):
            if came == places:
                break
            came = yield "load", arrived
        if came != places:
            yield "store", failed, 1
            return
        found = []
        for word, tile in zip(out, tiles, strict=True):
            if tile > 0:
                found.append((yield "load", word))
        return sum(found)

    return [run(len(tiles) * me // places, len(tiles) * (me + 1) // places) for me in range(places)]


def taken_from_a_list(
    tiles: list[int], resident: int, out: list[str], arrived: str, failed: str, polls: int
) -> list[Program]:
    """Tiles with work are dealt out, empty ones to nobody; stores from behind."""
    work = [(word, tile) for word, tile in zip(out, tiles, strict=True) if tile]
    grid = min(resident, len(tiles))
    if not grid and tiles:
        raise ValueError("the device has no place")

    def one(mine: list[tuple[str, int]]) -> Program:
        for word, tile in reversed(mine):
            yield "store", word, tile**2
        yield ("fence",)
        yield "add", arrived, 1
        tried, came = 0, 0
        while came < grid and tried < polls:
            came, tried = (yield "load", arrived), tried + 1
        if came < grid:
            yield "wait", arrived, lambda came: came > 0
            yield "store", failed, 1
            return None
        total = 0
        for word, _ in work:
            total = total + (yield "load", word)
        return total

    return [one(work[me::grid]) for me in range(grid)]


def half_the_polls(
    tiles: list[int], resident: int, out: list[str], arrived: str, failed: str, polls: int
) -> list[Program]:
    """It gives up a little earlier, and reads the words of its own tiles too."""
    if resident == 0 and tiles != []:
        raise ValueError("0 programs")
    programs: list[Program] = []
    count = min([resident, len(tiles)])

    def body(me: int) -> Program:
        for at, tile in enumerate(tiles):
            if at % count == me and tile:
                yield "store", out[at], tile * tile
        yield ("fence",)
        yield "add", arrived, 1
        left = polls - 1
        while left > 0:
            left -= 1
            if (yield "load", arrived) >= count:
                total = 0
                for at, tile in enumerate(tiles):
                    total += (yield "load", out[at]) if tile else 0
                return total
        yield "store", failed, 1
        yield ("fence",)
        return None

    programs += map(body, range(count))
    return programs


RIGHT = (Right(in_lines), Right(taken_from_a_list), Right(half_the_polls))
EQUIVALENT = {"grid = min(resident, len(tiles))": "the smaller of two, in any order"}


def by_name(places: int, work: dict[str, int], words: dict[str, str], patience: int) -> list[Program]:
    """The programs of one launch, as generators: as many as there are tiles, but no more than run at once.

    work: a number for each tile, under the name of the tile's word; 0 stands for an empty one. places: how many
    programs the device says it runs at once. ValueError where it is 0 although there are tiles: then nothing is
    launched. words: under "arrived" and "failed" two more words, which hold 0 before the launch; those of tiles hold
    anything. All tiles are shared among the programs. Of each tile that is not empty, one program puts the number's
    square into the tile's word. When all programs have done their part, each one returns the sum of these squares, out
    of the words. A program waits for the others by polls: loads of the first word, `patience` at most, which is enough
    where all of them run. After `patience` failed polls it puts 1 into the second one and returns None.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it;
    a wait never gives up.
    """
    tiles = list(work.items())
    if tiles and places < 1:
        raise ValueError("no program fits")
    grid = min(len(tiles), places)

    def program(me: int) -> Program:
        for word, tile in tiles[me::grid]:
            if tile:
                yield "store", word, tile**2
        yield ("fence",)
        yield "add", words["arrived"], 1
        left = patience
        while left and (yield "load", words["arrived"]) != grid:
            left -= 1
        if not left:
            yield "store", words["failed"], 1
            return None
        total = 0
        for word, tile in tiles:
            if tile:
                total += yield "load", word
        return total

    return [program(me) for me in range(grid)]


def _named(tiles: list[int], resident: int, out: list[str], arrived: str, failed: str, polls: int) -> tuple[Any, ...]:
    return resident, dict(zip(out, tiles, strict=True)), {"failed": failed, "arrived": arrived}, polls


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda programs, *args: programs)


EDITIONS = (Edition("by-name", "tiles and words come by name", by_name, played=_played),)
