"""How the inputs of chapter 8's exercises follow the rules of `nanocourse.exercises.rules`, or why they need not."""

from __future__ import annotations

from nanocourse.exercises.rules import Covers, not_for

COVERS: dict[str, Covers] = {
    "8.8": not_for(
        "its input is a machine, and the requests that are played in it are its own",
        "nan", "infinite", "huge", "far scores", "ties", "one", "many", "boundaries", "empty", "ends", "mixed",
        "no range", "no order", "both sides", "equal", "kind", "large numbers", "again",
        "odd sizes", "stand-ins", "names", "middle", "narrow", "beside", "zeros",
    ) | {
        "calls": "how often a machine is played is its own business",
        "left behind": "each play begins with new ranks",
        "two at once": "each play has ranks of its own",
        "host": "nothing is captured",
        "tolerance": "letters are equal or they are not",
    },
}  # fmt: skip
