"""What should be known of a block manager, with or without sharing: each call is checked, and all books after it.

Rows share blocks by what the blocks hold, so here a block is known by all the tokens up to its end, in full, and not by
a hash: a hit is wrong if any token before it differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanoinfer.cache.sharing import SharedBlocks
from tests.engine.audit import must

Tokens = tuple[int, ...]


@dataclass
class Text:
    """A slot, as far as the calls have told of it."""

    tokens: Tokens
    reserved: int  # blocks that it may yet take
    blocks: list[int]
    published: int  # of these, the first so many were found, or can be


def books(blocks: SharedBlocks) -> dict[str, str]:
    """All that a manager knows, but for the keys it remembers of the text last asked for."""
    return {name: repr(value) for name, value in vars(blocks).items() if name != "_asked"}  # dicts in order, too


class Shadow:
    """Stands before a manager: it is called in its place, calls it, and holds what it did against what it should do."""

    def __init__(self, blocks: SharedBlocks) -> None:
        self.blocks, self.size, self.pool = blocks, blocks.block_size, blocks.blocks
        self.sharing = blocks.identity is not None
        self.rows: dict[int, Text] = {}
        self.found: dict[Tokens, int] = {}
        self.keys: dict[Tokens, bytes] = {}  # of all beginnings that were ever known
        self.free, self.idle = set(blocks.free), list[int]()
        self.evictions = 0
        self._inside = False
        for name in ("reserve", "claim", "grow", "extend", "publish", "release", "rename", "forget"):
            if hasattr(blocks, name):
                setattr(blocks, name, self.before(getattr(blocks, name), getattr(self, name)))

    def before(self, method: Any, told: Any) -> Any:
        """The method, and then what is checked of it; where the manager calls itself, the method alone."""

        def called(*args: Any) -> Any:
            if self._inside:
                return method(*args)
            self._inside, before = True, books(self.blocks) if told in (self.reserve, self.claim) else {}
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
        return len(self.free) + len(self.idle) - sum(text.reserved for text in self.rows.values())

    def fits(self, text: Tokens, longest: int) -> tuple[list[int], bool]:
        """The blocks that this text begins with, and whether there is room for the rest of it."""
        found: list[int] = []
        for end in range(self.size, len(text), self.size):
            if text[:end] not in self.found:
                break
            found.append(self.found[text[:end]])
        wanted = -(-longest // self.size)
        return found, wanted - len(found) <= self.available - len({*found} & {*self.idle})

    def reserve(self, slot: int, longest: int, text: Sequence[int], done: bool) -> None:
        tokens = tuple(text)
        found, fits = self.fits(tokens, longest)
        must(done == fits, "room is what no row owns, claims or has reserved")
        if not done:
            return
        owned = self.blocks.owned[slot]
        must(owned[len(found) :] == [], "what is found was computed, up to the last token")
        must(owned == found, "what is known is found")
        self.idle = [block for block in self.idle if block not in found]
        self.rows[slot] = Text(tokens, -(-longest // self.size) - len(found), list(found), len(found))

    def claim(self, slot: int, length: int, done: bool) -> None:
        text = self.rows[slot]
        more = max(0, -(-length // self.size) - len(text.blocks) - text.reserved)
        must(done == (more <= self.available or not more), "room is what no row owns, claims or has reserved")
        text.reserved += more * done

    def extend(self, slot: int, start: int, length: int, _: None) -> None:
        """A chunk of the slot's own text has blocks, and they can be found."""
        self.grow(slot, length, _)
        self.note(self.rows[slot], self.rows[slot].tokens[:length])

    def grow(self, slot: int, length: int, _: Any) -> None:
        """The slot has new blocks: of those that are free, or else of the idle ones the least recently used."""
        text, owned = self.rows[slot], self.blocks.owned[slot]
        must(len(owned) * self.size >= length, "a row has room for its text")
        must(owned[: len(text.blocks)] == text.blocks, "a row's blocks stay its own")
        for block in owned[len(text.blocks) :]:
            must(block in self.free or block in self.idle, "what a row owns is given to no other")
            if block not in self.free:
                must(not self.free and block == self.idle.pop(0), "the least recently used goes first")
                self.evictions += 1
                self.found = {prefix: known for prefix, known in self.found.items() if known != block}
            self.free.discard(block)
        text.reserved -= len(owned) - len(text.blocks)
        text.blocks = list(owned)

    def note(self, text: Text, tokens: Tokens) -> None:
        """The full blocks of these tokens can be found."""
        for column in range(text.published, len(tokens) // self.size if self.sharing else 0):
            self.found.setdefault(tokens[: (column + 1) * self.size], text.blocks[column])
            text.published = column + 1

    def publish(self, slot: int, text: Sequence[int], count: int, _: None) -> None:
        self.note(self.rows[slot], tuple(text[:count]))

    def release(self, slot: int, _: None) -> None:
        """The slot's references are gone, the last block's first."""
        for block in reversed(self.rows.pop(slot).blocks):
            if not any(block in text.blocks for text in self.rows.values()):
                known = block in self.found.values()
                (self.idle.append if known else self.free.add)(block)

    def rename(self, source: int, target: int, _: None) -> None:
        self.rows[target] = self.rows.pop(source)

    def forget(self, _: None) -> None:
        """A step has failed."""
        self.free |= {*self.idle}
        self.found, self.idle = {}, []

    def check(self) -> None:
        blocks, slots = self.blocks, range(len(self.blocks.owned))
        texts = [self.rows.get(slot, Text((), 0, [], 0)) for slot in slots]
        must(blocks.owned == [text.blocks for text in texts], "a row's blocks stay its own")
        must(blocks.reserved == [text.reserved for text in texts], "a row's reservation is its own")
        counts = Counter(block for text in texts for block in text.blocks)
        must(blocks.users == counts, "a block counts its rows")
        must(sorted(blocks.free) == sorted(self.free), "a block is free, idle or owned")
        must(len(self.free) + len(self.idle) + len(counts) == self.pool, "a block is free, idle or owned")
        must(blocks.available == self.available >= 0, "what is reserved is there")
        must(sorted(blocks.known.values()) == sorted(self.found.values()), "what is known is what should be")
        prefixes = {block: prefix for prefix, block in self.found.items()}
        for key, block in blocks.known.items():
            must(self.keys.setdefault(prefixes[block], key) == key == blocks.keys[block], "a key is its block's")
        must(len(blocks.keys) == len(blocks.known), "a key is its block's")
        must(list(blocks.idle) == self.idle, "the end of a text goes before its beginning")
        must(all(slot in self.rows or not keys for slot, keys in enumerate(blocks.texts)), "a row takes its text along")
