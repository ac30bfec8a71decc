"""Exercise 5.1: correct variants, mutants that are none, two editions."""

from __future__ import annotations

from nanocourse.exercises.exercise import edition

Plan = list[tuple[int, int, bool]]


def token_by_token(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """Tokens are dealt one by one, to whoever may have another; the step is written down at the end."""
    dealt = [1 if done >= length else 0 for length, done in zip(prompts, computed, strict=True)]
    decoding = [bool(count) for count in dealt]
    for _ in range(min(budget, sum(prompts) + len(prompts)) - sum(dealt)):
        for at, length in enumerate(prompts):
            if not decoding[at] and dealt[at] < chunk and computed[at] + dealt[at] < length:
                dealt[at] += 1
                break
    order = sorted(range(len(prompts)), key=lambda at: not decoding[at])
    return [(at, dealt[at], decoding[at] or computed[at] + dealt[at] >= prompts[at]) for at in order if dealt[at]]


def by_recursion(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """An inner function serves the first of a list and hands on the rest, with what is left."""

    def serve(waiting: list[int], left: int) -> Plan:
        if not waiting or not left:
            return []
        first, *others = waiting
        lacks = prompts[first] - computed[first]
        tokens = sorted((lacks, left, chunk))[0]
        return [(first, tokens, tokens == lacks), *serve(others, left - tokens)]

    every = range(len(prompts))
    decoding = [at for at in every if not computed[at] < prompts[at]]
    return [(at, 1, True) for at in decoding] + serve(
        [at for at in every if at not in decoding], budget - len(decoding)
    )


def _lacks(prompts: list[int], computed: list[int], budget: int, chunk: int) -> tuple[list[int], int, int]:
    return [max(0, length - done) for length, done in zip(prompts, computed, strict=True)], budget, chunk


def _computed(left: list[int], budget: int, chunk: int) -> tuple[list[int], list[int], int, int]:
    return [lacks + 9 for lacks in left], [9] * len(left), budget, chunk


def _by_request(result: Plan, *_: object) -> tuple[list[int], list[int], list[int]]:
    requests, tokens = [at for at, _, _ in result], [n for _, n, _ in result]
    return requests, tokens, sorted(at for at, _, follows in result if follows)


def _by_kind(result: Plan, prompts: list[int], computed: list[int], *_: object) -> dict[str, list[tuple[int, int]]]:
    told: dict[str, list[tuple[int, int]]] = {"decode": [], "pieces": [], "complete": []}
    for at, tokens, follows in result:
        kind = "decode" if computed[at] >= prompts[at] else "complete" if follows else "pieces"
        told[kind].append((at, tokens))
    return told


@edition(
    "by-request",
    "each request is told by what its prompt lacks, and the answer is three lists",
    args=_lacks,
    back=_computed,
    result=_by_request,
    axes=("list", "request"),
)
def by_request(left: list[int], budget: int, chunk: int) -> tuple[list[int], list[int], list[int]]:
    """The next step as three lists: its requests, how many tokens each of them gets, and whom a new token follows.

    left: how many tokens of its prompt each request still lacks; who came first stands first. A request that lacks
    none is decoding: it gets 1 token, its newest, and a new one follows. All others get the next tokens of their
    prompt: those that they lack, but at most `chunk` and what is left of the budget. A new token follows where the
    prompt is then complete. budget: tokens of the whole step at most; at least 1, and at least as many as requests are
    decoding. Requests that are decoding come first, so that none of them ever waits; then come the prompts. Each of the
    two kinds is in order of arrival. A request that gets no token is in none of the lists. The third rises.
    """
    decoding = [at for at, lacks in enumerate(left) if lacks == 0]
    requests, tokens, over = list(decoding), [1] * len(decoding), budget - len(decoding)
    for at, lacks in enumerate(left):
        if lacks and over:
            requests.append(at)
            tokens.append(min(lacks, chunk, over))
            over -= tokens[-1]
    return requests, tokens, sorted(at for at, n in zip(requests, tokens, strict=True) if n >= left[at])


@edition(
    "by-kind",
    "the answer is a dict of three lists, one for each kind of part",
    args=lambda prompts, computed, *rest: (list(zip(computed, prompts, strict=True)), *rest),
    back=lambda texts, *rest: ([length for _, length in texts], [done for done, _ in texts], *rest),
    result=_by_kind,
    axes=("list", "item"),
)
def by_kind(texts: list[tuple[int, int]], budget: int, chunk: int) -> dict[str, list[tuple[int, int]]]:
    """The next step in three parts: "decode", "pieces" and "complete", each of them pairs (request, tokens).

    texts: of each request (tokens of its prompt that have been in a step, length of its prompt); who came first stands
    first. A request whose whole prompt, or more, has been in steps gets 1 token, under "decode". All others get the
    next tokens of their prompt: what is left of it, but at most `chunk` and what is left of the budget: under
    "complete" where that ends the prompt, so that a new token follows, and under "pieces" where it does not. budget:
    tokens of the whole step at most; at least 1, and at least as many as requests are decoding, which are served before
    all prompts; prompts are served in order of arrival. A request that gets no token is in none of the lists, each of
    which is in order of arrival.
    """
    step: dict[str, list[tuple[int, int]]] = {"decode": [], "pieces": [], "complete": []}
    step["decode"] = [(at, 1) for at, (done, length) in enumerate(texts) if done >= length]
    over = budget - len(step["decode"])
    for at, (done, length) in enumerate(texts):
        if done < length and over:
            tokens = min(length - done, chunk, over)
            step["complete" if done + tokens == length else "pieces"].append((at, tokens))
            over -= tokens
    return step
