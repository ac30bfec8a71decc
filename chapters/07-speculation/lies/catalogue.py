"""All decoders by name: whose mistake it was, and the text that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanobook import lies

from . import wrong
from .toy import Asked, Decoder

Make = Callable[[Asked], Decoder]


@dataclass(frozen=True)
class Lie(lies.Lie):
    """One defect. scene: the text that is asked for."""

    right: type[Decoder] = Decoder

    def tell(self, kind: Make) -> str:
        """The text with guesses."""
        return kind(self.scene).run()

    def truth(self) -> str:
        """The text without guesses."""
        return plain(self.scene)

    def lines(self) -> list[str]:
        """Each text without guesses, and with them, a bar between steps."""
        found = []
        for side, kind in (("right", self.right), ("wrong", self.wrong)):
            guessing = kind(self.scene)
            guessing.run()
            found += [f"{side}, no guesses   {plain(self.scene, kind)}", f"{side:20}{'|'.join(guessing.runs)}"]
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


def check(make: Make) -> None:
    """The whole test: every text with guesses is the text without. AssertionError for the first that is not."""
    for prompt in ("the wolf. ", "a hare", "owl "):
        for k in range(1, 6):
            for letters in range(1, 30):
                for options in ({}, {"stop": prompt[-2].lower()}, {"tired": 3}, {"seed": 7}):
                    asked = Asked(prompt, letters, k, **options)  # type: ignore[arg-type]
                    told = make(asked).run()
                    assert told == plain(asked, make), f"k = {k}: {told!r}, not {plain(asked, make)!r}"
