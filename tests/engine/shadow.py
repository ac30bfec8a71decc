"""What should be known of a block manager, with or without sharing: each call is checked, and all books after it.

Rows share blocks by what the blocks hold, so here a block is known by all the tokens up to its end, in full, and not by
a hash: a hit is wrong if any token before it differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanoinfer.cache.blocks import NULL, BlockManager
from nanoinfer.cache.prefix import PrefixBlocks
from tests.engine.audit import must

Tokens = tuple[int, ...]


@dataclass
class Text:
    """A row, as far as the calls have told of it."""

    tokens: Tokens
    reserved: int  # blocks
    blocks: list[int]
    published: int  # of these, the first so many were found, or can be


def books(blocks: BlockManager) -> dict[str, str]:
    """All that a manager knows, but for the keys it remembers of the text last asked for."""
    fields = {**vars(blocks), **vars(blocks.allocator)}  # in order, where there is one: also the dicts'
    return {name: repr(value) for name, value in fields.items() if name not in ("allocator", "_asked")}


class Shadow:
    """Stands before a manager: it is called in its place, calls it, and holds what it did against what it should do."""

    def __init__(self, blocks: BlockManager) -> None:
        self.blocks, self.size, self.pool = blocks, blocks.block_size, blocks.allocator.blocks - 1
        self.sharing = isinstance(blocks, PrefixBlocks)
        self.rows: dict[int, Text] = {}
        self.found: dict[Tokens, int] = {}
        self.keys: dict[Tokens, bytes] = {}  # of all beginnings that were ever known
        self.free, self.idle = set(range(1, 1 + self.pool)), list[int]()
        self.asked = self.hits = self.evictions = 0
        self._inside = False
        for name in ("reserve", "grow", "truncate", "unreserve", "release", "move", "clear"):
            setattr(blocks, name, self.before(getattr(blocks, name), getattr(self, name)))

    def before(self, method: Any, told: Any) -> Any:
        """The method, and then what is checked of it; where the manager calls itself, the method alone."""

        def called(*args: Any) -> Any:
            if self._inside:
                return method(*args)
            self._inside, before = True, books(self.blocks) if told == self.reserve else {}
            try:
                result = method(*args)
            finally:
                self._inside = False
            if result is False:
                must(books(self.blocks) == before, "a refused row changes nothing")
            told(*args, result)
            self.check()
            return result

        return called

    @property
    def available(self) -> int:
        taken = sum(text.reserved - len(text.blocks) for text in self.rows.values())
        return len(self.free) + len(self.idle) - taken

    def fits(self, text: Tokens, longest: int) -> tuple[list[int], bool]:
        """The blocks that this text begins with, and whether there is room for the rest of it."""
        found: list[int] = []
        for end in range(self.size, len(text), self.size):
            if text[:end] not in self.found:
                break
            found.append(self.found[text[:end]])
        wanted = -(-longest // self.size)
        return found, wanted - len(found) <= self.available - len({*found} & {*self.idle})

    def reserve(self, row: int, longest: int, text: Sequence[int], done: bool) -> None:
        tokens = tuple(text)
        found, fits = self.fits(tokens, longest)
        must(done == fits, "room is what no row owns, claims or has reserved")
        if not done:
            return
        owned = self.blocks.owned[row]
        must(owned[len(found) :] == [], "what is found was computed, up to the last token")
        must(owned == found, "what is known is found")
        self.idle = [block for block in self.idle if block not in found]
        self.rows[row] = Text(tokens, -(-longest // self.size), found, len(found))
        self.asked, self.hits = self.asked + len(tokens), self.hits + len(found) * self.size

    def grow(self, row: int, length: int, room: int) -> None:
        """The row has new blocks: of those that are free, or else of the idle ones the least recently used."""
        text, owned = self.rows[row], self.blocks.owned[row]
        must(room == len(owned) * self.size >= length, "a row has room for its text")
        must(owned[: len(text.blocks)] == text.blocks, "a row's blocks stay its own")
        for block in owned[len(text.blocks) :]:
            must(block in self.free or block in self.idle, "what a row owns is given to no other")
            if block not in self.free:
                must(not self.free and block == self.idle.pop(0), "the least recently used goes first")
                self.evictions += 1
                self.found = {prefix: known for prefix, known in self.found.items() if known != block}
            self.free.discard(block)
        text.blocks, text.reserved = list(owned), max(text.reserved, len(owned))
        self.publish(text, text.tokens[:length])

    def publish(self, text: Text, tokens: Tokens) -> None:
        for column in range(text.published, len(tokens) // self.size if self.sharing else 0):
            self.found.setdefault(tokens[: (column + 1) * self.size], text.blocks[column])
            text.published = column + 1

    def give_back(self, blocks: list[int]) -> None:
        """A row's references to these are gone, the last block's first."""
        for block in reversed(blocks):
            if not any(block in text.blocks for text in self.rows.values()):
                known = block in self.found.values()
                (self.idle.append if known else self.free.add)(block)

    def release(self, row: int, text: Sequence[int], _: None) -> None:
        """The row goes, and the host knows these of its tokens."""
        gone = self.rows.pop(row)
        self.publish(gone, tuple(text))
        self.give_back(gone.blocks)

    def truncate(self, row: int, length: int, _: None) -> None:
        text = self.rows[row]
        keep = -(-length // self.size)
        text.blocks, gone = text.blocks[:keep], text.blocks[keep:]
        self.give_back(gone)

    def unreserve(self, row: int, blocks: int, _: None) -> None:
        self.rows[row].reserved = max(blocks, len(self.rows[row].blocks))

    def move(self, sources: Sequence[int], targets: Sequence[int], _: None) -> None:
        for source, target in zip(sources, targets, strict=True):
            self.rows[target] = self.rows.pop(source)

    def clear(self, _: None) -> None:
        """A step has failed."""
        self.rows, self.found, self.idle, self.free = {}, {}, [], set(range(1, 1 + self.pool))

    def check(self) -> None:
        blocks, allocator, rows = self.blocks, self.blocks.allocator, range(len(self.blocks.owned))
        texts = [self.rows.get(row, Text((), 0, [], 0)) for row in rows]
        must(blocks.owned == [text.blocks for text in texts], "a row's blocks stay its own")
        must(blocks.reservation == [text.reserved for text in texts], "a row's reservation is its own")
        counts = Counter(block for text in texts for block in text.blocks)
        must(allocator.owned == [counts[block] for block in range(1 + self.pool)], "a block counts its rows")
        must(counts[NULL] == 0 and sorted(allocator._free) == sorted(self.free), "a block is free, idle or owned")
        must(len(self.free) + len(self.idle) + len(counts) == self.pool, "a block is free, idle or owned")
        must(blocks.available == self.available >= 0, "what is reserved is there")
        if isinstance(blocks, PrefixBlocks):
            self.check_known(blocks)

    def check_known(self, blocks: PrefixBlocks) -> None:
        allocator = blocks.allocator
        must(sorted(allocator.known.values()) == sorted(self.found.values()), "what is known is what should be")
        prefixes = {block: prefix for prefix, block in self.found.items()}
        for key, block in allocator.known.items():
            prefix = prefixes[block]
            must(self.keys.setdefault(prefix, key) == key == allocator.keys[block], "a key is its block's")
        must(sum(map(bool, allocator.keys)) == len(allocator.known), "a key is its block's")
        must(list(allocator.idle) == self.idle, "the end of a text goes before its beginning")
        must(all(row in self.rows or not keys for row, keys in enumerate(blocks.texts)), "a row takes its text along")
        must((blocks.asked_tokens, blocks.hit_tokens) == (self.asked, self.hits), "an admitted row is counted, once")
        must(blocks.evictions == self.evictions, "what is forgotten is counted")
