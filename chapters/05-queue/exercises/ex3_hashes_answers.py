"""Exercise 5.3: wrong answers and where they come from, correct variants, mutants that are none, two editions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, takewhile

from nanocourse.exercises.exercise import Edition, Right, Wrong

Digest = Callable[[str, list[int]], str]
Answer = tuple[list[str], list[int]]

STARTS = "range(0, len(prompt) - block_size + 1, block_size)"
PARENT = "keys[-1] if keys else root"
TOKENS = "prompt[start : start + block_size]"
LOOKED = "keys[: (len(prompt) - 1) // block_size]"
WRONG = (
    Wrong.patch(
        "without-parent", "The same tokens have the same keys and values, so a block's key is that of its tokens.",
        PARENT, "root", "an author's own slip: what a token's keys and values depend on is all tokens before it",
    ),
    Wrong.patch(
        "first-ones-parent", "All blocks of a prompt have the parent of its first one.",
        PARENT, "keys[0] if keys else root",
        "ai-dynamo/dynamo#671: every block of an event was given the event's parent",
    ),
    Wrong.patch(
        "one-block-back", "The parent is what the block before holds.",
        f"keys.append(digest({PARENT}, {TOKENS}))",
        'keys.append(digest(",".join(map(str, prompt[start - block_size : start])) if start else root, '
        f"{TOKENS}))",
        "GeeeekExplorer/nano-vllm#163: a hit that compared one block's tokens, and not all before",
    ),
    Wrong.patch(
        "place-as-parent", "A block is known by its tokens and where they stand.", PARENT, "root + str(start)",
        "an author's own slip: positions are a part of keys and values, but not the only one",
    ),
    Wrong.patch(
        "without-root", "Nothing comes before the first block.", PARENT, 'keys[-1] if keys else ""',
        "llm-d/llm-d-kv-cache#243, vllm-project/vllm#44701: what else keys and values depend on was left out",
    ),
    Wrong.patch(
        "root-everywhere", "The root is a part of each key.", f"digest({PARENT}, {TOKENS})",
        f"digest(root + (keys[-1] if keys else root), {TOKENS})",
        "an author's own slip: the key before stands for the root already",
    ),
    Wrong.patch(
        "whole-prefix", "A key is made of all tokens up to its block's end.", f"digest({PARENT}, {TOKENS})",
        "digest(root, prompt[: start + block_size])",
        "vLLM's first keys were made so, of quadratic cost; right in itself, and it finds no key of a chain",
    ),
    Wrong.patch(
        "part-of-a-block", "What is left at the end is a block, too.", STARTS, "range(0, len(prompt), block_size)",
        "neuralmagic/nm-vllm#3: a half-filled block that two rows share, and both go on writing into it",
    ),
    Wrong.patch(
        "one-key-less", "A block that ends the prompt gets no key, since it may not be hit.", STARTS,
        "range(0, len(prompt) - block_size, block_size)",
        "vllm-project/vllm#11186: the last block was not entered, and the chain ended there for all who came later",
    ),
    Wrong.patch(
        "eight-bits", "A token is a byte.", TOKENS, "[token & 255 for token in prompt[start : start + block_size]]",
        "waybarrios/vllm-mlx#444: ids 65 and 321 were one",
    ),
    Wrong.patch(
        "sum-of-tokens", "A block's tokens are told by their sum.", TOKENS,
        "[sum(prompt[start : start + block_size])]",
        "NVIDIA/Megatron-LM#4158, openvinotoolkit/openvino.genai#3722: hashes that different blocks share",
        unnamed="without-parent",
    ),
    Wrong.patch(
        "whole-prompt-hit", "What is known need not be computed.", LOOKED, "keys",
        "GeeeekExplorer/nano-vllm#199: a prompt that was known to the end left nothing to compute, and crashed",
    ),
    Wrong.patch(
        "one-block-spared", "The last full block is always computed.", LOOKED, "keys[:-1]",
        "an author's own slip: also where the last token lies behind it",
    ),
    Wrong.patch(
        "past-a-gap", "Each block that is known is a hit.", "            break\n", "            continue\n",
        "a reader's question in GeeeekExplorer/nano-vllm#20; here blocks would take the places of others",
    ),
    Wrong.patch(
        "all-or-nothing", "A prompt is known if its last block is.", f"for key in {LOOKED}:",
        f"for key in {LOOKED} if all(key in known for key in {LOOKED}) else []:",
        "an author's own slip: a cache of whole prompts",
    ),
)  # fmt: skip


def by_accumulate(prompt: list[int], block_size: int, digest: Digest, root: str, known: dict[str, int]) -> Answer:
    """The chain as a running total of blocks; hits while the pool has them."""
    full = len(prompt) // block_size
    blocks = [prompt[at * block_size :][:block_size] for at in range(full)]
    keys = list(accumulate(blocks, digest, initial=root))[1:]  # type: ignore[arg-type]
    full -= full * block_size == len(prompt)
    return keys, [known[key] for key in takewhile(known.__contains__, keys[:full])]


def token_by_token(prompt: list[int], block_size: int, digest: Digest, root: str, known: dict[str, int]) -> Answer:
    """A block is filled token by token, and named when it is full; a flag says whether hits go on."""
    parent, block, keys, hits, going = root, [], [], [], True
    for place, token in enumerate(prompt, 1):
        block.append(token)
        if len(block) == block_size:
            parent = digest(parent, block)
            keys.append(parent)
            going = going and parent in known and place < len(prompt)
            if going:
                hits.append(known[parent])
            block = []
    return keys, hits


def by_recursion(prompt: list[int], block_size: int, digest: Digest, root: str, known: dict[str, int]) -> Answer:
    """The first block is named; the rest is a prompt whose root is that name."""
    if len(prompt) < block_size:
        return [], []
    name = digest(root, prompt[:block_size])
    keys, hits = by_recursion(prompt[block_size:], block_size, digest, name, known)
    hit = known.get(name) if len(prompt) > block_size else None
    return [name, *keys], [] if hit is None else [hit, *hits]


RIGHT = (Right(by_accumulate), Right(token_by_token), Right(by_recursion))
EQUIVALENT: dict[str, str] = {}


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


def _halves(prompt: list[int], *rest: object) -> tuple[object, ...]:
    return {"prompt": prompt[: -(-len(prompt) // 3)], "new": prompt[-(-len(prompt) // 3) :]}, *rest


EDITIONS = (
    Edition(
        "chained", "digest takes the tokens first, and the answer is a pair for each full block", chained,
        args=lambda prompt, size, digest, root, known: (
            prompt, size, _turned(digest), root, [(block, key) for key, block in known.items()]
        ),
        back=lambda prompt, size, digest, root, written: (
            prompt, size, _turned(digest), root, {key: block for block, key in written}
        ),
        result=_chained, axes=("block", "item"),
    ),
    Edition(
        "first-missing", "the text is a prompt and tokens that were generated before, and the answer is a dict",
        first_missing, args=_halves, back=lambda text, *rest: (text["prompt"] + text["new"], *rest),
        result=lambda result, prompt, size, *_: {
            "keys": result[0], "blocks": result[1], "tokens": prompt[len(result[1]) * size :]
        },
        axes=("item",),
    ),
)  # fmt: skip
