"""Cases of blocks that rows share, each from what went wrong in some engine. What must always hold: `Shadow`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nanoinfer.cache.sharing import SharedBlocks
from tests.engine.shadow import Tokens


def made(pool: int = 12, identity: bytes = b"a model") -> SharedBlocks:
    return SharedBlocks(pool, 4, 4, identity)


def hits(blocks: SharedBlocks, slot: int, text: Sequence[int]) -> int:
    """How many tokens of a text a sequence finds when it is admitted."""
    assert blocks.reserve(slot, len(text), text)
    return 4 * len(blocks.owned[slot])


def compute(blocks: SharedBlocks, slot: int, text: Sequence[int]) -> None:
    """Admit a sequence, feed it all of its text, and let it go."""
    hits(blocks, slot, text)
    blocks.extend(slot, 0, len(text))
    blocks.publish(slot, text, len(text))
    blocks.release(slot)


@pytest.mark.parametrize(
    ("one", "other"),
    [((65, 7), (321, 7)), ((1, 40, 9, 9), (1, 71, 8, 9)), ((1, 2), (2, 1)), ((0,), (2**32,)), ((0, 0), (0,))],
    ids=["8 bits of each id", "a sum that cancels", "another order", "32 bits", "shorter"],
)
def test_other_tokens_are_not_found(one: Tokens, other: Tokens) -> None:
    blocks = made()
    one, other = ((*text, 5, 5, 5, 5)[:4] for text in (one, other))
    compute(blocks, 0, one)
    assert hits(blocks, 1, (*other, 6)) == 0


def test_a_key_holds_the_identity() -> None:
    """Another model, or the same one in another precision, has other keys for the same text."""
    keys = []
    for identity in (b"gpt2 bf16", b"gpt2 fp32", b"draft bf16"):
        blocks = made(4, identity)
        compute(blocks, 0, range(8))
        keys += blocks.known
    assert len(keys) == len(set(keys)) == 6


@pytest.mark.parametrize(("length", "found"), [(0, 0), (1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8)])
def test_full_blocks_are_found_but_for_the_last_token(length: int, found: int) -> None:
    """The tokens of a text that its first reader computed whole: the last one's logits are always computed."""
    blocks = made()
    compute(blocks, 0, range(length))
    assert hits(blocks, 1, range(length)) == found
