"""Blocks that texts share where they begin alike. Chapter 5.

A full block is known by its tokens and a hash of all before them, so one look-up a block finds what another row has
computed, or one that is gone: a known block that no row owns is kept until its room is wanted. It costs the host a hash
a block. Idea: vLLM's automatic prefix caching. SGLang keeps a tree in place of hashes (Zheng et al. 2023, "SGLang:
Efficient Execution of Structured Language Model Programs", section 3).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile

from nanoinfer.cache.blocks import NULL, BlockAllocator, BlockManager


class SharedAllocator(BlockAllocator):
    """Blocks that rows own together, counted in `owned`. A block that is known stays so until its room is wanted."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self.known: dict[bytes, int] = {}  # a dict compares keys in full, and they hold the tokens
        self.keys = [b""] * blocks  # of each block, its key if it is known
        self.idle: OrderedDict[int, None] = OrderedDict()  # known blocks that no row owns, least recently used first
        self.evictions = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that no row owns, known or not."""
        return len(self._free) + len(self.idle)

    def publish(self, block: int, key: bytes) -> None:
        """From now on `key` finds this block, unless it finds another already."""
        if key not in self.known:
            self.known[key], self.keys[block] = block, key

    def forget(self) -> None:
        """The idle block that was used least recently is as free as any."""
        block, _ = self.idle.popitem(last=False)
        del self.known[self.keys[block]]
        self.keys[block] = b""
        self._free.append(block)

    def allocate(self) -> int:
        if not self._free and self.idle:
            self.forget()
            self.evictions += 1
        return super().allocate()

    def share(self, block: int) -> None:
        """One more row owns this known block."""
        self.idle.pop(block, None)
        self.owned[block] += 1

    def free(self, block: int) -> None:
        """One row gives the block back; after the last it is idle, or free if nobody could find it."""
        if self.owned[block] > 1:
            self.owned[block] -= 1
        elif self.owned[block] and self.keys[block]:
            self.owned[block] = 0
            self.idle[block] = None
        else:
            super().free(block)


class PrefixBlocks(BlockManager):
    """A block manager whose rows share the full blocks of what their texts begin with.

    identity: all that keys and values depend on besides the tokens and their places: the model, its precision.
    Counted for good: asked_tokens and hit_tokens, of the texts that were reserved for, and how many of these lay in
    known blocks; evictions, known blocks whose room was wanted.
    """

    allocator: SharedAllocator

    def __init__(self, blocks: int, block_size: int, max_batch: int, identity: bytes) -> None:
        super().__init__(blocks, block_size, max_batch)
        self.allocator, self.identity = SharedAllocator(blocks), identity
        self.texts: list[list[bytes]] = [[] for _ in range(max_batch)]  # of each row's text, keys of the full blocks
        self.published = [0] * max_batch  # of each row's blocks, the first ones: found, or made to be found
        self.asked_tokens = self.hit_tokens = 0
        self._asked: tuple[bytes, list[bytes]] = b"", []

    @property
    def evictions(self) -> int:
        return self.allocator.evictions

    def reserve(self, row: int, tokens: int, text: Sequence[int] = ()) -> bool:
        """As the base's; the row then owns the known blocks that `text` begins with.

        They end before the last token, whose logits somebody must compute. False: nothing has changed, but that the
        keys of `text` are remembered, for who waits first asks at every step. The blocks are looked up each time.
        """
        data = array("q", text).tobytes()
        if data != self._asked[0]:
            self._asked = data, self._extend([], data)
        keys, known = self._asked[1], self.allocator.known
        hits = list(takewhile(bool, (known.get(key, NULL) for key in keys[: (len(text) - 1) // self.block_size])))
        wanted = self.blocks_of(tokens)
        idle = len([block for block in hits if not self.allocator.owned[block]])  # available until now
        if wanted - len(hits) > self.available - idle:
            return False
        for column, block in enumerate(hits):
            self.allocator.share(block)
            self.begun.append((row, column, block))
        self.owned[row], self.texts[row], self.published[row] = hits, keys, len(hits)
        self.reservation[row] = wanted
        self.reserved += wanted - len(hits)
        self.asked_tokens += len(text)
        self.hit_tokens += len(hits) * self.block_size
        return True

    def grow(self, row: int, length: int) -> int:
        """As the base's; from now on the full blocks within `length` of the text reserved for can be found.

        The step that is being planned will write them, and its own rows may read them already: in each layer it writes
        the keys and values of all rows before any row attends. Steps run in order. So each step that was planned must
        be launched, with all its rows, and if one fails, `clear` forgets what was never written.
        """
        room = super().grow(row, length)
        self._publish(row, length // self.block_size)
        return room

    def truncate(self, row: int, length: int) -> None:
        """As the base's. ValueError for a length within published blocks: only drafts, behind them, are taken back.

        So whatever the row gives back here, and whatever it writes next, no other row can find or hold.
        """
        if length < self.published[row] * self.block_size:
            raise ValueError(f"row {row} cannot go back to {length} tokens: other rows may use its blocks")
        super().truncate(row, length)

    def release(self, row: int, text: Sequence[int] = ()) -> None:
        """As the base's; from now on the full blocks of `text`, which goes on from that reserved for, can be found."""
        full, done = len(text) // self.block_size, len(self.texts[row])
        rest = text[done * self.block_size : full * self.block_size]
        self.texts[row] = self._extend(self.texts[row], array("q", rest).tobytes())
        self._publish(row, full)
        self.texts[row], self.published[row] = [], 0
        super().release(row)  # from the end of a text to its beginning, which is thus forgotten last

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        super().move(sources, targets)
        for source, target in zip(sources, targets, strict=True):
            self.texts[target], self.texts[source] = self.texts[source], []
            self.published[target], self.published[source] = self.published[source], 0

    def clear(self) -> None:
        """Everything is free again, and nothing is known."""
        super().clear()
        while self.allocator.idle:
            self.allocator.forget()

    def _extend(self, keys: list[bytes], data: bytes) -> list[bytes]:
        """Keys of a text's first blocks, and of the full ones in `data`, its next tokens, of 8 bytes each.

        A key holds the block's tokens, behind the digest of the key before, which stands for all tokens before them.
        """
        keys, size = list(keys), 8 * self.block_size
        for start in range(0, len(data) - size + 1, size):
            parent = blake2b(keys[-1] if keys else self.identity, digest_size=16)
            keys.append(parent.digest() + data[start : start + size])
        return keys

    def _publish(self, row: int, full: int) -> None:
        """Make the row's first `full` blocks findable, as far as it owns them and their keys are known."""
        owned, keys = self.owned[row], self.texts[row]
        for column in range(self.published[row], min(full, len(owned), len(keys))):
            self.allocator.publish(owned[column], keys[column])
            self.published[row] = column + 1
