"""All queues by name: whose mistake it was, and the scene that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanobook import lies

from . import variants, wrong
from .toy import Queue

Make = Callable[[int, int, int], Queue]


@dataclass(frozen=True)
class Lie(lies.Lie):
    """One defect. scene: what it is told by, from a function that makes queues."""

    right: type[Queue] = Queue

    def lines(self) -> list[str]:
        """Requests by the order in which they came."""
        told = {"right queue": self.tell(self.right), "wrong queue": self.tell(self.wrong)}
        return [f"{side if at == 0 else '':13}{line}" for side in told for at, line in enumerate(told[side])]


def told(queue: Queue, steps: int, arrivals: Callable[[int], None] = lambda step: None) -> list[str]:
    """What each request's steps gave: its letter, "-" for a step that fed it and gave none, "." for none at all."""
    lines: list[str] = []
    for step in range(steps):
        arrivals(step)
        lines += [" " * step] * (queue.asked - len(lines))
        came = {number: new or "-" for number, _, new in queue.step()}
        lines = [line + came.get(number, ".") for number, line in enumerate(lines)]
    return lines


def a_stream_of_prompts(make: Make) -> list[str]:
    """One row writes, and from step 3 on a new prompt comes with every step."""
    queue = make(3, 20, 6)
    queue.submit("wolf", 8)
    return told(queue, 12, lambda step: None if step < 3 else queue.submit("hare and hound", 1) and None)[:1]


def larger_than_the_pool(make: Make) -> list[str]:
    """A request that would not fit if it were alone, and a small one behind it."""
    queue = make(2, 4, 8)
    lines = []
    try:
        queue.submit("the whole tale of the wolf", 4)
    except ValueError as refused:
        lines = [f"refused: {refused}"]
    queue.submit("ox", 4)
    return lines + told(queue, 6)


def waiting_for_room(make: Make) -> list[str]:
    """Three that cannot run side by side; the second one begins like the first."""
    queue = make(2, 7, 8)
    queue.submit("the old wolf", 4)
    queue.submit("the old oxen and the hen", 1)  # begins like the one before, and has no room beside it
    queue.submit("all the hares and hounds", 2)  # needs every block
    return told(queue, 14)


def two_at_once(make: Make) -> list[str]:
    """The same prompt twice, in one step."""
    queue = make(2, 8, 24)
    queue.submit("wolf hare ", 10)
    queue.submit("wolf hare ", 10)
    return told(queue, 10)


def again_after_others(make: Make) -> list[str]:
    """One after the other: a prompt, another one, and the first one again."""
    queue, lines = make(1, 4, 16), []
    for prompt in ("wolf hare ", "owl crow ", "wolf hare "):
        queue.submit(prompt, 6)
        lines += told(queue, 7)[-1:]
    return lines


def preempted(make: Make) -> list[str]:
    """Two rows that outgrow the pool together."""
    queue = make(2, 5, 8)
    queue.submit("wolf", 11)
    queue.submit("hen ", 10)
    return told(queue, 24)


LIES = {
    "prompts-first": Lie(("sglang#32549", "sglang#35017"), wrong.PromptsFirst, a_stream_of_prompts),
    "never-fits": Lie(("vllm#39734", "vllm#39828", "vllm-rbln#957"), wrong.NeverFits, larger_than_the_pool),
    "counts-early": Lie(("vllm#11562", "vllm#11565"), wrong.CountsEarly, waiting_for_room),
    "unwritten": Lie(("nano-vllm#209", "vllm#7822"), wrong.Unwritten, two_at_once),
    "stale-map": Lie(("nano-vllm#163", "vllm#4761"), wrong.StaleMap, again_after_others),
    "half-resumed": Lie(("vllm-gaudi#524", "nano-vllm#217"), wrong.HalfResumed, preempted),
}
MORE = {  # liars that the exercise has as well, and no page
    "two-prompts-first": wrong.TwoPromptsFirst,
    "one-letter": wrong.OneLetter,  # sglang#10871
    "cancel-keeps": wrong.CancelKeeps,
    "whole-prompts": wrong.WholePrompts,
    "letters-alone": wrong.LettersAlone,
}
RIGHT: dict[str, type[Queue]] = {
    "queue": Queue,
    "shares-nothing": variants.SharesNothing,
    "reserves": variants.Reserves,
    "takes-turns": variants.TakesTurns,
    "last-freed": variants.LastFreed,
}
LIARS: dict[str, type[Queue]] = {name: lie.wrong for name, lie in LIES.items()} | MORE
