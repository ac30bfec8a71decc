"""Exercise 5.7: wrong answers (tests that see too little or too much), correct variants, an edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanocourse.exercises.exercise import Edition, Right, Wrong

Event = tuple[Any, ...]
Play = Callable[[int, int, int, list[Event]], list[Any]]


def one_at_a_time(play: Play) -> None:
    """What is right for each request alone is right for all of them."""
    for prompt, letters in [("wolf hare ", 12), ("Wolfhares", 10), ("hen", 1), ("the old oxen", 14)]:
        _, *steps = play(2, 8, 8, [("submit", prompt, letters)] + [("step",)] * 30)
        recited = prompt.upper() if prompt[0].isupper() else prompt
        assert all(sum(count for _, count, _ in fed) <= 8 for fed in steps)
        assert "".join(new for fed in steps for _, _, new in fed) == (recited * letters)[:letters]


def everybody_is_answered(play: Play) -> None:
    """A queue is right if everybody gets as many letters as they asked for."""
    asked = [
        ("the old wolf", 4),
        ("the old oxen and hens", 1),
        ("the hares and the hounds", 4),
        ("wolf", 9),
        ("hen ", 9),
    ]
    gave = play(2, 7, 8, [("submit", *one) for one in asked] + [("step",)] * 60)
    came = [number for fed in gave[len(asked) :] for number, _, new in fed if new]
    assert [came.count(number) for number in range(len(asked))] == [letters for _, letters in asked]


def nobody_ever_pauses(play: Play) -> None:
    """A row that has begun to write gets a letter in every step."""
    for limits, asked in [
        ((2, 5, 8), [("wolf", 11), ("hen ", 12)]),
        ((3, 20, 6), [("wolf", 9)] + [("hare and hound", 1)] * 9),
    ]:
        came = [""] * len(asked)
        for fed in play(*limits, [("submit", *one) for one in asked] + [("step",)] * 60)[len(asked) :]:
            writing = [number for number, (_, letters) in enumerate(asked) if 0 < len(came[number]) < letters]
            for number, _, new in fed:
                came[number] += new
            assert all(any(number == one and new for one, _, new in fed) for number in writing)
        assert came == [(prompt * letters)[:letters] for prompt, letters in asked]
    assert play(1, 1, 8, [("submit", "wolf", 1)]) == [None]


WRONG = (
    Wrong(one_at_a_time, "GeeeekExplorer/nano-vllm#208: alone everything was right"),
    Wrong(everybody_is_answered, "GeeeekExplorer/nano-vllm#163: of the right length, and another request's"),
    Wrong(nobody_ever_pauses, "an author's own slip: who is preempted pauses, and may"),
    Wrong.patch(
        "sooner-or-later", "Whoever is answered at last has not been starved.", "                assert late < 2\n", "",
        "sgl-project/sglang#32549: all were answered in the end, at one decode step in about 24 seconds",
    ),
    Wrong.patch(
        "budget-unchecked", "What a step is fed is the queue's own business.",
        "                assert sum(letters for _, letters, _ in gave) <= budget\n", "",
        "Agrawal et al. 2023 (SARATHI): a whole prompt in one step stalls all who write",
    ),
    Wrong.patch(
        "takes-everything", "A queue that takes every request is a good one.",
        '"2 5 8 wolf:11|hens:12|wolves:15"', '"2 5 8 wolf:11|hens:12"',
        "vllm-project/vllm#39734: what fits the context and not the pool was taken, and all behind it waited",
    ),
    Wrong.patch(
        "short-letters", "A few letters show it as well as many.", "wolf:11|hens:12", "wolf:4|hens:4",
        "vllm-project/vllm-gaudi#524: only rows that were preempted late, and wrote on for long",
    ),
    Wrong.patch(
        "different-prompts", "Requests that differ show more than equal ones.",
        "wolf_hare_:10|wolf_hare_:10", "wolf_hare_:10|hare_wolf_:10",
        "GeeeekExplorer/nano-vllm#209: two requests of one batch with the same beginning",
    ),
    Wrong.patch(
        "small-letters", "What a text begins with does not matter to a block in its middle.",
        "Wolfhares:10 haresheep:10 owls_and_ox:9 Wolfhares:10", "wolfhares:10 haresheep:10 owls_and_ox:9 wolfhares:10",
        "NVIDIA/Megatron-LM#4158: blocks that were told apart by less than all that stands before their end",
    ),
    Wrong.patch(
        "nobody-leaves", "A request that is cancelled is over, so there is nothing to see.", "hounds:4 - - cancel",
        "hounds:4 - -", "written for the exercise: the clients of a test do not hang up",
    ),
    Wrong.patch(
        "two-letters-at-least", "A request for a single letter is no case of its own.",
        "hare_and_dog:1 hare_and_dog:1 hare_and_cat:1 hare_and_fox:1",
        "hare_and_dog:2 hare_and_dog:2 hare_and_cat:2 hare_and_fox:2",
        "sgl-project/sglang#10871: what ended in the step that read its prompt kept its place in the batch",
    ),
)  # fmt: skip


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


def random_days(play: Play) -> None:  # noqa: PLR0912
    """Days at random, of words that begin alike; whoever asks for too much has to be refused."""
    import random

    draw = random.Random(5)
    for _ in range(12):
        rows, blocks, budget = draw.randint(1, 3), draw.randint(5, 8), draw.randint(5, 20)
        events: list[Any] = []
        asked, leaving = 0, -1
        for _ in range(40):
            for _ in range(draw.choice([0, 0, 1, 1, 2])):
                words = [
                    draw.choice(["Wolf", "wolf", "hare", "owls"]),
                    *draw.choices(["hare", "wolf"], k=draw.randint(0, 4)),
                ]
                prompt, letters = "".join(words) + draw.choice(["", "s"]), draw.choice([1, 1, 5, 9, 16])
                events.append(("submit", prompt, letters))
                if len(prompt) + letters <= 4 * blocks:
                    leaving = asked if letters > 4 and draw.random() < 0.1 else leaving
                    asked += 1
            events.append(("step",))
            if leaving >= 0 and draw.random() < 0.8:
                events.append(("cancel", leaving))
                leaving = -1
            elif leaving >= 0:
                leaving = -1
        left: dict[int, str] = {}
        idle = 0
        for (kind, *given), gave in zip(
            events + [("step",)] * 400, play(rows, blocks, budget, events + [("step",)] * 400), strict=True
        ):
            if kind == "submit":
                prompt, letters = given
                assert (gave is not None) == (len(prompt) + letters <= 4 * blocks)
                if gave is not None:
                    left[gave] = ((prompt.upper() if prompt[0].isupper() else prompt) * letters)[:letters]
            elif kind == "cancel":
                left.pop(given[0])
            else:
                first = min(left, default=-1)
                idle = 0 if first < 0 or any(number == first for number, _, _ in gave) else idle + 1
                assert idle < 2
                assert sum(letters for _, letters, _ in gave) <= budget
                for number, _, new in gave:
                    assert left[number].startswith(new)
                    left[number] = left[number][len(new) :]
                    if not left[number]:
                        left.pop(number)
        assert not left


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


RIGHT = (Right(story_by_story), Right(random_days), Right(log_first))


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


EDITIONS = (
    Edition(
        "live", "a queue is four functions, and a day is what they are called for", check_live_queue,
        args=_one_by_one, back=_played, result=lambda found, *plain: found,
    ),
)  # fmt: skip
_LATE = "the first step of each scene feeds its first request, from where lateness is counted anew"
EQUIVALENT = {
    "for event, gave in zip(events, play(rows, blocks, budget, events), strict=False):": "each event gives something",
    "for word in words.split(' ') + ['-'] * 59:": "all scenes are over long before",
    "for word in words.split(' ') + ['-'] * 61:": "all scenes are over long before",
    "late = -1": _LATE,
    "late = 1": _LATE,
    "without: late = 0": _LATE,
    "without: assert not left": "whoever has got a wrong letter, or too few, is fed no more, and is late",
}
