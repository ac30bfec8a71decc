"""All lies by name: whose mistake it was, and the texts that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanobook import lies

from . import wrong
from .play import Make, Told, play
from .toy import Asked, Rank

ROOMY = (20, 20)


@dataclass(frozen=True)
class Lie(lies.Lie):
    """One defect. scene: the texts that are asked for. rooms: of the two ranks by which it is told."""

    right: type[Rank] = Rank
    rooms: tuple[int, ...] = ROOMY

    def tell(self, kind: type[Rank]) -> list[Told]:
        """What two ranks have told."""
        return play(kind, self.rooms, self.scene)

    def truth(self) -> list[Told]:
        """On every rank the texts of one rank, with the least memory of all."""
        return [Told(one_rank(self.scene, min(self.rooms)), "")] * len(self.rooms)

    def lines(self) -> list[str]:
        """The texts side by side, and how a rank has ended that has not done its work."""
        truth, *sides = self.sides()
        told = {"one rank": truth[0]}
        for side, ranks in zip(("right", "wrong"), sides, strict=True):
            told |= {f"{side}, rank {n}": one for n, one in enumerate(ranks)}
        return [f"{label:16}{' | '.join(filter(None, [*one.texts, one.end]))}" for label, one in told.items()]


LIES = {
    "padding-wins": Lie(("mirage#751", "mirage#755", "tt-metal#47021"), wrong.PaddingWins, (Asked("the wolf ", 18),)),
    "own-dice": Lie(
        ("FasterTransformer#390", "vllm#17509", "vllm#17929"), wrong.OwnDice, (Asked("the wolf ", 36, seed=6),)
    ),
    "own-clock": Lie(
        ("sglang#27221", "sglang#27164"), wrong.OwnClock, (Asked("a hare ", 14, patience=51), Asked("the wolf ", 18))
    ),
    "own-pool": Lie(
        ("nano-vllm#187", "nano-vllm#275", "sglang#10214"),
        wrong.OwnPool,
        (Asked("a hare ", 8), Asked("the wolf ", 9), Asked("an owl ", 9)),
        rooms=(14, 11),
    ),
    "still-read": Lie(("tokenspeed#1356", "tokenspeed#1440", "aiter#3514"), wrong.StillRead, (Asked("the wolf ", 18),)),
}
SUBJECTS = {"the right one": Rank} | {name: lie.wrong for name, lie in LIES.items()}


def one_rank(asked: Sequence[Asked], room: int) -> list[str]:
    """The texts without any other rank."""
    (told,) = play(Rank, [room], asked)
    assert not told.end
    return told.texts


def check(make: Make) -> None:
    """The whole test: on any number of ranks, whichever is late, each has one rank's texts. AssertionError if not."""
    short, long = [Asked("the wolf ", 18), Asked("a hare ", 9, seed=7)], [Asked("an owl ", 12, patience=51)]
    for asked in (short, long + short, [*short, *long] * 2):
        for rooms in ((16, 15), (15, 16), (15, 18, 15)):
            expected = one_rank(asked, min(rooms))
            for luck in range(8):
                for rank, told in enumerate(play(make, rooms, asked, luck)):
                    assert not told.end, f"rank {rank} of {len(rooms)} {told.end}"
                    for text, wanted in zip(told.texts, expected, strict=True):
                        assert text == wanted, f"rank {rank} of {len(rooms)}: {text!r}, not {wanted!r}"
