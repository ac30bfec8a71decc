"""Exercise 6.5: correct variants, mutants that are none, an edition."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises.exercise import Function, edition
from nanocourse.exercises.scene import Formed

Program = Generator[Any, Any, Any]


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


def _named(tiles: list[int], resident: int, out: list[str], arrived: str, failed: str, polls: int) -> tuple[Any, ...]:
    return resident, dict(zip(out, tiles, strict=True)), {"failed": failed, "arrived": arrived}, polls


def _played(answer: Function) -> Function:
    return Formed(answer, _named, lambda programs, *args: programs)


@edition("by-name", "tiles and words come by name", played=_played)
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
