"""How the inputs of chapter 6's exercises follow the rules of `nanocourse.exercises.rules`, or why they need not."""

from __future__ import annotations

import math

from nanocourse.exercises.rules import Covers, above, again, infinite, kind, nan, not_for

PLAIN = not_for("rows have no numbers, and nothing is captured", "no order", "host") | {
    "calls": "in which orders programs were run is told where they lose",
    "tolerance": "the gap between right and wrong is measured by `course strength`",
}  # fmt: skip
PLAIN |= not_for("nothing comes by name", "names") | not_for("nothing is padded", "both sides")
PROGRAMS = not_for("words hold whole numbers", "nan", "infinite", "huge", "far scores", "narrow", "beside")
PROGRAMS |= not_for("nothing is a maximum", "ties") | not_for("programs and words come in order", "no range")
PROGRAMS |= not_for("words are taken one by one, and none for a range", "middle")
PROGRAMS |= {
    "kind": "the scene looks at the kind of what programs return, and at each of their accesses",
    "again": "each program is begun many times, and must do the same when it is told the same",
    "two at once": lambda a: True,  # all programs of a launch, and many unfinished copies of each
}
COVERS: dict[str, Covers] = {
    "6.1": PLAIN | PROGRAMS | {
        "one": lambda a: len(a.values) == 1 and a.count == 2,
        "many": (lambda a: len(a.values) > 64, lambda a: a.count > 8),
        "boundaries": (lambda a: a.flag == a.stamp - 1, lambda a: a.flag == a.stamp + 1),
        "empty": lambda a: a.count == 1,
        "ends": lambda a: a.count == 3,
        "mixed": lambda a: len(set(a.values)) > 1,
        "equal": lambda a: len(a.values) > 0 and a.values[:-1] == a.old[:-1] and a.values != a.old,
        "large numbers": lambda a: a.stamp == 2**32 - 1 and max(a.values) > 2**31,
        "odd sizes": lambda a: a.count == 3,
        "stand-ins": (lambda a: 0 in a.values, lambda a: a.stamp == 0, lambda a: a.flag == 0),
        "zeros": lambda a: not any(a.values) and any(a.old),
        "left behind": lambda a: a.flag != 0,
    },
    "6.2": PLAIN | PROGRAMS | {
        "one": lambda a: len(a.messages) == 1 and a.count == 2,
        "many": (lambda a: len(a.messages) > 64, lambda a: a.count > 5),
        "boundaries": (lambda a: len(a.messages) == 2, lambda a: len(a.messages) == 3),
        "empty": (lambda a: not a.messages, lambda a: len(a.messages) > 1 and not a.messages[0]),
        "ends": lambda a: a.count == 1 and len(a.messages) > 1,
        "mixed": lambda a: a.count == 3 and len(a.messages) > 1,
        "equal": lambda a: len(a.messages) == 4 and a.messages[0] == a.messages[2] == a.messages[3],
        "large numbers": lambda a: any(value > 2**31 for message in a.messages for value in message),
        "odd sizes": lambda a: a.count == 3,
        "stand-ins": lambda a: any(value == 0 for message in a.messages for value in message),
        "zeros": lambda a: len(a.messages) > 1 and a.messages == [[0]] * len(a.messages),
        "left behind": "flag and taken hold 0 ahead of each launch, and words for data what is in `old`",
    },
    "6.3": PLAIN | PROGRAMS | {
        "one": lambda a: len(a.launches[0]) == 1,
        "many": (lambda a: a.rounds > 32, lambda a: len(a.launches[0]) > 8),
        "boundaries": (lambda a: a.rounds == 1, lambda a: a.rounds == 2, lambda a: a.rounds == 3),
        "empty": lambda a: a.rounds == 0,
        "ends": lambda a: a.turn == 0,
        "mixed": lambda a: len(a.launches[0]) == 3,
        "equal": lambda a: len(a.launches) == 3,
        "large numbers": (lambda a: a.turn == 2**32 - 1, lambda a: a.launches[0][0] > 2**31),
        "odd sizes": lambda a: len(a.launches[0]) in (3, 5, 9),
        "stand-ins": lambda a: a.turn == 0,
        "zeros": "a start may be any number, and none is special",
        "left behind": lambda a: len(a.launches) > 1 and a.rounds > 0,
    },
    "6.4": PLAIN | PROGRAMS | {
        "one": lambda a: len(a.launches[0]) == 1,
        "many": (lambda a: len(a.launches[0][0]) > 64, lambda a: len(a.launches[0]) > 4),
        "boundaries": (lambda a: len(a.launches[0][0]) == 3, lambda a: len(a.launches[0][0]) == 4),
        "empty": lambda a: not a.launches[0][0],
        "ends": lambda a: [2**31 - 1] in a.launches[0][0] and [-(2**31)] in a.launches[0][0],
        "mixed": lambda a: len(a.launches[0]) > 1 and a.launches[0][0] != a.launches[0][1],
        "equal": lambda a: len(a.launches[0]) == 2 and a.launches[0][0] == a.launches[0][1],
        "large numbers": lambda a: a.stamp >= 2**32 - 2 and len(a.launches[0][0]) == 3,
        "odd sizes": lambda a: len(a.launches[0]) in (3, 5),
        "stand-ins": lambda a: any(values == [0] for own in a.launches[0] for values in own),
        "zeros": lambda a: len(a.launches[0]) > 1 and all(not any(v) for own in a.launches[0] for v in own)
        and len(a.launches[0][0]) > 0,
        "left behind": lambda a: len(a.launches) > 1,
    },
    "6.5": PLAIN | PROGRAMS | {
        "one": lambda a: len(a.tiles) == 1,
        "many": (lambda a: len(a.tiles) > 64, lambda a: min(len(a.tiles), a.resident) > 8),
        "boundaries": tuple(lambda a, more=more: len(a.tiles) == a.resident + more for more in (-1, 0, 1)),
        "empty": (lambda a: not a.tiles, lambda a: len(a.tiles) > 1 and not any(a.tiles)),
        "ends": lambda a: len(a.tiles) > 2 and a.tiles[0] == a.tiles[-1] == 0 < max(a.tiles),
        "mixed": lambda a: a.runs < a.resident,
        "equal": lambda a: len(a.tiles) > 2 and len(set(a.tiles)) == 1 and a.tiles[0] > 0,
        "large numbers": lambda a: max(a.tiles, default=0) > 65_536,
        "odd sizes": lambda a: len(a.tiles) == 3 and a.resident == 3,
        "stand-ins": lambda a: 0 in a.tiles,
        "zeros": lambda a: len(a.tiles) > 1 and not any(a.tiles),
        "left behind": "arrived and failed hold 0 ahead of each launch, and words of tiles anything",
    },
    "6.6": PLAIN | PROGRAMS | {
        "nan": lambda a: any(math.isnan(value) for own in a.values for value in own),
        "infinite": tuple(lambda a, far=far: any(far in own for own in a.values) for far in (math.inf, -math.inf)),
        "huge": lambda a: any(1e30 < value < math.inf for own in a.values for value in own),
        "beside": lambda a: any(0 < abs(value) < 2.0**-30 for own in a.values for value in own),
        "one": lambda a: len(a.values) == 1,
        "many": (lambda a: len(a.values) > 128, lambda a: len(a.values[0]) > 64),
        "boundaries": tuple(
            lambda a, end=end: any(end in own for own in a.values) for end in (2.0**17, 2.0**17 + 0.5, -(2.0**17) - 1)
        ),
        "empty": lambda a: not a.values[0],
        "ends": lambda a: a.values == [[2.0**17], [-(2.0**17)]],
        "mixed": lambda a: a.values[0] and a.values[0][0] < 0 < a.values[-1][0],
        "equal": lambda a: len(a.values) > 2 and a.values[0] == a.values[1],
        "large numbers": lambda a: sum(own[0] for own in a.values if own) * 2.0**30 < -(2.0**53),
        "odd sizes": lambda a: len(a.values) == 3,
        "stand-ins": lambda a: any(value == 0 for own in a.values for value in own),
        "zeros": lambda a: bool(a.values[0]) and not any(value for own in a.values for value in own),
        "narrow": "a float of Python has one width",
        "left behind": "words hold 0 ahead of each launch",
    },
    "6.7": PLAIN | not_for("a number of a stream has no order of its own", "no range", "ties", "middle")
    | not_for("a call leaves nothing behind", "left behind", "two at once") | {
        "nan": lambda a: nan(a.products) and nan(a.shifts),
        "infinite": lambda a: infinite(a.products) and infinite(a.shifts),
        "huge": lambda a: above(a.products, 1e29),
        "far scores": (lambda a: float(a.x.mean()) > 500, lambda a: float(a.x.mean()) < -500),
        "one": (lambda a: len(a.x) == 1, lambda a: len(a.gains) == 1 < len(a.x)),
        "many": (lambda a: len(a.gains) > 64, lambda a: len(a.x) > 512),
        "boundaries": (lambda a: len(a.products) == 1, lambda a: len(a.products) == len(a.x) > 1),
        "empty": "there is at least one number, row and piece",
        "ends": lambda a: len(a.x) == 1,
        "mixed": lambda a: bool((a.gains > 0).any()) and bool((a.gains < 0).any()),
        "equal": lambda a: len(a.gains) > 1 and bool((a.gains == a.gains[0]).all()),
        "kind": kind, "again": again,
        "large numbers": "no number is whole",
        "odd sizes": lambda a: len(a.x) == 17,
        "stand-ins": lambda a: not a.x.any() and len(a.x) > 1,
        "narrow": "the contract says float32",
        "beside": lambda a: abs(float(a.x.mean())) > 200 * float(a.x.std(correction=0)),
        "zeros": lambda a: not a.x.any() and not a.products.any(),
    },
}  # fmt: skip
