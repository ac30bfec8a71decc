"""What to guess in chapter 4 before it is measured: in a few seconds, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nanocourse.exercises import beside
from nanocourse.exercises.swap import replaced
from nanocourse.learner.predict import Prediction, seconds
from nanoinfer import LLM, SamplingParams
from nanoinfer.engine.device import DeviceEngine
from nanoinfer.engine.fake_graph import FakeGraph, record
from nanoinfer.engine.graphs import ladder, pick
from nanoinfer.engine.samplers import SAMPLERS
from nanoinfer.model.config import PRESETS
from nanoinfer.model.weights import load_model

TEXTS = (3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24)  # new tokens of 24 texts
REPEATS = 9
places = beside(__file__, "places.py")


class Counted(FakeGraph):
    """A graph that does nothing."""

    def replay(self) -> None:
        """Run nothing."""


class Counting:
    """A recorder that runs and records nothing."""

    def warm(self, step: Callable[[], object]) -> None:
        """Run nothing."""

    def record(self, step: Callable[[], object]) -> Counted:
        """Record nothing."""
        return Counted()


def ladder_padding(device: torch.device) -> float:
    """Rows of padding in a hundred, if a batch of 24 loses a row a step."""
    rows = [pick(ladder(len(TEXTS)), batch) or 0 for batch in range(1, len(TEXTS) + 1)]
    return 100 * (1 - sum(range(1, len(TEXTS) + 1)) / sum(rows))


def padding(device: torch.device) -> float:
    """The same in a run of the 24 texts, as the engine counts it."""
    with (
        replaced(places.RECORDED),
        LLM(load_model("small", device, torch.float32), engine="dense-graph", max_len=32) as llm,
    ):
        if device.type == "cpu":
            llm.core.recorder = Counting()  # tokens are nonsense then, and as many
        params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in TEXTS]
        llm.generate([[464]] * len(TEXTS), params)
        return 100 * llm.stats.padding_share


def rungs(device: torch.device) -> float:
    """Sizes of the ladder for 64 rows."""
    return float(len(ladder(64)))


def captures(device: torch.device) -> float:
    """Graphs that a warm-up captures for 64 rows, counted with a recorder that records nothing."""
    with replaced(places.RECORDED), LLM(load_model("small", device, torch.float32), engine="dense-graph") as llm:
        llm.core.recorder = Counting()
        llm.core.rows = ladder(64)
        llm.warm_up()
        return float(llm.stats.captures)


def five_a_sublayer(device: torch.device) -> float:
    """Operations of a step with five in each sublayer, and five more."""
    return 2 * 5 * PRESETS["small"].n_layer + 5.0


def launches(device: torch.device) -> float:
    """Operations of one greedy decode step over the dense cache, as the stand-in notes them."""
    with LLM(load_model("small", torch.device("cpu"), torch.float32), engine="dense-graph", max_len=64) as llm:
        graph, _ = record(lambda: DeviceEngine.decode(llm.core, 1, 40, SAMPLERS[0]))
    return float(len(graph.operations))


def expected_replay(device: torch.device) -> float:
    """By what an operation takes the host and the GPU, about; a stand-in does what the step does."""
    return 4.0 if device.type == "cuda" else 1.0


def replay(device: torch.device) -> float:
    """One row's decode step by Python's launches, over the same step replayed."""
    with (
        replaced(places.RECORDED),
        LLM(load_model("small", device, torch.float32), engine="dense-graph", max_len=64) as llm,
    ):
        eager = seconds(lambda: DeviceEngine.decode(llm.core, 1, 40, SAMPLERS[0]), device, REPEATS)
        return eager / seconds(lambda: llm.core.decode(1, 40, SAMPLERS[0]), device, REPEATS)


def _padding(bound: float, measured: float) -> str:
    return (
        "texts do not end evenly: what counts is how many steps a batch spends at each size, and one that ends early "
        "leaves many steps for those that go on"
    )


def _captures(bound: float, measured: float) -> str:
    return (
        "each size is captured for every length that the dense cache reads and for every sampler, and prefills have "
        "graphs of their own, for every sampler too: the key has four parts, and their numbers multiply"
    )


def _launches(bound: float, measured: float) -> str:
    return (
        "masks, slots, the cache's writes, views that turn out to be copies and the sampler are launches too, each of "
        "them small; a replay is one call, however many there are"
    )


def _replay(bound: float, measured: float) -> str:
    if measured < 1.5:
        return "without a GPU nothing is saved: the stand-in runs the same operations, and copies their results besides"
    return "the GPU no longer waits for the host; what is left is what its kernels take, and the gaps between them"


PREDICTIONS = (
    Prediction(
        "padding", f"{len(TEXTS)} texts of {min(TEXTS)} to {max(TEXTS)} new tokens end one after the other. Of a "
        "hundred rows that graphs compute in the whole run, how many are padding?", "rows in a hundred",
        ladder_padding, "the same, if a row left at every step", padding, _padding,
    ),
    Prediction(
        "captures", "An engine for 64 rows with a dense cache of 1024 slots captures its graphs at its start. How "
        "many?",
        "graphs", rungs, "the rungs of the ladder", captures, _captures,
    ),
    Prediction(
        "launches", f"A model of {PRESETS['small'].n_layer} layers makes one token. How many operations does Python "
        "launch for that?", "launches", five_a_sublayer, "five for each of a layer's two sublayers, and five more",
        launches, _launches,
    ),
    Prediction(
        "replay", "How many times as long does one row's decode step take by Python's launches as by a replay?",
        "times",
        expected_replay, "on a GPU, 8 microseconds a launch over 2 a small kernel; on a CPU, the same operations twice",
        replay, _replay,
    ),
)  # fmt: skip
