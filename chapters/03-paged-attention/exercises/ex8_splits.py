"""Exercise 3.8: into how many parts the contexts of a launch are cut."""

from __future__ import annotations

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanoinfer.cache.paged import MAX_SPLITS, PROGRAMS, SPLIT_TOKENS


def choose_splits(batch: int, heads: int, max_len: int, lengths: list[int]) -> int:
    """Into how many parts each context of a decode launch is cut: a power of two, at least 1.

    batch, heads: the launch has batch * heads programs for each part. max_len: the most that a row may ever hold.
    lengths: what the rows hold at this step, of fewer rows than `batch` where the others are padding; a captured graph
    is replayed with others. The launch should have at most PROGRAMS programs, unless one part is too many already, a
    context at most MAX_SPLITS parts, and no more parts than SPLIT_TOKENS go into max_len, a begun one counted. As many
    as these three allow, rounded down to a power of two.
    """
    tiles = -(-max_len // SPLIT_TOKENS)
    wanted = min(MAX_SPLITS, PROGRAMS // (batch * heads), tiles)
    return 1 << max(0, wanted.bit_length() - 1)


def swap(mine: Function) -> Places:
    """PagedCache.attend asks it before each layer's launch."""

    def choose(batch: int, heads: int, longest: int) -> int:
        return int(mine(batch, heads, longest, [longest] * batch))

    return {"nanoinfer.cache.paged:choose_splits": choose}


EXERCISE = Spec(
    reference=choose_splits,
    lines=3,
    example=lambda: call(8, 12, 1024, [20, 700, 3, 90, 512, 64, 64, 1]),
    section="When splitting pays",
    typed=True,
    exact=True,
    imports=("from nanoinfer.cache.paged import MAX_SPLITS, PROGRAMS, SPLIT_TOKENS",),
    refuse=("nanoinfer.cache.paged:choose_splits",),
    swap=swap,
)


def many_rows(case: Case) -> Call:
    """Where rows and heads fill the device, contexts are cut less, and at last not at all."""
    heads, rows = case.choice("heads", (12, 16, 25)), case.size("rows", 2, 40) * case.choice("times", (1, 8))
    room = case.choice("room", (512, 1024))
    return call(rows, heads, room, case.ints("lengths", 1, room, rows).tolist())


AROUND = (
    (16, -1),
    (2, 1),
    (8, 0),
    (16, 1),
    (40, 0),
    (8, -1),
    (4, 1),
    (2, -1),
    (16, 0),
    (8, 1),
    (3, 0),
    (7, 0),
    (3, 1),
)  # tiles, and tokens more


def few_rows(case: Case) -> Call:
    """With room for many programs the room of a text decides: a begun tile is one, and there is a most."""
    tiles, more = case.turn(AROUND)
    room = SPLIT_TOKENS * tiles + more
    rows = case.size("rows", 1, 4)
    lengths = [max(1, room >> halved) for halved in case.sample("halved", range(2, 6), rows)]
    return call(rows, case.choice("heads", (1, 5)), room, lengths)


def any_launch(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """One row, one head, one token, very long texts, and launches at, below and beyond a power of two of programs."""
    kind = case.turn(("one row", "one token", "long", "below", "at", "beyond", "more than run at once", "nothing yet",
                      "one text", "short texts", 0, 1, 3 * PROGRAMS // 16))  # fmt: skip
    if isinstance(kind, int):  # so few rows have a text, which would leave room for twice as many parts
        return call(PROGRAMS // 4 + 1, 1, 8 * SPLIT_TOKENS, [9] * kind)
    if kind == "nothing yet":
        return call(2, 1, 3 * SPLIT_TOKENS, [0, 0])
    if kind == "one text":  # the other rows of the captured step are padding now
        return call(PROGRAMS // 32, 4, 16 * SPLIT_TOKENS, [100] + [0] * (PROGRAMS // 32 - 1))
    heads, room = case.choice("heads", (1, 2, 12)), 1024
    if kind == "short texts":
        return call(PROGRAMS // 4, 1, room, [1] * (PROGRAMS // 4))
    if kind == "one row":
        return call(1, case.choice("many heads", (96, 400)), room, [room // 2])
    if kind in ("one token", "long"):
        return call(2, heads, 1 if kind == "one token" else 10**6, [1, 1])
    if kind == "more than run at once":
        return call(2 * PROGRAMS, heads, room, [5] * 2 * PROGRAMS)
    rows = PROGRAMS // case.choice("parts", (2, 4, 8)) + {"below": -1, "at": 0, "beyond": 1}[kind]
    return call(rows, 1, room, case.ints("lengths", 1, room, rows).tolist())


LIMITS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)


def any_mixture(case: Case) -> Call:
    """Every limit at, below and beyond a power of two, beside every other, whatever some or all of the rows hold."""
    heads, tiles = case.choice("heads", (1, 2, 3, 12, 25)), case.choice("tiles", LIMITS[1:])
    fits = case.turn(LIMITS)  # so often does the launch fit into what runs at once
    batch = max(1, PROGRAMS // (heads * fits)) if fits else PROGRAMS
    batch, heads = case.choice("alone", ((batch, heads), (1, heads), (1, 1)))
    room = SPLIT_TOKENS * tiles - case.choice("less", (0, 1, int(case.ints("some less", 2, 62)), SPLIT_TOKENS - 1))
    some = case.choice("rows", (0, 1, int(case.ints("some", 0, batch)), batch - 1, batch))
    lengths = case.ints("lengths", *case.choice("hold", ((0, 0), (1, 1), (0, room), (room, room))), some)
    return call(batch, heads, room, lengths.tolist())


CHECKS = (
    Check(many_rows, 10), Check(few_rows, 13), Check(any_launch, 13, wide=True), Check(any_mixture, 28, wide=True),
)  # fmt: skip
