"""Exercise 5.7: wrong answers (tests that see too little or too much), correct variants, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanocourse.exercises.exercise import edition

Event = tuple[Any, ...]
Play = Callable[[int, int, int, list[Event]], list[Any]]


def story_by_story(play: Play) -> None:  # noqa: PLR0912
    """Requests in a text, a word a step; complaints are collected, and the first ones are told."""
    complaints = []
    for rows, blocks, budget, story in [
        (2, 6, 10, "Wolfhen:9 harewolf:9 Wolfhen:9 hen:2 wolfhens:9"),
        (1, 4, 7, "Foxyhare:7 hareowls:7 Foxyhare:7 owls:7"),
        (2, 9, 40, "hareowl:8|hareowl:8|hareowl:8"),
        (2, 4, 6, "owl:12|hen:12"),
        (2, 6, 4, "ape:11 . . crow:1 crow:1 crow:1 crow:1 crow:1 crow:1 crow:1 crow:1 crow:1 crow:1 crow:1"),
        (2, 6, 9, "ravens:18|ravenous:15 . x0 ravenous:15 hen:21"),
        (2, 6, 20, "ravenmagpie:8|ravenmagpies and owls:2 lark and crow and owl:4"),
    ]:
        events, due, came, late = [], {}, {}, 0
        for word in story.split(" ") + ["."] * 80:
            for one in word.split("|"):
                if ":" in one:
                    events.append(("submit", one.split(":")[0], int(one.split(":")[1])))
                elif one == "x0":
                    events.append(("cancel", 0))
            events.append(("step",))
        for event, gave in zip(events, play(rows, blocks, budget, events), strict=True):
            if event[0] == "submit":
                text = event[1].upper() if event[1][0].isupper() else event[1]
                due[gave], came[gave] = (text * event[2])[: event[2]], ""
            elif event[0] == "cancel":
                due[0] = came[0]
            else:
                waiting = [number for number in sorted(due) if len(came[number]) < len(due[number])]
                if sum(one[1] for one in gave) > budget:
                    complaints.append("too much")
                for number, _, new in gave:
                    came[number] = came[number] + new
                late = late + 1 if waiting and waiting[0] not in {one[0] for one in gave} else 0
                if late > 1:
                    complaints.append("starved")
        if due != came:
            complaints.append("letters")
    if play(1, 3, 8, [("submit", "hare", 9)]) != [None]:
        complaints.append("too large")
    assert not complaints, complaints[:3]


def log_first(play: Play) -> None:
    """Requests as lines of a table; letters and steps of each are judged one after the other."""
    days = [
        (2, 5, 9, "Wolfowls 9 0, owlswolf 9 1, owls 9 2, Wolfowls 9 3, hen 16 4, ape 16 5"),
        (1, 4, 16, "Henswolf 6 0, wolfhens 6 0, Henswolf 6 5"),
        (3, 30, 16, "wolfowls 8 0, wolfowls 8 0, wolfowls 8 0"),
        (2, 8, 6, "ox 16 0, " + ", ".join(f"hens-and-owls 1 {now}" for now in range(3, 15))),
        (2, 7, 10, "owlswolf 9 0 2, owlswolfowlswolfowls 3 0, apeswolfapeswolfapeswolf 3 1"),
        (2, 7, 11, "owlswolf 9 0, owlswolfowlswolfowls 3 0, apeswolfapeswolfapeswolf 3 1"),
        (2, 5, 10, "wolf 11 0, hen 12 0"),
    ]
    for rows, blocks, budget, table in days:
        asked = [line.split() for line in table.split(", ")]
        events = []
        for now in range(90):
            events += [("submit", line[0], int(line[1])) for line in asked if line[2] == str(now)]
            events += [("cancel", number) for number, line in enumerate(asked) if line[3:] == [str(now)]]
            events += [("step",)]
        steps = [
            gave for event, gave in zip(events, play(rows, blocks, budget, events), strict=True) if event == ("step",)
        ]
        assert max(sum(fed for _, fed, _ in step) for step in steps) <= budget
        before = 0
        for number, (prompt, letters, when, *off) in enumerate(asked):
            came = "".join(new for step in steps for who, _, new in step if who == number)
            wanted = ((prompt.upper() if prompt[0] in "WH" else prompt) * int(letters))[: int(letters)]
            assert wanted.startswith(came) if off else wanted == came
            fed = [now for now, step in enumerate(steps) if number in [who for who, _, _ in step]]
            places = [max(before, int(when)) - 1, *(now for now in fed if now >= max(before, int(when)))]
            assert all(places[at + 1] - places[at] <= 2 for at in range(len(places) - 1))
            before = max(before, int(off[0]) if off else fed[-1] + 1)
    assert play(1, 2, 16, [("submit", "owls", 4), ("submit", "owls", 5)]) == [0, None]


def _one_by_one(play: Play) -> tuple[Any, ...]:
    """Each event is the last one of a day that is played again."""
    limits: list[int] = []
    events: list[Event] = []

    def last(*event: Any) -> Any:
        events.append(event)
        return play(*limits, events)[-1]

    def start(rows: int, blocks: int, budget: int) -> None:
        limits[:] = rows, blocks, budget
        events.clear()

    def submit(prompt: str, letters: int) -> int:
        number = last("submit", prompt, letters)
        if number is None:
            raise ValueError("it would not fit if it were alone")
        return int(number)

    def step() -> list[tuple[int, int, str]]:
        fed: list[tuple[int, int, str]] = last("step")
        return fed

    return start, submit, step, lambda number: last("cancel", number)


def _played(start: Any, submit: Any, step: Any, cancel: Any) -> tuple[Play]:
    """A day's events one by one."""

    def play(rows: int, blocks: int, budget: int, events: list[Event]) -> list[Any]:
        start(rows, blocks, budget)
        gave: list[Any] = []
        for name, *given in events:
            try:
                gave.append({"submit": submit, "step": step, "cancel": cancel}[name](*given))
            except ValueError:
                gave.append(None)
        return gave

    return (play,)


@edition("live", "a queue is four functions, and a day is what they are called for", args=_one_by_one, back=_played)
def check_live_queue(
    start: Callable[[int, int, int], None],
    submit: Callable[[str, int], int],
    step: Callable[[], list[tuple[int, int, str]]],
    cancel: Callable[[int], None],
) -> None:
    """Raise AssertionError if the queue is wrong; return None if it is right.

    start(rows, blocks, budget): from now on the queue is a new and empty one. At most so many rows run at once, the
    pool has so many blocks of 4 letters each, and a step feeds the model at most `budget` letters.
    submit(prompt, letters) -> the request's number, counted from 0; it asks for 1 letter or more. ValueError for one
    whose prompt and letters would not fit into the pool if it were alone; it gets no number.
    step() -> for each request that was fed: its number, how many letters it was fed, and the letter that came, or "".
    cancel(number): nothing more comes of that request, which has not ended yet.
    A right queue gives each request the letters it asked for: its prompt, again and again, in capitals if it begins
    with one. Of those that have not ended, the one that came first is fed in one of any two steps. What has ended or
    was cancelled takes no room. All else, such as who shares blocks and who is preempted, is up to the queue.
    """
    for rows, blocks, budget, words in [
        (1, 5, 6, "Wolfhares:10 haresheep:10 owls_and_ox:9 Wolfhares:10"),
        (3, 20, 6, "wolf:8 - - hares_and_dogs:1 hare_and_dog:1 hare_and_cat:1 hare_and_fox:1 hare_and_ape:1 a_hare:1"),
        (2, 8, 24, "wolf_hare_:10|wolf_hare_:10"),
        (2, 5, 8, "wolf:11|hens:12|wolves:15"),
        (2, 7, 8, "the_old_wolf:4|the_old_oxen_and_hens:1|the_hares_and_the_hounds:4 - - cancel"),
    ]:
        start(rows, blocks, budget)
        left: dict[int, str] = {}
        late = 0
        for word in words.split(" ") + ["-"] * 60:
            for prompt, _, letters in [each.partition(":") for each in word.split("|")]:
                if prompt == "cancel":
                    cancel(0)
                    del left[0]
                if letters:
                    text = prompt.upper() if prompt[0].isupper() else prompt
                    try:
                        left[submit(prompt, int(letters))] = (text * int(letters))[: int(letters)]
                        fits = True
                    except ValueError:
                        fits = False
                    assert fits == (len(prompt) + int(letters) <= 4 * blocks)
            fed = step()
            assert sum(letters for _, letters, _ in fed) <= budget
            first = min(left, default=None)
            late = 0 if first is None or first in [number for number, _, _ in fed] else late + 1
            assert late < 2
            for number, _, new in fed:
                left[number] = left[number].removeprefix(new)
                if not left[number]:
                    del left[number]
        assert not left


_LATE = "the first step of each scene feeds its first request, from where lateness is counted anew"
EQUIVALENT = {
    "for word in words.split(' ') + ['-'] * 59:": "all scenes are over long before",
    "for word in words.split(' ') + ['-'] * 61:": "all scenes are over long before",
    "late = -1": _LATE,
    "late = 1": _LATE,
    "without: late = 0": _LATE,
    "without: assert not left": "whoever has got a wrong letter, or too few, is fed no more, and is late",
}
