"""Exercise 5.3: the keys of a prompt's full blocks, and which blocks it need not compute."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from nanocourse.exercises import Call, Case, Check, Function, Places, Spec, call


def keys_and_hits(
    prompt: list[int], block_size: int, digest: Callable[[str, list[int]], str], root: str, known: dict[str, int]
) -> tuple[list[str], list[int]]:
    """The keys of the prompt's full blocks, and the blocks of the pool that it begins with and need not compute.

    prompt: token ids, at least one. A block holds `block_size` of them; what is left at the end is in a block that is
    not full, and has no key. digest(parent, tokens): the key of a block, of the key of the block before it and the
    block's own tokens; it is called once for each full block. The first block's parent is `root`, which stands for all
    else that keys and values depend on. known: which block of the pool holds what a key stands for; not all keys are in
    it, and blocks in the middle may be missing.
    The second list is those blocks, from the first one on, as far as all before them are there, too. They end before
    the prompt's last token: that must be computed, since its logits choose the first new token.
    """
    keys: list[str] = []
    for start in range(0, len(prompt) - block_size + 1, block_size):
        keys.append(digest(keys[-1] if keys else root, prompt[start : start + block_size]))
    hits: list[int] = []
    for key in keys[: (len(prompt) - 1) // block_size]:
        if key not in known:
            break
        hits.append(known[key])
    return keys, hits


def swap(mine: Function) -> Places:
    """SharedBlocks.find asks it for a text's keys and hits."""

    def digest(parent: str, tokens: list[int]) -> str:
        return blake2b(bytes.fromhex(parent), digest_size=16).hexdigest() + array("q", tokens).tobytes().hex()

    def find(self: Any, text: Sequence[int]) -> tuple[list[bytes], list[int]]:
        if self.identity is None or not text:
            return [], []
        known = {key.hex(): block for key, block in self.known.items()}
        keys, hits = mine(list(text), self.block_size, digest, self.identity.hex(), known)
        return list(map(bytes.fromhex, keys)), list(hits)

    return {"nanoinfer.cache.sharing:SharedBlocks.find": find}


def key_of(parent: str, tokens: list[int]) -> str:
    """Six digits that stand for a block and all before it."""
    return blake2b(f"{parent} {tokens}".encode(), digest_size=3).hexdigest()


def _lent(prompt: list[int], size: int, root: str, known: dict[str, int]) -> Call:
    """A call with a digest of which is observed how often it was asked, and shown what it gave."""
    gives: list[tuple[object, str]] = []

    def digest(parent: str, tokens: list[int]) -> str:
        """six digits that stand for the parent and the tokens"""
        if not (isinstance(parent, str) and isinstance(tokens, list) and all(type(token) is int for token in tokens)):
            raise TypeError("digest takes a string and a list of token ids")
        gives.append(((parent, tokens), key_of(parent, tokens)))
        return gives[-1][1]

    digest.gives = gives  # type: ignore[attr-defined]
    return call(prompt, size, digest, root, known, observe=lambda: {"calls of digest": len(gives)})


def _keys(prompt: list[int], size: int, root: str) -> list[str]:
    keys = [root]
    for at in range(len(prompt) // size):
        keys.append(key_of(keys[-1], prompt[at * size : (at + 1) * size]))
    return keys[1:]


def _example() -> Call:
    prompt = [11, 12, 11, 12, 15, 16, 17]
    keys = _keys(prompt, 2, "small")
    return _lent(prompt, 2, "small", {keys[0]: 5, keys[2]: 3})


EXERCISE = Spec(
    reference=keys_and_hits,
    lines=12,
    example=_example,
    section="A name for a full block",
    axes=("list", "block"),
    typed=True,
    refuse=("nanoinfer.cache.sharing:SharedBlocks.find", "nanoinfer.cache.sharing:SharedBlocks._extend"),
    swap=swap,
)


def _pool(case: Case, keys: list[str], missing: set[int]) -> dict[str, int]:
    """Blocks for these keys but the missing ones, and for keys of other texts."""
    numbers = case.permutation("blocks", len(keys) + 3).tolist()
    others = {key_of("other", [n]): numbers[len(keys) + n] for n in range(2)}
    return {key: numbers[at] for at, key in enumerate(keys) if at not in missing} | others


def _tokens(case: Case, count: int, low: int = 1, high: int = 99) -> list[int]:
    return case.ints("tokens", low, high, count).tolist()


def full_blocks(case: Case) -> Call:
    """Each full block has a key, of its own tokens and the key before; what does not fill a block has none."""
    size, blocks = case.size("block size", 2, 4), case.size("blocks", 1, 4)
    prompt = _tokens(case, size * blocks + case.turn((0, 1, size - 1)))
    return _lent(prompt, size, case.choice("root", ("small", "gpt2")), _pool(case, [], set()))


def the_same_tokens(case: Case) -> Call:
    """The same tokens at another place, or after another text, are another block, which is not a hit."""
    size = case.size("block size", 1, 3)
    once = _tokens(case, size)
    prompt = once * (2 + case.size("more", 1, 2)) + once[:1]
    keys = _keys(prompt, size, "small")
    alone = {key_of("small", once): 40, key_of(key_of("gpt2", once), once): 41, key_of("", once): 42}
    return _lent(prompt, size, "small", alone | {keys[-1]: 43})


def the_first_that_is_missing(case: Case) -> Call:
    """Hits end at the first block that nobody knows, whatever is known behind it."""
    size, blocks = case.size("block size", 1, 3), case.size("blocks", 3, 5)
    prompt = _tokens(case, size * blocks)
    missing = {case.size("missing", 0, blocks - 3), blocks - 1}
    return _lent(prompt, size, "small", _pool(case, _keys(prompt, size, "small"), missing))


def the_last_token(case: Case) -> Call:
    """All blocks may be known: the last token is computed all the same, and with it the block that it ends."""
    size, blocks = case.size("block size", 1, 3), case.size("blocks", 1, 3)
    prompt = _tokens(case, size * blocks + (case.turn((0, 1, 0)) if size > 1 else 0))
    return _lent(prompt, size, "small", _pool(case, _keys(prompt, size, "small"), set()))


def any_prompt(case: Case) -> Call:
    """Prompts of one token and of many blocks, ids of a large vocabulary, ids that agree in their last bits."""
    kind = case.turn(("many", "one", "less than a block", "large", "low bits", "many", "equal", "another one"))
    if kind in ("one", "another one"):  # the same numbers, but for the token
        return _lent([case.choice("id", range(9)) + 9 * (kind == "one")], 1, "", {})
    if kind == "less than a block":
        return _lent(_tokens(case, 15), 16, "small", _pool(case, [], set()))
    if kind == "low bits":
        low = _tokens(case, 9, 0, 255)
        return _lent([token + 256 for token in low], 2, "small", _pool(case, _keys(low, 2, "small"), set()))
    size = 2 if kind == "equal" else 3
    count = {"many": 250, "large": 40}.get(kind, 9) + case.choice("more", (0, 1, 2))
    prompt = [7] * count if kind == "equal" else _tokens(case, count, *((40_000, 90_000) if kind == "large" else ()))
    keys = _keys(prompt, size, "gpt2")
    return _lent(prompt, size, "gpt2", _pool(case, keys, {case.choice("missing", (len(keys) - 2, len(keys)))}))


CHECKS = (
    Check(any_prompt, 8, wide=True), Check(full_blocks, 3), Check(the_same_tokens, 4),
    Check(the_first_that_is_missing, 4), Check(the_last_token, 6),
)  # fmt: skip
