"""Exercise 5.1: how many tokens each request gets in the next step."""

from __future__ import annotations

from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call
from nanoinfer.engine.engine import Work
from nanoinfer.engine.queue import ARRIVED, Queued


def plan(prompts: list[int], computed: list[int], budget: int, chunk: int) -> list[tuple[int, int, bool]]:
    """The next step: (request, tokens, whether a new token follows) for each request that gets any, in order.

    prompts: the length of each request's prompt, at least 1, in order of arrival. computed: how many of its
    tokens have been in a step. Where that is its whole prompt, or more, the request is decoding: it gets 1 token, its
    newest, and a new one follows. All others still read their prompt, also where one token of it is left, and get the
    next tokens of it: those that are left, but at most `chunk` and what is left of the budget. A new token follows
    where the prompt is then complete.
    budget: tokens of the whole step at most; at least 1, and at least as many as requests are decoding. Requests that
    are decoding come first, so that none of them ever waits; then come the prompts. Each of the two kinds is in order
    of arrival. A request that gets no token is not in the step.
    """
    decoding = [at for at, length in enumerate(prompts) if computed[at] >= length]
    step = [(at, 1, True) for at in decoding]
    left = budget - len(decoding)
    for at, length in enumerate(prompts):
        tokens = min(length - computed[at], chunk, left)
        if tokens > 0:
            step.append((at, tokens, computed[at] + tokens == length))
            left -= tokens
    return step


def swap(mine: Function) -> Places:
    """QueueEngine.schedule asks it: decoding sequences and prompts share every step."""

    def schedule(self: Any) -> list[Work]:
        decoding = self.with_room([s for s in self.running if s.decoding])
        asked = _asked(self, mine)
        while sum(tokens for _, tokens, _ in asked) < self.budget and self.waiting and self.admit_next():
            asked = _asked(self, mine)  # who has just come gets what is left
        chunks: list[Work] = []
        for s, tokens, _ in asked:
            if not s.decoding and self.feed(s, tokens, chunks) != tokens:
                raise ValueError("a chunk has more tokens than it may have")
        self.stats.prefill_steps += bool(chunks)
        self.stats.decode_steps += not chunks and bool(decoding)
        self.fed, self.decoded = self.pending(decoding) + chunks, len(decoding)
        return list(self.fed)

    return {"nanoinfer.engine.queue:QueueEngine.schedule": schedule}


def _asked(engine: Any, mine: Function) -> list[tuple[Queued, int, bool]]:
    """The step of all that run. ValueError for one that the engine cannot run."""
    every = sorted(engine.running, key=ARRIVED)
    lengths = [len(s.tokens) for s in every]
    fed = [len(s.tokens) if s.decoding else s.cached for s in every]
    step = mine(lengths, fed, engine.budget, engine.chunk) if every else []
    if sorted(at for at, _, _ in step if every[at].decoding) != [at for at, s in enumerate(every) if s.decoding]:
        raise ValueError("every request that is decoding must be in the step, once")
    if sum(tokens for _, tokens, _ in step) > engine.budget:
        raise ValueError("the step has more tokens than its budget")
    for at, tokens, follows in step:
        left = lengths[at] - fed[at]
        if left and (not 0 < tokens <= left or follows != (tokens == left)):
            raise ValueError("a chunk must have tokens that its prompt has left, and a new token follows at its end")
    return [(every[at], tokens, follows) for at, tokens, follows in step]


EXERCISE = Spec(
    reference=plan,
    lines=9,
    example=lambda: call([3, 9, 4, 5], [4, 2, 0, 0], 8, 5),
    section="A budget for every step",
    axes=("part", "item"),
    typed=True,
    refuse=("nanoinfer.engine.queue:QueueEngine.schedule",),
    swap=swap,
    displaced={"5.8": "your 5.8 says what a step of prompts brings, and 5.1 runs where 5.8 is the reference's"},
)


def decode_first(case: Case) -> Call:
    """Whoever is decoding gets one token, before all prompts; prompts get what is left, and nothing may be left."""
    going, reading = case.size("decoding", 2, 4), case.size("reading", 1, 3)
    prompts = case.ints("prompts", 3, 6, going + reading).tolist()
    more = case.ints("new", 0, 4, going).tolist()
    computed = [prompts[at] + more[at] for at in range(going)] + [0] * reading
    order = case.permutation("order", going + reading).tolist()
    budget = going + case.turn((case.size("left", 1, 2), 0, sum(prompts[going:]) - 1))
    return call([prompts[at] for at in order], [computed[at] for at in order], budget, 9)


def within_the_budget(case: Case) -> Call:
    """Prompts share the budget in order of arrival: it counts tokens, and the last to get any gets what is left."""
    prompts = [case.size(f"prompt {at}", 2, 6) for at in range(4)]
    whole = case.size("whole", 1, 2)
    return call(prompts, [0] * 4, sum(prompts[:whole]) + case.size("more", 0, 1), 9)


def in_chunks(case: Case) -> Call:
    """A prompt goes on where it was, by a chunk at most; those behind it may have a chunk of the same step."""
    chunk = case.size("chunk", 2, 4)
    done = [chunk * case.size(f"chunks {at}", 0, 2) for at in range(3)]
    rest = [case.size(f"rest {at}", 2, 2 * chunk) for at in range(2)] + [2 * chunk + 1]
    order = case.permutation("order", 3).tolist()
    return call([done[at] + rest[at] for at in order], [done[at] for at in order], 40, chunk)


def last_token(case: Case) -> Call:
    """A prompt that lacks one token gets it like any other: it decodes only once that has been in a step."""
    lacks = [1, 0, 1, 0][: case.size("requests", 1, 4)]
    done = [case.size(f"done {at}", 1, 5) for at in range(len(lacks))]
    order = case.permutation("order", len(lacks)).tolist()
    return call([done[at] + lacks[at] for at in order], [done[at] for at in order], 40, case.size("chunk", 2, 4))


def any_requests(case: Case) -> Call:  # noqa: PLR0911  one for each kind
    """No request, one, many, equal ones, long prompts; budgets used up before, at and behind the end of a prompt."""
    kind = case.turn(("many", "long", "none", "one", "equal", "to the token", "many", "all decode", "one too many"))
    if kind == "none":
        return call([], [], 4, 4)
    if kind == "one":
        return call([1], [0], 1, 1)
    if kind == "all decode":
        return call([2] * 5, [2, 3, 4, 2, 9], 5, 3)
    if kind == "one too many":
        return call([4, 2, 3, 6, 5], [4, 0, 5, 0, 7], 9, 6)
    if kind == "long":
        return call([70_000, 100_000, 3], [0, 40_000, 3], 2**17 + 1, 66_000)
    if kind == "equal":
        return call([6] * 4, [0, 6, 0, 3], case.size("budget", 8, 12), 4)
    prompts = case.ints("prompts", 1, 9, case.most("requests", 1, 80 if kind == "many" else 5)).tolist()
    shares = case.ints("computed", 0, 9, len(prompts)).tolist()
    computed = [share % (length + 1) + share // 9 for share, length in zip(shares, prompts, strict=True)]
    going = sum(done >= length for done, length in zip(computed, prompts, strict=True))
    lacks = [length - done for done, length in zip(computed, prompts, strict=True) if done < length]
    upto = sum(min(n, 7) for n in lacks[: max(1, len(lacks) // 2)])
    return call(prompts, computed, max(1, going + upto + case.choice("more", (-1, 0, 1))), 7)


CHECKS = (
    Check(any_requests, 9, wide=True), Check(decode_first, 6), Check(within_the_budget, 4), Check(in_chunks, 6),
    Check(last_token, 6),
)  # fmt: skip
