"""All lies: whose they were, what shows them, and where stand-in and real graph differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import alone, coverage, frozen, moved, padding
from .frozen import Scene
from .recorders import Recorder
from .toy import Toy

APART = "the stand-in keeps all memory alive and apart"
ALIVE = "the old memory is kept alive here; in the wild it was freed, and a replay found whatever was there by then"


@dataclass(frozen=True)
class Lie:
    """One defect.

    entry, threads: in defects.md. wrong, right: engines, with the scene that tells them apart; or one class that has
    both, without a scene. shown: whether the stand-in shows it. gpu: whether it needs a GPU to be run at all.
    certain: whether every GPU shows it. timed: on which devices the cost of a replay is told, too. differs: what is
    otherwise in a real graph.
    """

    name: str
    entry: str
    threads: tuple[str, ...]
    wrong: type[Any]
    scene: Scene | None = None
    right: type[Toy] = Toy
    shown: bool = True
    gpu: bool = False
    certain: bool = True
    timed: tuple[str, ...] = ()
    differs: str = ""

    def run(self, side: str, recorder: Recorder, device: str) -> tuple[list[str], Any]:
        """What the side "truth", "right" or "wrong" puts out, and what put it out; an error is its first line."""
        made: Any = None
        try:
            if self.scene is None:
                made = self.wrong(device)
                return made.truth() if side == "truth" else made.replayed(recorder, getattr(made, side)), made

            def make(**options: Any) -> Toy:
                nonlocal made
                kind = self.wrong if side == "wrong" else self.right
                made = kind(None if side == "truth" else recorder, device=device, **options)
                return made

            return self.scene(make), made
        except Exception as error:  # a lie may end in any
            return [first_line(error)], made


def first_line(error: Exception) -> str:
    """An error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": ")


LIES = {
    lie.name: lie
    for lie in (
        Lie("escapes", "G17", ("SageAttention#371", "punica#33", "mirage#207"), frozen.Escapes, frozen.another_input,
            differs="the stand-in imitates it where the step says so; a real kernel says nothing, and during a "
            "capture it reads memory that was never computed"),
        Lie("position", "G12", ("pytorch#114844",), frozen.PositionBaked, frozen.several_steps),
        Lie("key", "G05", ("transformers#45323", "ik_llama.cpp#2096"), frozen.KeyLacksLength,
            frozen.captured_short_replayed_long),
        Lie("count", "G18", ("sglang-omni#419", "Megatron-LM#5697"), frozen.CountBaked, frozen.flat_logits,
            frozen.CountMoves,
            differs="torch.rand in a real capture draws anew in each replay, as PyTorch knows its own generator; the "
            "stand-in repeats the draw"),
        Lie("seed", "G19", ("pytorch#84967", "pytorch#84614"), frozen.SeedBaked, frozen.two_seeds),
        Lie("temperature", "G20", ("mstar#199", "sglang-omni#272"), frozen.TemperatureBaked, frozen.two_temperatures),
        Lie("table", "G11", ("vllm#53915",), moved.TableRebuilt, moved.another_batch, differs=ALIVE),
        Lie("rebound", "G12", ("pytorch#114844",), moved.Rebound, moved.several_steps),
        Lie("result", "G13", ("pytorch#104435",), moved.ResultKept, moved.keep_each_result),
        Lie("buffer", "G14", ("vllm#50386", "llm-scaler#505"), moved.BufferGrew, moved.one_two_one, differs=ALIVE),
        Lie("cache", "G16", ("ApxInf#89", "TensorRT-LLM#4894"), moved.CacheReplaced, moved.after_a_reset,
            differs=ALIVE),
        Lie("slot", "G01", ("vllm#43810",), padding.SlotWraps, padding.three_in_a_graph_of_four),
        Lie("nan", "G02", ("sglang#32477", "vllm#936"), padding.WeightsAlone, padding.poison),
        Lie("tail", "G03", ("lmdeploy#4569", "nano-vllm#190"), padding.TableLeft, padding.four_then_three),
        Lie("length", "P03", ("vllm#57094", "sglang#1779"), padding.LengthZero, padding.three_in_a_graph_of_four,
            padding.Scaled),
        Lie("warm-up", "G15", ("ATOM#2267", "vllm#38719"), padding.WarmUpWrites, padding.captured_in_the_middle,
            differs="a real capture executes nothing: in both it is the warm-up that writes"),
        Lie("ladder", "G30", ("nano-vllm#216",), coverage.LadderShort, coverage.every_number_of_rows),
        Lie("lookup", "G33", ("vllm#36165", "sglang#30752"), coverage.OtherKey, coverage.count_replays),
        Lie("evicted", "", (), coverage.WrongWayRound, coverage.more_shapes_than_graphs),
        Lie("cold", "G23", ("pytorch#99397", "triton#10596"), coverage.Cold, coverage.capture_first_thing,
            coverage.SetsUp, differs="the stand-in refuses by name; CUDA ends the capture with an error of its own"),
        Lie("one-part", "G08", ("vllm#51119",), alone.OnePart, timed=("cpu", "cuda"),
            differs="the stand-in has no speed, so operations are counted"),
        Lie("workspace", "G21", ("aiter#5393",), alone.WorkspaceInside, shown=False, differs=APART),
        Lie("library", "G22", ("pytorch#193402", "vllm-omni#6587"), alone.WorkspaceOutside, shown=False, gpu=True,
            certain=False, differs="a CPU's matrix library has no such workspace"),
        Lie("causal", "M04", ("pytorch#144858", "transformers#30437"), alone.CausalCorner),
        Lie("left", "M01", ("transformers#3021",), alone.LeftPadding),
        Lie("narrow", "P04", ("vllm#47671",), alone.NarrowSlots),
    )
}  # fmt: skip
