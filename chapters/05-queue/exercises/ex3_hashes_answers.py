"""Exercise 5.3: correct variants, mutants that are none, two editions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, takewhile

from nanocourse.exercises.exercise import edition

Digest = Callable[[str, list[int]], str]
Answer = tuple[list[str], list[int]]


def by_accumulate(prompt: list[int], block_size: int, digest: Digest, root: str, known: dict[str, int]) -> Answer:
    """The chain as a running total of blocks; hits while the pool has them."""
    full = len(prompt) // block_size
    blocks = [prompt[at * block_size :][:block_size] for at in range(full)]
    keys = list(accumulate(blocks, digest, initial=root))[1:]  # type: ignore[arg-type]
    full -= full * block_size == len(prompt)
    return keys, [known[key] for key in takewhile(known.__contains__, keys[:full])]


def by_recursion(prompt: list[int], block_size: int, digest: Digest, root: str, known: dict[str, int]) -> Answer:
    """The first block is named; the rest is a prompt whose root is that name."""
    if len(prompt) < block_size:
        return [], []
    name = digest(root, prompt[:block_size])
    keys, hits = by_recursion(prompt[block_size:], block_size, digest, name, known)
    hit = known.get(name) if len(prompt) > block_size else None
    return [name, *keys], [] if hit is None else [hit, *hits]


EQUIVALENT: dict[str, str] = {}


def _turned(digest: Callable[..., str]) -> Callable[..., str]:
    """The lent function with its two arguments exchanged; what it gave is shown all the same."""

    def turned(one: object, other: object) -> str:
        """six digits that stand for the parent and the tokens"""
        return digest(other, one)

    turned.gives = getattr(digest, "gives", [])  # type: ignore[attr-defined]
    return turned


def _chained(result: Answer, *_: object) -> list[tuple[str, int]]:
    keys, hits = result
    return [(key, hits[at] if at < len(hits) else -1) for at, key in enumerate(keys)]


def _halves(prompt: list[int], *rest: object) -> tuple[object, ...]:
    return {"prompt": prompt[: -(-len(prompt) // 3)], "new": prompt[-(-len(prompt) // 3) :]}, *rest


@edition(
    "chained",
    "digest takes the tokens first, and the answer is a pair for each full block",
    args=lambda prompt, size, digest, root, known: (
        prompt,
        size,
        _turned(digest),
        root,
        [(block, key) for key, block in known.items()],
    ),
    back=lambda prompt, size, digest, root, written: (
        prompt,
        size,
        _turned(digest),
        root,
        {key: block for block, key in written},
    ),
    result=_chained,
    axes=("block", "item"),
)
def chained(
    prompt: list[int],
    block_size: int,
    digest: Callable[[list[int], str], str],
    root: str,
    written: list[tuple[int, str]],
) -> list[tuple[str, int]]:
    """For each full block of the prompt its key, and the block of the pool that holds it; -1 where it is computed.

    prompt: token ids, at least one. A block holds `block_size` of them; what is left at the end is in a block that is
    not full, and has no key. digest(tokens, parent): the key of a block, of its own tokens and the key of the block
    before it; it is called once for each full block. The first block's parent is `root`, which stands for all else that
    keys and values depend on. written: blocks of the pool, each with the key of what it holds; not all keys are among
    them, and blocks in the middle may be missing.
    A block of the pool is used only if all blocks before it are there, too. The prompt's last token must be computed,
    since its logits choose the first new token: so the block that it ends is computed, even if the pool has it.
    """
    pool, told, parent, going = {key: block for block, key in written}, list[tuple[str, int]](), root, True
    for end in range(block_size, len(prompt) + 1, block_size):
        parent = digest(prompt[end - block_size : end], parent)
        going = going and parent in pool and end < len(prompt)
        told.append((parent, pool[parent] if going else -1))
    return told


@edition(
    "first-missing",
    "the text is a prompt and tokens that were generated before, and the answer is a dict",
    args=_halves,
    back=lambda text, *rest: (text["prompt"] + text["new"], *rest),
    result=lambda result, prompt, size, *_: {
        "keys": result[0],
        "blocks": result[1],
        "tokens": prompt[len(result[1]) * size :],
    },
    axes=("item",),
)
def first_missing(
    text: dict[str, list[int]], size: int, digest: Callable[[str, list[int]], str], root: str, known: dict[str, int]
) -> dict[str, list[str] | list[int]]:
    """Three lists: "keys", of the full blocks; "blocks": those that the text begins with; "tokens", to compute.

    text: "prompt" and "new", token ids; the new ones, maybe none, have been generated before and go on from the prompt,
    as after a preemption. A block holds `size` tokens; what is left at the end is in a block that is not full, and has
    no key. digest(parent, tokens): the key of a block, of the key of the block before it and the block's own tokens; it
    is called once for each full block. The first block's parent is `root`, which stands for all else that keys and
    values depend on. known: which block of the pool holds what a key stands for; not all keys are in it, and blocks in
    the middle may be missing.
    "blocks" are those blocks, from the first one on, as far as all before them are there, too. They end before the
    text's last token: that must be computed, since its logits choose the next one.
    """
    tokens, keys, blocks = text["prompt"] + text["new"], list[str](), list[int]()
    for at in range(len(tokens) // size):
        keys.append(digest(keys[-1] if at else root, tokens[at * size : (at + 1) * size]))
    while len(blocks) < len(keys) and keys[len(blocks)] in known and (len(blocks) + 1) * size < len(tokens):
        blocks.append(known[keys[len(blocks)]])
    return {"keys": keys, "blocks": blocks, "tokens": tokens[len(blocks) * size :]}
