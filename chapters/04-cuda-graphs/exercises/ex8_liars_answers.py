"""Exercise 4.8: wrong answers (tests that see too little or too much), correct ones, mutants, an edition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from nanocourse.exercises.exercise import Edition, Function, Right, Wrong
from nanocourse.exercises.scene import Formed, NoVerdict

Make = Callable[..., Any]


def same_shape_and_not_slower(make: Make) -> None:
    """An engine is right if its letters have the right shape and type, and all steps were replayed."""
    engine = make()
    for rows, word in enumerate(("wolf ", "crane ", "ox "), start=1):
        engine.admit(word)
        letters = engine.step()
        assert letters.shape == (rows,)
        assert letters.dtype == torch.int64
    assert engine.missed == 0


def one_text(make: Make) -> None:
    """One text, long enough, shows it as well as many."""
    texts = []
    for graphs in (True, False):
        engine = make(graphs=graphs, fill=float("nan"))
        engine.admit("wolf ")
        for _ in range(24):
            engine.step()
        texts.append((engine.texts(), engine.missed))
    assert texts[0] == texts[1]


def memory_bit_by_bit(make: Make) -> None:
    """A right engine's cache is, bit by bit, that of the engine without graphs."""
    engines = [make(graphs=graphs, fill=float("nan")) for graphs in [True, False]]
    for seed, heat in enumerate([0.0, 4.0]):
        told = []
        for engine in engines:
            kept = []
            for word in ["wolf ", "crane ", "ox ", "lark ", "hen ", "bat "]:
                engine.admit(word, heat, seed)
                kept += [engine.step(), engine.k.nan_to_num().clone()]
            for _ in range(4):
                engine.release(0)
            engine.admit("abracadabra ")
            kept += [engine.step() for _ in range(5)]
            engine.reset()
            told.append([one.tolist() for one in kept])
        assert told[0] == told[1]
    assert engines[0].missed == 0


def texts_alone(make: Make) -> None:
    """The texts are what counts."""
    engines = [make(graphs=graphs, fill=float("nan")) for graphs in [True, False]]
    for seed, heat in enumerate([0.0, 4.0]):
        told = []
        for engine in engines:
            for word in ["wolf ", "crane ", "ox ", "lark ", "hen ", "bat "]:
                engine.admit(word, heat, seed)
                engine.step()
            for _ in range(4):
                engine.release(0)
            engine.admit("abracadabra ")
            told.append(engine.run(5))
            engine.reset()
        assert told[0] == told[1]
    assert engines[0].missed == 0


STEP = "                kept.append(engine.step())\n"
COME = """["wolf ", "crane ", "ox ", "lark ", "hen ", "bat "]:
                engine.admit(word, heat, seed)
                kept.append(engine.step())
            for _ in range(4)"""
LEAVE = """            for _ in range(4):
                engine.release(0)
"""
WRONG = (
    Wrong(same_shape_and_not_slower, "thu-ml/SageAttention#371: 2.3 times as fast, as the attention was missing"),
    Wrong(one_text, "GeeeekExplorer/nano-vllm#190: right alone, wrong in a batch that shrinks"),
    Wrong(
        memory_bit_by_bit, "an author's own slip: padding writes into the null block, and may",
        unnamed="a test that fails everything",
    ),
    Wrong.patch(
        "agrees-with-itself", "An engine is right if a second one of its kind agrees with it.",
        "[True, False]", "[True, True]", "sgl-project/sglang-omni#419: both starts repeated the same token",
    ),
    Wrong.patch(
        "greedy-alone", "Greedy decoding shows whatever there is to be seen.", "[0.0, 4.0]", "[0.0, 0.0]",
        "sgl-project/sglang-omni#419, mstar-project/mstar#199: found by users, as all tests were greedy",
    ),
    Wrong.patch(
        "one-seed-and-temperature", "Parameters are numbers: one choice is as good as another.",
        "heat, seed)", "4.0, 1)", "pytorch/pytorch#84614: a seed set after the capture was ignored",
    ),
    Wrong.patch(
        "short-texts", "What is right for a short text is right for a long one.", '"abracadabra "', '"ox "',
        "huggingface/transformers#45323: captured short, replayed long, and half of the benchmark's score",
    ),
    Wrong.patch(
        "nobody-leaves", "A batch that is full has the most rows, so it shows the most.",
        LEAVE + '            engine.admit("abracadabra ")\n', "",
        "vllm-project/vllm#43810, InternLM/lmdeploy#4569: only padding rows did it",
    ),
    Wrong.patch(
        "full-graphs", "A batch that fills its graph shows what a smaller one does.",
        "range(4)", "range(5)",
        "InternLM/lmdeploy#4569, GeeeekExplorer/nano-vllm#190: what padding rows write, once rows have left",
    ),
    Wrong.patch(
        "one-conversation", "A second conversation is the first one with other words.",
        "enumerate([0.0, 4.0])", "[(1, 4.0)]",
        "infinigence/ApxInf#89, TensorRT-LLM#4894: right until the first reset",
    ),
    Wrong.patch(
        "without-a-reset", "Releasing all rows is as good as a reset.",
        "            engine.reset()\n",
        "            _ = [engine.release(row) for row in reversed(range(len(engine.texts())))]\n",
        "infinigence/ApxInf#89: what a reset did besides",
    ),
    Wrong(texts_alone, "pytorch/pytorch#104435: results that a caller had kept"),
    Wrong.patch(
        "clean-memory", "A new cache is full of zeros, so a test may be, too.", 'float("nan")', "0.0",
        "ROCm/ATOM#2267, vllm-project/vllm#641: safe by luck, as long as buffers are zero",
    ),
    Wrong.patch(
        "four-rows", "Some rows show it as well as the most that there may be.", COME,
        COME.replace(', "hen ", "bat "', "").replace("range(4)", "range(2)"),
        "GeeeekExplorer/nano-vllm#216: 472 of 512 maxima were affected, and the default was none of them",
    ),
    Wrong.patch(
        "right-is-enough", "An engine whose text is right uses its graphs.", "    assert engines[0].missed == 0\n", "",
        "vllm-project/vllm#36165, sgl-project/sglang#33483: graphs that were captured and never replayed",
    ),
    Wrong.patch(
        "break-downs-pass", "What breaks down cannot be compared.", STEP,
        "                try:\n    " + STEP + "                except Exception:\n                    return\n",
        "a fifth reader who saw stub and text alone; it passed where it was tried on fewer liars",
    ),
    Wrong.patch(
        "returns-what-it-found", "A test says True of what is right.", "assert engines[0].missed == 0",
        "return engines[0].missed == 0", "a reader who saw stub and text alone; it passed",
    ),
)  # fmt: skip


def side_by_side(make: Make) -> None:
    """Both engines at once, step by step; results are looked at when everything is over."""
    both = make(fill=float("nan")), make(graphs=False, fill=float("nan"))
    results: list[list[Any]] = [[], []]

    def step() -> None:
        for engine, result in zip(both, results, strict=True):
            result.append(engine.step())

    for turn in range(2):
        for at, word in enumerate(("fox ", "crane ", "ox ", "lark ", "hen ", "dawn ")):
            for engine in both:
                engine.admit(word, 5.0 * turn, seed=turn * at)
            step()
        for engine in both:
            for _ in range(4):
                engine.release(0)
            engine.admit("abracadabra ")
        for _ in range(6):
            step()
        assert both[0].texts() == both[1].texts()
        for engine in both:
            engine.reset()
    for one, other in zip(*results, strict=True):
        assert one.equal(other)
    assert both[0].missed == 0


def scene_by_scene(make: Make) -> None:
    """A scene for each kind of mistake, each with engines of its own."""

    def same(play: Callable[[Any], Any], **options: Any) -> None:
        engine = make(**options)
        assert play(engine) == play(make(graphs=False, **options))
        assert not engine.missed

    def rows(engine: Any) -> Any:
        kept = []
        for word in ("wolf ", "crane ", "ox ", "lark ", "hen ", "bat "):
            engine.admit(word)
            kept.append(engine.step())
        for _ in range(4):
            engine.release(0)
        engine.admit("abracadabra ")
        kept += [engine.step() for _ in range(5)]
        return [list(map(int, letters)) for letters in kept]

    def again(engine: Any) -> Any:
        told = []
        for seed in (1, 2):
            for heat in (6.0, 3.0):
                engine.admit("wolf ", heat, seed)
                told += engine.run(5)
                engine.reset()
        return told

    same(lambda engine: [again(engine), rows(engine), engine.reset(), rows(engine)], fill=float("nan"))


def one_long_day(make: Make) -> None:
    """Events in a string: who comes, who leaves, and steps; two lists of numbers are compared."""

    def day(engine: Any) -> list[Any]:
        seen: list[Any] = []
        for turn in (2, 1):
            words = iter(["fox ", "wolf ", "he ", "owl ", "crow ", "ape ", "abracadabra "])
            for event in "+.+.+.+.+.+.----+.....!":
                if event == "+":
                    engine.admit(next(words), 3.5 * turn * (turn != 2), turn)
                elif event == "-":
                    engine.release(0)
                elif event == "!":
                    engine.reset()
                else:
                    seen.append(engine.step())
        return [number for letters in seen for number in letters.tolist()]

    engine = make(fill=float("nan"))
    if day(engine) != day(make(graphs=False)) or engine.missed > 0:
        raise AssertionError("another day")


RIGHT = (Right(side_by_side), Right(scene_by_scene), Right(one_long_day))

_OTHER = "another choice of rows, steps and parameters, which meets the same situations"
EQUIVALENT = {
    "engine.admit(word, seed, heat)": _OTHER,
    "engine.release(-1)": _OTHER,
    "engine.release(1)": _OTHER,
    "for seed, heat in enumerate([0.0, 2.0]):": _OTHER,
    "for seed, heat in enumerate([0.0, 8.0]):": _OTHER,
    "kept += [engine.step() for _ in range(4)]": _OTHER,
    "kept += [engine.step() for _ in range(6)]": _OTHER,
}


def is_right(graphed: Make, called: Make) -> bool:
    """True if the engines that `graphed` makes are right; False if they are wrong, or break down.

    graphed(): a new engine, which replays graphs. called(): the same one, with every step called from Python; it is
    always right. Both take fill=: what the cache holds before anybody has written to it, 0.0 unless given. An engine
    has six rows at most, and captures a graph where it meets a shape for the first time. A step writes a letter a row:
    the one that followed where its newest letter stood the time before, in the row's own text with a space put before
    it; noise comes on top where it is hot.
    engine.admit(text, temperature=0.0, seed=0): a new row, the last one; a text has two letters at least, of those in
    " abcdefghijklmnopqrstuvwxyz.,'!?", and grows to 31 at most. engine.release(row): the last row moves into its place.
    engine.reset(): all rows end, and the cache is empty. engine.step() -> letters (n,) int64, one for each row, the
    caller's to keep. engine.texts() -> what was admitted and written, by row. engine.missed: how many steps were not
    replayed. What else engines do and hold is their own business.
    """

    def day(engine: Any, heat: float, seed: int) -> list[Any]:
        kept = []
        for word in ("wolf ", "crane ", "ox ", "lark ", "hen ", "bat "):
            engine.admit(word, heat, seed)
            kept.append(engine.step())
        for _ in range(4):
            engine.release(0)
        engine.admit("abracadabra ")
        kept += [engine.step() for _ in range(5)]
        engine.reset()
        return [letters.tolist() for letters in kept]

    try:
        one, other = graphed(fill=float("nan")), called(fill=float("nan"))
        same = all(day(one, heat, seed) == day(other, heat, seed) for seed, heat in enumerate((0.0, 4.0)))
        return same and one.missed == 0
    except Exception:
        return False


def _two_kinds(make: Make) -> tuple[Make, Make]:
    return partial(make, graphs=True), partial(make, graphs=False)


def _raised(right: bool, *args: object) -> None:
    if right is not True and right is not False:
        raise NoVerdict(TypeError(f"the result is True or False, and no {type(right).__name__}"))
    if not right:
        raise AssertionError("it says that the engine is wrong")


def _by_verdict(answer: Function) -> Function:
    return Formed(answer, _two_kinds, _raised)


EDITIONS = (
    Edition(
        "true-or-false",
        "two functions make engines, with graphs and without, and the answer is True or False: it raises nothing",
        is_right, played=_by_verdict,
    ),
)  # fmt: skip
