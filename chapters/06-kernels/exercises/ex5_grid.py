"""Exercise 6.5: a grid that fits, a wait that ends, and tiles with nothing to do."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Spec, beside, call

MACHINE = beside(__file__, "machine.py")
Program = Generator[Any, Any, Any]


def launch(tiles: list[int], resident: int, out: list[str], arrived: str, failed: str, polls: int) -> list[Program]:
    """The programs of one launch, as generators: as many as there are tiles, but no more than run at once.

    tiles: a number for each tile; 0 stands for an empty one. resident: how many programs the device says it runs at
    once. ValueError where it is 0 although there are tiles: then nothing is launched. out: a word for each tile.
    arrived, failed: two more words. Before the launch these two hold 0, and the words of `out` anything.
    All tiles are shared among the programs. Of each tile that is not empty, one program puts the number's square into
    the tile's word. When all programs have done their part, each one returns the sum of these squares, out of the
    words. A program waits for the others by polls: loads of `arrived`, `polls` at most, which is enough where all of
    them run. After `polls` failed polls it puts 1 into `failed` and returns None.
    A program is a generator. yield "load", word: gives what the word holds. yield "store", word, number: others see it
    at some time later, in any order with stores to other words; the program itself sees it at once. yield ("fence",):
    goes on when all of the program's stores have arrived. yield "add", word, number: at once and whole, gives what the
    word held before. yield "wait", word, condition: goes on when condition(what the word holds) is true, and gives it;
    a wait never gives up.
    """
    if tiles and resident < 1:
        raise ValueError("no program fits")
    grid = min(len(tiles), resident)

    def program(me: int) -> Program:
        for at in range(me, len(tiles), grid):
            if tiles[at]:
                yield "store", out[at], tiles[at] ** 2
        yield ("fence",)
        yield "add", arrived, 1
        left = polls
        while left and (yield "load", arrived) != grid:
            left -= 1
        if not left:
            yield "store", failed, 1
            return None
        total = 0
        for at in range(len(tiles)):
            if tiles[at]:
                total += yield "load", out[at]
        return total

    return [program(me) for me in range(grid)]


def launched(answer: Function, tiles: list[int], resident: int, runs: int, polls: int) -> str:
    """Launch the programs, in all orders. resident: what the device says; runs: how many really run at once."""
    out = [f"out[{at}]" for at in range(len(tiles))]
    words = {word: 50_000 + at for at, word in enumerate(out)} | {"arrived": 0, "failed": 0}
    right = sum(tile * tile for tile in tiles)

    def made() -> Any:
        return answer(list(tiles), resident, list(out), "arrived", "failed", polls)

    try:
        count = len(made())
    except Exception as error:
        if type(error).__name__ != "ValueError":
            raise
        return "it is refused"
    if count > resident:
        return f"{count} programs are launched, and {resident} run at once"
    if count != min(len(tiles), resident):
        return f"{count} programs are launched for {len(tiles)} tiles, where {resident} run at once"

    def judge(returned: list[Any], held: dict[str, int]) -> str:
        late = runs < count
        for me, one in enumerate(returned):
            if not (one == right and type(one) is int) and not (late and one is None):
                return f"program {me} returns {one}, and not {right}"
        if late and returned[0] is not None:
            return f"program 0 returns {returned[0]}, though others came when it had ended"
        if held["failed"] != late:
            return f"failed is {held['failed']}, and not {int(late)}"
        done = [held[word] for word, tile in zip(out, tiles, strict=True) if tile]
        empty = [held[word] for word, tile in zip(out, tiles, strict=True) if not tile]
        if done != [tile * tile for tile in tiles if tile] or min(empty, default=50_000) < 50_000:
            return f"the words of the tiles hold {[held[word] for word in out]}"
        return ""

    makes = [lambda me=me: made()[me] for me in range(count)]
    told: str = MACHINE.tried(makes, words, judge, resident=runs, most=800, walks=8, seed=str(tiles))[0]
    if told == MACHINE.RIGHT and runs < count and (loads := _polls(MACHINE.Program(0, makes[0], words, 64))) > polls:
        return f"program 0 polls {loads} times, where {polls} are all"
    return told


def _polls(program: Any) -> int:
    """How often a program looks for the others if none of them comes."""
    node, arrived, loads = program.root, 0, 0
    while node.access:
        name, word, number = (*node.access, "", 0)[:3]
        before = arrived if word == "arrived" else 0
        loads += (name, word) == ("load", "arrived")
        arrived += number if (name, word) == ("add", "arrived") else 0
        node = program.step(node, before if name in ("load", "add") else None)
    return loads


EXERCISE = Spec(
    reference=launch,
    lines=22,
    example=lambda: call([3, 0, 2], 2, 2, 20),
    section="A grid that fits",
    scene=launched,
)


def _tiles(case: Case, count: int, low: int = 1) -> list[int]:
    return case.ints("tiles", low, 9, count).tolist()


def more_tiles(case: Case) -> Call:
    """More tiles than places are dealt out to as many programs as fit."""
    resident = case.turn((1, 2, 3))
    return call(_tiles(case, resident + case.turn((3, 3, 2))), resident, resident, 20 + case.size("polls", 0, 9))


def empty_tiles(case: Case) -> Call:
    """A program whose tiles are empty arrives like all others, once."""
    tiles = case.turn(([0, 4, 0], [3, 0, 0, 5], [0, 0], [0, 2, 0, 0, 0]))
    return call([tile + case.size("more", 0, 3) if tile else 0 for tile in tiles], 2, 2, 25)


def somebody_is_missing(case: Case) -> Call:
    """Where fewer programs run than the device said, the launch ends and says that it failed."""
    count = case.turn((2, 3, 3))
    return call(_tiles(case, count), count, case.turn((1, 1, 2)), case.turn((11, 20, 31)))


def any_grid(case: Case) -> Call:
    """Nothing to do, no place at all, one tile, one place, as many tiles as places, and many of both."""
    kind = case.turn(("nothing", "no place", "neither", "one", "one place", "fits", "many", "long", "large", "equal"))
    sizes = {
        "nothing": (0, 3), "no place": (2, 0), "neither": (0, 0), "one": (1, 4), "one place": (4, 1), "fits": (3, 3),
        "many": (9, 12), "long": (90, 2), "large": (2, 3), "equal": (4, 2),
    }  # fmt: skip
    count, resident = sizes[kind]
    tiles = _tiles(case, count, 0)
    if kind == "large":
        tiles = [tile + 70_001 for tile in tiles]
    if kind == "equal":
        tiles = [tiles[0] + 1] * count
    return call(tiles, resident, max(1, resident), 30)


CHECKS = (Check(any_grid, 10, wide=True), Check(more_tiles, 3), Check(empty_tiles, 4), Check(somebody_is_missing, 3))
