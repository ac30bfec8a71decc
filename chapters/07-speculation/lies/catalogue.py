"""All decoders by name: whose mistake it was, and the text that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import wrong
from .toy import Asked, Decoder

Make = Callable[[Asked], Decoder]


@dataclass(frozen=True)
class Lie:
    """One defect. threads: where it was reported. asked: the text that it is told by."""

    threads: tuple[str, ...]
    wrong: type[Decoder]
    asked: Asked

    def sides(self) -> tuple[str, str, str]:
        return plain(self.asked), *(with_guesses(self.asked, kind)[0] for kind in (Decoder, self.wrong))

    def lines(self) -> list[str]:
        """Each text without guesses, and with them, a bar between steps."""
        found = []
        for side, kind in (("right", Decoder), ("wrong", self.wrong)):
            found.append(f"{side}, no guesses   {plain(self.asked, kind)}")
            found.append(f"{side}               {'|'.join(with_guesses(self.asked, kind)[1])}")
        return found


LIES = {
    "stop-inside": Lie(("transformers#47912", "koboldcpp#1276"), wrong.StopInside, Asked("the wolf. ", 24, stop=".")),
    "next-row": Lie(("openvino.genai#4190",), wrong.NextRow, Asked("the wolf and the hare ", 22)),
    "nothing-rolled-back": Lie(
        ("mlx-lm#1109", "mlx-swift-lm#173"), wrong.NothingRolledBack, Asked("the old wolf ", 39)
    ),
    "counts-guesses": Lie(
        ("vmlx-swift#357", "sglang#33643", "vllm#33251"), wrong.CountsGuesses, Asked("the wolf ", 27, tired=5)
    ),
    "eaten-seed": Lie(
        ("vllm-ascend#13755", "TensorRT-LLM#17599", "vllm#6038"), wrong.EatenSeed, Asked("the wolf ", 27, seed=3)
    ),
}
SUBJECTS = {"the right one": Decoder} | {name: lie.wrong for name, lie in LIES.items()}


def plain(asked: Asked, make: Make = Decoder) -> str:
    """What comes without guesses."""
    return make(asked._replace(k=0)).run()


def with_guesses(asked: Asked, make: Make) -> tuple[str, list[str]]:
    """What comes with them, and what each step gave."""
    decoder = make(asked)
    return decoder.run(), decoder.runs


def check(make: Make) -> None:
    """The whole test: every text with guesses is the text without. AssertionError for the first that is not."""
    for prompt in ("the wolf. ", "a hare", "owl "):
        for k in range(1, 6):
            for letters in range(1, 30):
                for options in ({}, {"stop": prompt[-2].lower()}, {"tired": 3}, {"seed": 7}):
                    asked = Asked(prompt, letters, k, **options)  # type: ignore[arg-type]
                    told = with_guesses(asked, make)[0]
                    assert told == plain(asked, make), f"k = {k}: {told!r}, not {plain(asked, make)!r}"
