"""Exercise 5.1: wrong answers and where they come from, correct variants, mutants that are none, two editions."""

from __future__ import annotations

from nanocourse.exercises.exercise import Edition, Right, Wrong

Plan = list[tuple[int, int, bool]]


def prompts_first(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """Prompts take what they can, since a new request waits for its first token; decoding gets what is left."""
    reading: Plan = []
    left = budget
    for at, length in enumerate(prompts):
        tokens = min(length - computed[at], chunk, left)
        if tokens > 0:
            reading.append((at, tokens, computed[at] + tokens == length))
            left -= tokens
    decoding = [(at, 1, True) for at, length in enumerate(prompts) if computed[at] >= length]
    return decoding[:left] + reading


def prompts_alone(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """A step is of one kind: where a prompt can be read, nobody decodes."""
    reading: Plan = []
    left = budget
    for at, length in enumerate(prompts):
        tokens = min(length - computed[at], chunk, left)
        if tokens > 0:
            reading.append((at, tokens, computed[at] + tokens == length))
            left -= tokens
    return reading or [(at, 1, True) for at, length in enumerate(prompts) if computed[at] >= length]


def shortest_first(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """Whose prompt lacks least is read first, which is best for the mean."""
    decoding = [at for at, length in enumerate(prompts) if computed[at] >= length]
    step = [(at, 1, True) for at in decoding]
    left = budget - len(decoding)
    for at in sorted(range(len(prompts)), key=lambda at: prompts[at] - computed[at]):
        tokens = min(prompts[at] - computed[at], chunk, left)
        if tokens > 0:
            step.append((at, tokens, computed[at] + tokens == prompts[at]))
            left -= tokens
    return step


def equal_shares(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """What decoding leaves is divided among the prompts, so that all get on."""
    decoding = [at for at, length in enumerate(prompts) if computed[at] >= length]
    step = [(at, 1, True) for at in decoding]
    reading = [at for at, length in enumerate(prompts) if computed[at] < length]
    for at in reading:
        tokens = min(prompts[at] - computed[at], chunk, (budget - len(decoding)) // len(reading))
        if tokens > 0:
            step.append((at, tokens, computed[at] + tokens == prompts[at]))
    return step


def one_token_is_decoding(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """Whoever lacks one token is among those that decode, since a step gives each of them one."""
    step: Plan = []
    left = budget
    for at in sorted(range(len(prompts)), key=lambda at: prompts[at] - computed[at] > 1):
        tokens = min(max(1, prompts[at] - computed[at]), chunk, left)
        if tokens > 0:
            step.append((at, tokens, computed[at] + tokens >= prompts[at]))
            left -= tokens
    return step


DECODING = "computed[at] >= length"
LEFT = "budget - len(decoding)"
LEAST = "min(length - computed[at], chunk, left)"
FOLLOWS = "computed[at] + tokens == length"
WRONG = (
    Wrong.patch(
        "budget-in-rows", "Each request takes one of the budget, whatever it reads.", "left -= tokens", "left -= 1",
        "an author's own slip: max_batch and max_batched_tokens confused",
    ),
    Wrong(prompts_first, "sgl-project/sglang#32549, #34058: under a stream of prompts one decode batch in 24 s"),
    Wrong(prompts_alone, "GeeeekExplorer/nano-vllm@bb823b3 returns before decode wherever a prompt was scheduled"),
    Wrong.patch(
        "decode-alone", "Where anybody is decoding, prompts wait.", LEFT, f"0 if decoding else {LEFT}",
        "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#145, jundot/omlx#3726: prompts that decoding held back",
    ),
    Wrong.patch(
        "piece-of-nothing", "Each request that reads its prompt is in the step.", "if tokens > 0:",
        "if computed[at] < length:", "tenstorrent/tt-xla#5830: a row of 0 tokens, whose token -1 was sampled",
    ),
    Wrong.patch(
        "last-token-spared", "Of a prompt all but the last token must be computed: then it decodes.", DECODING,
        "computed[at] >= length - 1", "an author's own slip: the newest token of a text and the last one of a prompt",
    ),
    Wrong.patch(
        "last-token-left", "A prompt is read up to its last token, which the decoding begins with.",
        "length - computed[at]", "length - 1 - computed[at]",
        "an author's own slip: two phases that meet at a token, and none of them takes it",
    ),
    Wrong.patch(
        "token-after-each-piece", "Each piece that goes through the model gives a token.", FOLLOWS, "True",
        "vllm-project/vllm#4139: skip sampling for chunks; lvyufeng/PocketLLM#132 says why",
    ),
    Wrong(shortest_first, "shortest job first, of the textbooks: here a long prompt may wait for ever"),
    Wrong.patch(
        "whole-or-nothing", "A prompt is read when the budget holds all of its next chunk.", LEAST,
        "min(length - computed[at], chunk) if min(length - computed[at], chunk) <= left else 0",
        "sgl-project/sglang#22984: a batch of 2,816 tokens where 16,384 were allowed",
    ),
    Wrong.patch(
        "one-chunk-a-step", "The chunk is what all prompts of a step may have together.", LEFT,
        f"min({LEFT}, chunk)", "an author's own slip: a limit of each prompt taken for one of the step",
    ),
    Wrong.patch(
        "decode-is-free", "The budget is for prompts: decoding costs next to nothing.", LEFT, "budget",
        "a plausible slip: the step is then larger than any that was captured or measured",
    ),
    Wrong.patch(
        "from-the-beginning", "A prompt's next piece is the smallest of its length, the chunk and what is left.",
        LEAST, "min(length, chunk, left) if computed[at] < length else 0",
        "sgl-project/sglang#36855: the progress of a chunked prompt was lost, and it began anew each step",
    ),
    Wrong(one_token_is_decoding, "a reader of small.py, which sorts so: there a last token is fed like a newest one"),
    Wrong(equal_shares, "processor sharing, of the textbooks: ten prompts are complete at the same late time"),
    Wrong.patch(
        "one-prompt-a-step", "A step has room for one prompt.", "left -= tokens", "left = 0",
        "engines before prompts were batched; vllm-project/vllm's first chunked prefill was for one as well",
    ),
)  # fmt: skip


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


def by_running_sums(prompts: list[int], computed: list[int], budget: int, chunk: int) -> Plan:
    """How much all prompts before this one would like says what is left of the budget."""
    wishes = [max(0, min(chunk, length - done)) for length, done in zip(prompts, computed, strict=True)]
    decoding = tuple(at for at in range(len(prompts)) if prompts[at] - computed[at] <= 0)
    over = budget - len(decoding)
    pieces = [(at, max(0, min(wish, over - sum(wishes[:at])))) for at, wish in enumerate(wishes)]
    told = [(at, 1, True) for at in decoding]
    return [*told, *((at, n, not prompts[at] - computed[at] - n) for at, n in pieces if n)]


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


RIGHT = (Right(token_by_token), Right(by_running_sums), Right(by_recursion))
_ORDER = "the smallest of three is the same in any order"
EQUIVALENT = {
    "tokens = min(chunk, length - computed[at], left)": _ORDER,
    "tokens = min(length - computed[at], left, chunk)": _ORDER,
}


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


def _lacks(prompts: list[int], computed: list[int], budget: int, chunk: int) -> tuple[list[int], int, int]:
    return [max(0, length - done) for length, done in zip(prompts, computed, strict=True)], budget, chunk


def _computed(left: list[int], budget: int, chunk: int) -> tuple[list[int], list[int], int, int]:
    return [lacks + 9 for lacks in left], [9] * len(left), budget, chunk


def _by_request(result: Plan, *_: object) -> tuple[list[int], list[int], list[int]]:
    requests, tokens = [at for at, _, _ in result], [n for _, n, _ in result]
    return requests, tokens, sorted(at for at, _, follows in result if follows)


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


def _by_kind(result: Plan, prompts: list[int], computed: list[int], *_: object) -> dict[str, list[tuple[int, int]]]:
    told: dict[str, list[tuple[int, int]]] = {"decode": [], "pieces": [], "complete": []}
    for at, tokens, follows in result:
        kind = "decode" if computed[at] >= prompts[at] else "complete" if follows else "pieces"
        told[kind].append((at, tokens))
    return told


EDITIONS = (
    Edition(
        "by-request", "each request is told by what its prompt lacks, and the answer is three lists", by_request,
        args=_lacks, back=_computed, result=_by_request, axes=("list", "request"),
    ),
    Edition(
        "by-kind", "the answer is a dict of three lists, one for each kind of part", by_kind,
        args=lambda prompts, computed, *rest: (list(zip(computed, prompts, strict=True)), *rest),
        back=lambda texts, *rest: ([length for _, length in texts], [done for done, _ in texts], *rest),
        result=_by_kind, axes=("list", "item"),
    ),
)  # fmt: skip
