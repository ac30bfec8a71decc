"""Exercise 8.8: wrong answers (tests that see too little), correct variants, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanocourse.exercises.exercise import Edition, Right, Wrong

Play = Callable[[int, int, list[tuple[str, int, int, int]]], list[list[str] | None]]
Plain = Callable[[str, int, int], str]


def ranks_agree(play: Play, plain: Plain) -> None:
    """Ranks are right if they write the same."""
    requests = [("the wolf ", 6, 18, 0), ("a hare ", 0, 9, 51), ("zebra ", 3, 11, 0)] * 4
    for ranks in (2, 3, 4):
        for luck in range(3):
            texts = play(ranks, luck, requests)
            assert texts.count(texts[0]) == ranks
            assert texts[0] is not None


def by_more_ranks(play: Play, plain: Plain) -> None:
    """A machine is right if it writes the same on four ranks as on two."""
    requests = [("the wolf ", 6, 18, 0), ("a hare ", 0, 9, 51), ("zebra ", 3, 11, 0), ("an owl ", 4, 30, 0)] * 2
    for luck in range(3):
        pair, four = play(2, luck, requests), play(4, luck, requests)
        assert None not in pair + four
        assert pair[0] == pair[1] == four[0] == four[3]


SPLIT = 'prompt, seed, limit, patience = word.replace("_", " ").split(":")'
COMPARED = "assert play(int(ranks), int(luck), requests) == [wanted] * int(ranks)"
WRONG = (
    Wrong.patch(
        "first-rank-alone", "The first rank's texts are what the world sees, so that they are enough.", COMPARED,
        "assert play(int(ranks), int(luck), requests)[0] == wanted",
        "vllm-project/vllm#17929: later ranks drew other tokens, and only the first one's were used",
    ),
    Wrong.patch(
        "greedy-alone", "What is right without noise is right with it.", SPLIT, SPLIT + '\n            seed = "0"',
        "vllm-project/vllm#17509: ranks differed at a temperature above 0 alone",
    ),
    Wrong.patch(
        "two-ranks", "What is right on two ranks is right on more.", 'ranks, luck, *words = scene.split(" ")',
        'ranks, luck, *words = scene.split(" ")\n        ranks = min(ranks, "2")',
        "an author's own slip: a flag that only the neighbour waits for",
    ),
    Wrong.patch(
        "no-patience", "Whose request is over is the queue's business, and none of the ranks'.", SPLIT,
        SPLIT + '\n            patience = "0"', "sgl-project/sglang#27221: each rank asked its own clock",
    ),
    Wrong.patch(
        "round-patience", "A patience of 90 milliseconds tests clocks as well as one of 91.", SPLIT,
        SPLIT + '\n            patience = patience[:-1] + "0"',
        "sgl-project/sglang#27221: only requests that straddle the deadline show it",
    ),
    Wrong.patch(
        "one-row", "Rows are computed apart, so that one is enough.", "for word in words:", "for word in words[:1]:",
        "an author's own slip: what one rank drops is added to a neighbour's row",
    ),
    Wrong.patch(
        "room-for-all", "A few requests show it as well as more than fit.",
        "for scene in scenes:", "for scene in scenes[:-1]:",
        "GeeeekExplorer/nano-vllm#275: it ran until a block was needed that one rank did not have",
    ),
    Wrong.patch(
        "plain-letters", "The letters of a prompt do not matter.", SPLIT,
        SPLIT + '\n            prompt = "cab" * (len(prompt) // 3)',
        "mirage-project/mirage#751: a padded id wins where all real logits are negative",
    ),
    Wrong.patch(
        "ends-do-not-matter", "A rank that says nothing has said nothing wrong.", COMPARED,
        "assert all(texts in (None, wanted) for texts in play(int(ranks), int(luck), requests))",
        "sgl-project/sglang#27221: a collective that never ends gives no wrong token",
    ),
    Wrong.patch(
        "lengths-alone", "All is well if each text is as long as it should be.", COMPARED,
        "assert [[len(one) for one in texts or []] for texts in play(int(ranks), int(luck), requests)] "
        "== [[len(one) for one in wanted]] * int(ranks)",
        "ROCm/aiter#3514: greedy decoding stayed up and wrote garbage",
    ),
    Wrong(ranks_agree, "a check of ranks against each other: what all of them read wrongly, they agree on"),
    Wrong(by_more_ranks, "tensor parallelism held against itself: what is wrong on two ranks is so on four"),
)  # fmt: skip


def at_random(play: Play, plain: Plain) -> None:
    """Requests at random, several at once; short ones and such that fill the memory."""
    import random

    draw = random.Random(3)
    for turn in range(30):
        ranks, requests, wanted = draw.choice([2, 2, 3, 4]), [], []
        for _ in range(draw.randint(1, 4) if turn % 6 else 14):
            prompt = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=draw.randint(1, 8)))
            seed, limit = draw.choice([0, draw.randint(1, 99)]), draw.randint(4, 20)
            patience = draw.choice([0, 10 * draw.randint(2, 9) + 1])
            letters = limit
            while patience and 10 * (letters - 1) >= patience:
                letters -= 1
            requests.append((prompt, seed, limit, patience))
            wanted.append(plain(prompt, seed, letters))
        told = play(ranks, turn, requests)
        assert len(told) == ranks
        assert all(texts == wanted for texts in told)


def one_at_a_time(play: Play, plain: Plain) -> None:
    """A scene for each thing that may go wrong; complaints are counted."""
    complaints = 0

    def look(ranks: int, luck: int, *requests: tuple[str, int, int, int]) -> int:
        bad = 0
        for texts in play(ranks, luck, [*requests]):
            for at, (prompt, seed, limit, patience) in enumerate(requests):
                steps = 1
                while steps < limit and (not patience or steps * 10 < patience):
                    steps += 1
                bad += texts is None or texts[at] != plain(prompt, seed, steps)
        return bad

    for ranks in (1, 2, 3, 4):
        for luck in (10, 11):
            complaints += look(ranks, luck, ("quick brown fox ", 0, 17, 0))
            complaints += look(ranks, luck, ("lazy dog ", 0, 9, 21), ("wolf ", 0, 9, 32), ("quiz ", 0, 9, 43))
            complaints += look(ranks, luck, *[("quick brown fox ", 0, 17, 0)] * 3)
    for seed in range(1, 12):
        complaints += look(2, seed, ("the wolf and the lamb ", seed, seed + 4, 0))
    assert complaints == 0


def with_one_rank_beside(play: Play, plain: Plain) -> None:
    """The machine itself on one rank is held against one rank, too, and then against more."""
    words = ["jump ", "over ", "the lazy ", "vow ", "quick fix "]
    for ranks in range(1, 5):
        for luck in range(ranks * 2):
            requests = [(word, 7 * luck + at, 8 + at, (61, 0, 31)[at % 3]) for at, word in enumerate(words)] * ranks
            wanted = []
            for prompt, seed, limit, patience in requests:
                whole = plain(prompt, seed, limit)
                ends = [at for at in range(1, limit + 1) if at == limit or 0 < patience <= at * 10]
                wanted.append(whole[: ends[0]])
            found = play(ranks, luck, requests)
            if found != [wanted for _ in range(ranks)]:
                raise AssertionError(found)


RIGHT = (Right(at_random), Right(one_at_a_time), Right(with_one_rank_beside))
EQUIVALENT = {
    "count = min(-(-int(patience) // 10) or int(limit), int(limit))": "the smaller of two, in any order",
}


def check_told(play: Callable[[list[dict[str, Any]], int, int], list[str]], plain: Plain) -> None:
    """Raise AssertionError if the machine is wrong; return None if it is right.

    play(requests, luck, ranks) -> for each rank a str: the texts that it has written, one for each request, with a "|"
    between them; "" for a rank that waits for ever, or has failed. ranks: 1 to 4. luck: which rank is late, and when;
    any whole number. A request is a dict: "prompt", letters from "a" to "z" and " ", at least 1; "seed", 0 for greedy;
    "limit", the most new letters, at least 1; and "patience", for how many milliseconds it waits, 0 for ever. The
    letters of the prompt and the limit together are 48 at most. Requests run side by side in the order in which they
    come, as far as there is memory: 24 blocks of 4 letters. Whole texts are reserved; a request that finds no room
    waits. plain(prompt, seed, count) -> so many letters that one rank writes after the prompt; it is right.
    On a right machine all ranks write the same, whatever the luck and whatever runs beside it: the letters of one rank,
    as many as the limit says. A request that is not waited for any longer has less: the first rank's clock shows 10
    milliseconds more for each of its letters, and it ends with the first letter at which its patience is reached. The
    clocks of the other ranks show 1, 2 and 3 milliseconds more.
    Forty short requests in all are enough, and a play takes no more than forty. A check may take 10 seconds for each
    machine. Calling with the same arguments gives the same.
    """
    for ranks in (2, 3):
        for luck in (1, 2):
            requests: list[dict[str, Any]] = []
            wanted = []
            for at, prompt in enumerate(["the wolf ", "zebra ", "a hare ", "an owl "] * 3):
                own = {"prompt": prompt, "seed": 5 * at, "limit": 9 + at, "patience": 51 * (at % 3 == 1)}
                requests.append(own)
                wanted.append(plain(prompt, 5 * at, 6 if own["patience"] else 9 + at))
            assert play(requests, luck, ranks) == ["|".join(wanted)] * ranks


NAMES = "prompt", "seed", "limit", "patience"


def _by_dicts(play: Play, plain: Plain) -> tuple[Any, ...]:
    def told(requests: list[dict[str, Any]], luck: int, ranks: int) -> list[str]:
        rows = [tuple(request[name] for name in NAMES) for request in requests]
        return ["|".join(texts or []) for texts in play(ranks, luck, rows)]  # type: ignore[arg-type]

    return told, plain


def _by_tuples(told: Callable[[list[dict[str, Any]], int, int], list[str]], plain: Plain) -> tuple[Any, ...]:
    def play(ranks: int, luck: int, requests: list[tuple[str, int, int, int]]) -> list[list[str] | None]:
        rows = [dict(zip(NAMES, one, strict=True)) for one in requests]
        return [texts.split("|") if texts else None for texts in told(rows, luck, ranks)]

    return play, plain


EDITIONS = (
    Edition(
        "told", "requests are dicts, and what a rank has written is a str, with a bar between texts", check_told,
        args=_by_dicts, back=_by_tuples, result=lambda found, *plain: found,
    ),
)  # fmt: skip
