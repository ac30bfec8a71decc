"""Blocks that rows share, against a model that knows what each block really holds, and needs no tensor.

The model writes down, for each slot of each block, all tokens up to the one whose key and value it would hold. So a hit
is wrong if any token before it differs, however alike the blocks are. Prompts are made of few contents, pools are tiny.
"""

from __future__ import annotations

import ast
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nanoinfer.cache.blocks import NULL, BlockManager
from nanoinfer.cache.paged import PagedCache
from nanoinfer.cache.prefix import PrefixBlocks, SharedAllocator
from nanoinfer.engine.engine import Engine
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.requests import Request, SamplingParams
from tests.conftest import SMALL, changed

Tokens = tuple[int, ...]
LONGEST = 24  # tokens of a text at most


class Broken(AssertionError):
    """Something that must hold does not."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def books(blocks: PrefixBlocks) -> dict[str, str]:
    """All that a manager knows, but for the keys it remembers of the text last asked for."""
    fields = {**vars(blocks), **vars(blocks.allocator)}  # in order, where there is one: also the dicts'
    return {name: repr(value) for name, value in fields.items() if name not in ("allocator", "_asked")}


# Cases, from what went wrong in other engines.


def made(pool: int, size: int = 4, rows: int = 4, identity: bytes = b"a model") -> PrefixBlocks:
    return PrefixBlocks(1 + pool, size, rows, identity)


def hits(blocks: PrefixBlocks, row: int, text: Sequence[int]) -> int:
    """How many tokens of a text a row finds when it is admitted."""
    assert blocks.reserve(row, len(text), text)
    return blocks.grow(row, 0)


def compute(blocks: PrefixBlocks, row: int, text: Sequence[int]) -> list[int]:
    """Admit a row, feed it all of its text, and let it go: the blocks that held it."""
    hits(blocks, row, text)
    blocks.grow(row, len(text))
    owned = list(blocks.owned[row])
    blocks.release(row, text)
    return owned


@pytest.mark.parametrize(
    ("one", "other"),
    [((65, 7), (321, 7)), ((1, 40, 9, 9), (1, 71, 8, 9)), ((1, 2), (2, 1)), ((0,), (2**32,)), ((0, 0), (0,))],
    ids=["8 bits of each id", "a sum that cancels", "another order", "32 bits", "shorter"],
)
def test_other_tokens_are_not_found(one: Tokens, other: Tokens) -> None:
    blocks = made(12, size=4)
    one, other = ((*text, 5, 5, 5, 5)[:4] for text in (one, other))
    compute(blocks, 0, one)
    assert hits(blocks, 1, (*other, 6)) == 0


def test_prompts_at_random_share_nothing() -> None:
    """A weak hash would confuse some of 200; and what is counted as found is 0 (no hit of unrelated texts)."""
    random, blocks = Random(0), made(900)
    for _ in range(200):
        compute(blocks, 0, [random.randrange(1000) for _ in range(13)])
    assert (blocks.hit_tokens, blocks.asked_tokens) == (0, 2600)


def test_a_key_holds_the_identity() -> None:
    """Another model, or the same one in another precision, has other keys for the same text."""
    keys = []
    for identity in (b"gpt2 bf16", b"gpt2 fp32", b"draft bf16"):
        blocks = made(4, identity=identity)
        compute(blocks, 0, range(8))
        keys += blocks.allocator.known
    assert len(keys) == len(set(keys)) == 6


@pytest.mark.parametrize("part", range(12))
def test_texts_that_part_share_no_block_from_there_on(part: int) -> None:
    blocks = made(12)
    compute(blocks, 0, [0] * 13)
    text = [0] * 13
    text[part] = 1
    assert hits(blocks, 1, text) == part // 4 * 4


def test_the_same_tokens_after_another_beginning_are_not_found() -> None:
    blocks = made(12)
    compute(blocks, 0, [1] * 4 + [2] * 4 + [3])
    assert hits(blocks, 1, [2] * 9) == 0
    assert hits(blocks, 2, [1] * 4 + [2] * 4 + [9]) == 8


@pytest.mark.parametrize(("length", "found"), [(0, 0), (1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8)])
def test_full_blocks_are_found_but_for_the_last_token(length: int, found: int) -> None:
    """The tokens of a text that its first reader computed whole: the last one's logits are always computed."""
    blocks, text = made(12), tuple(range(length))
    compute(blocks, 0, text)
    assert hits(blocks, 1, text) == found
    assert blocks.hit_tokens == found


@pytest.mark.parametrize("kind", [tuple, list, lambda text: array("q", text)])
def test_any_sequence_is_a_text(kind: Any) -> None:
    blocks = made(12)
    compute(blocks, 0, kind(range(9)))
    assert hits(blocks, 1, range(9)) == 8


def test_a_block_that_is_not_full_is_nobody_elses() -> None:
    """Two rows of one prompt, 2 * 4 + 3 tokens, go on in blocks of their own."""
    blocks, text = made(12), tuple(range(11))
    hits(blocks, 0, text)
    blocks.grow(0, 12)
    assert hits(blocks, 1, text) == 8
    blocks.grow(1, 12)
    assert blocks.owned[0][:2] == blocks.owned[1][:2]
    assert blocks.owned[0][2] != blocks.owned[1][2]
    blocks.release(0, text)
    blocks.release(1, text)
    assert len(blocks.allocator.known) == 2


def test_blocks_are_found_as_they_are_planned() -> None:
    """A prompt in pieces: the step that computes a block is planned, so a row of that step may read it; no other."""
    blocks, text = made(12), tuple(range(13))
    hits(blocks, 0, text)
    assert hits(blocks, 1, text) == 0
    blocks.grow(0, 7)
    assert hits(blocks, 2, text) == 4
    blocks.grow(0, 13)
    assert hits(blocks, 3, text) == 12


def test_what_a_cancelled_row_would_have_computed_is_not_found() -> None:
    blocks, text = made(12), tuple(range(13))
    hits(blocks, 0, text)
    blocks.release(0, ())  # before its first step
    assert hits(blocks, 0, text) == 0
    blocks.grow(0, 5)
    blocks.release(0, text[:5])  # after a piece
    assert hits(blocks, 0, text) == 4


def test_what_is_found_is_looked_up_at_each_attempt() -> None:
    """A look-up of a refused row is not used later, when the blocks have gone."""
    blocks, text = made(5), tuple(range(9))
    compute(blocks, 0, text)
    assert blocks.reserve(1, 8)
    assert not blocks.reserve(0, 24, text)
    blocks.grow(1, 12)  # takes what is free, and the end of the text
    assert blocks.evictions == 0
    blocks.grow(1, 16)
    blocks.truncate(1, 0)
    blocks.release(1)
    assert hits(blocks, 0, text) == 4


def test_idle_blocks_that_are_found_are_no_room_for_others() -> None:
    """Five free blocks, two of them found: there is no room for these and four more, and nothing has changed."""
    blocks, text = made(5), tuple(range(9))
    compute(blocks, 0, text)
    before = books(blocks)
    assert blocks.available == 5
    assert not blocks.reserve(0, 24, text)
    assert books(blocks) == before
    assert blocks.reserve(0, 20, text)
    assert blocks.available == 0


def test_released_twice() -> None:
    """By the end of its text and by a cancellation: the second finds nothing to give back."""
    blocks, text = made(5), tuple(range(9))
    hits(blocks, 0, text)
    blocks.grow(0, 9)
    owned = list(blocks.owned[0])
    blocks.release(0, text)
    before = books(blocks)
    blocks.release(0, text)
    assert books(blocks) == before
    for block in (*owned, NULL):
        with pytest.raises(ValueError, match="not owned"):
            blocks.allocator.free(block)


def test_the_end_of_a_text_is_forgotten_first() -> None:
    """And of two texts, the one whose use is longer ago."""
    blocks = made(6)
    old, new = compute(blocks, 0, [1] * 12), compute(blocks, 0, [2] * 12)
    compute(blocks, 0, [1] * 13)  # used again; its last token takes the last block of the other
    assert (blocks.hit_tokens, blocks.evictions) == (12, 1)
    assert blocks.reserve(1, 20)
    blocks.grow(1, 20)
    assert blocks.owned[1] == [new[2], new[1], new[0], old[2], old[1]]


def test_two_blocks_of_the_same_content() -> None:
    """Computed side by side: the first stays known, the second is free when its row has gone."""
    blocks, text = made(6), tuple(range(8))
    for row in (0, 1):
        hits(blocks, row, text)
    for row in (0, 1):
        blocks.grow(row, 8)
    first, second = map(list, blocks.owned[:2])
    for row in (0, 1):
        blocks.release(row, text)
    assert list(blocks.allocator.known.values()) == first
    assert set(second) <= set(blocks.allocator._free)


@pytest.mark.parametrize("reader", [False, True])
def test_published_blocks_are_not_taken_back(reader: bool) -> None:
    """A row goes back over its drafts, and not into what others may read: that would be written again."""
    blocks, text = made(12), tuple(range(9))
    hits(blocks, 0, text)
    blocks.grow(0, 20)
    if reader:
        hits(blocks, 1, text)
    before = books(blocks)
    with pytest.raises(ValueError, match="cannot go back to 7 tokens"):
        blocks.truncate(0, 7)
    assert books(blocks) == before
    blocks.truncate(0, 9)
    assert (len(blocks.owned[0]), blocks.reservation[0], blocks.grow(0, 12)) == (3, 5, 12)


def test_rows_of_one_token_leave_nothing_behind() -> None:
    blocks = made(6)
    start = blocks.available
    for row in range(8):
        compute(blocks, row % 4, [row] * 4)
    left = blocks.available
    assert left == start, f"{left - start:+} blocks"
    assert blocks.reserved == 0


def test_after_clear_nothing_is_known() -> None:
    """What a failed step should have written is forgotten, held or not; rows may still be told to go."""
    blocks = made(12)
    compute(blocks, 0, range(8))
    hits(blocks, 1, range(100, 110))
    blocks.grow(1, 9)
    blocks.clear()
    assert (blocks.available, blocks.reserved, blocks.begun) == (12, 0, [])
    blocks.release(1, range(100, 110))
    assert hits(blocks, 0, range(8)) == hits(blocks, 1, range(100, 110)) == 0
    assert BlockManager.clear(manager := BlockManager(5, 4, 2)) is None
    assert vars(manager.allocator) == vars(BlockManager(5, 4, 2).allocator)


def test_after_a_failed_step_nothing_is_known(small_model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks were planned, and could be found, but never written: the same prompt is computed again."""
    cache = PagedCache(SMALL, 4, 100, 40, 4, small_model.device, small_model.dtype)
    cache.blocks = made(39)
    engine = Engine(small_model, cache, 4)
    request = Request(0, tuple(range(20)), SamplingParams(temperature=0), 0, 5, frozenset())

    def tokens() -> list[int]:
        return [list(row.token_ids) for rows in engine.generate([request]) for row in rows][-1]

    def failing(*args: Any) -> Any:
        raise MemoryError("once")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "prefill", failing)
        with pytest.raises(MemoryError, match="once"):
            tokens()
    assert not cache.blocks.allocator.known
    cold, warm = tokens(), tokens()
    assert (cold == warm, engine.stats.cached_tokens) == (True, 16)
    cache.blocks = engine.scheduler.blocks = BlockManager(40, 4, 4)
    assert tokens() == cold


# Histories.


@dataclass
class Text:
    """A row, as the model knows it."""

    prompt: Tokens
    tokens: Tokens  # its prompt, and what came after
    reserved: int  # blocks
    blocks: list[int]
    published: int  # of these, the first so many were found, or can be
    fed: int = 0


class Model:
    """A manager, and what should be known of it. Each operation is checked, and all books after it."""

    def __init__(self, pool: int, size: int, max_batch: int) -> None:
        self.pool, self.size, self.max_batch = pool, size, max_batch
        self.blocks = made(pool, size, max_batch)
        self.rows: dict[int, Text] = {}
        self.holds: dict[int, list[Tokens]] = {block: [()] * size for block in range(1, 1 + pool)}  # slot by slot
        self.found: dict[Tokens, int] = {}
        self.free, self.idle = set(self.holds), list[int]()
        self.keys: dict[Tokens, bytes] = {}  # of all beginnings that were ever known
        self.asked = self.hits = self.evictions = 0
        self.tables = [[NULL] * LONGEST for _ in range(max_batch)]  # the device's

    @property
    def available(self) -> int:
        taken = sum(max(0, text.reserved - len(text.blocks)) for text in self.rows.values())
        return len(self.free) + len(self.idle) - taken

    def reserve(self, row: int, prompt: Tokens, longest: int) -> None:
        found: list[int] = []
        for end in range(self.size, len(prompt), self.size):
            if prompt[:end] not in self.found:
                break
            found.append(self.found[prompt[:end]])
        wanted = -(-longest // self.size)
        fits = wanted - len(found) <= self.available - len(set(found) & set(self.idle))
        before = books(self.blocks)
        done = self.blocks.reserve(row, longest, prompt)
        if not done:
            must(books(self.blocks) == before, "a refused row changes nothing")
        owned = self.blocks.owned[row]
        for column, block in enumerate(owned):
            must(self.reads(prompt, column, block), "what is found holds the whole beginning")
        must(not done or len(owned) * self.size < len(prompt), "the last token is computed")
        must(done == fits, "room is what no row owns, claims or has reserved")
        if done:
            must(owned == found, "what is known is found")
            self.idle = [block for block in self.idle if block not in found]
            self.rows[row] = Text(prompt, prompt, wanted, found, len(found), len(found) * self.size)
            self.asked, self.hits = self.asked + len(prompt), self.hits + len(found) * self.size
        self.check()

    def reads(self, tokens: Tokens, column: int, block: int) -> bool:
        """Whether this block holds that part of the text, computed after this very beginning."""
        start = column * self.size
        return self.holds[block] == [tokens[: at + 1] for at in range(start, start + self.size)]

    def feed(self, row: int, tokens: Tokens) -> None:
        """The row's part in a step: the next of its prompt, or after it. The step is launched, so this is written."""
        text, blocks = self.rows[row], self.blocks
        text.tokens = text.tokens if text.fed < len(text.prompt) else text.tokens[: text.fed] + tokens
        length, known = text.fed + len(tokens), set(self.found.values())
        if length > len(text.blocks) * self.size:
            if -(-length // self.size) - text.reserved > self.available:
                return
            must(blocks.grow(row, length) == len(blocks.owned[row]) * self.size, "a row has room for its text")
            self.taken(text, blocks.owned[row])
            must(len(text.blocks) * self.size >= length, "a row has room for its text")
            known &= set(self.found.values())  # what it forgot is its own
            self.publish(text, min(length, len(text.prompt)))
        for at in range(text.fed, length):
            block = text.blocks[at // self.size]
            others = [other for other in self.rows.values() if other is not text and block in other.blocks]
            must(not others and block not in known, "a row writes where nobody else reads")
            self.holds[block][at % self.size] = text.tokens[: at + 1]
        text.fed = length
        self.check()

    def taken(self, text: Text, owned: list[int]) -> None:
        """The row has new blocks: of those that are free, or else of the idle ones the least recently used."""
        must(owned[: len(text.blocks)] == text.blocks, "a row's blocks stay its own")
        for block in owned[len(text.blocks) :]:
            must(block in self.free or block in self.idle, "what a row owns is given to no other")
            if block not in self.free:
                must(not self.free and block == self.idle.pop(0), "the least recently used goes first")
                self.evictions += 1
                self.found = {prefix: known for prefix, known in self.found.items() if known != block}
            self.free.discard(block)
            self.holds[block] = [()] * self.size
        text.blocks = list(owned)
        text.reserved = max(text.reserved, len(owned))

    def publish(self, text: Text, length: int) -> None:
        for column in range(text.published, length // self.size):
            self.found.setdefault(text.tokens[: (column + 1) * self.size], text.blocks[column])
            text.published = column + 1

    def give_back(self, blocks: list[int]) -> None:
        """The row's last reference to these is gone."""
        for block in blocks:
            if not any(block in text.blocks for text in self.rows.values()):
                known = block in self.found.values()
                (self.idle.append if known else self.free.add)(block)

    def release(self, row: int, kept: int) -> None:
        """The row goes, and the host knows so many of its tokens."""
        text = self.rows[row]
        self.publish(text, kept)
        self.blocks.release(row, text.tokens[:kept])
        del self.rows[row]
        self.give_back(text.blocks[::-1])
        self.check()

    def truncate(self, row: int, length: int) -> None:
        text, before = self.rows[row], books(self.blocks)
        try:
            self.blocks.truncate(row, length)
        except ValueError:
            must(length < text.published * self.size, "a row goes back over its drafts")
            must(books(self.blocks) == before, "a row goes back over its drafts")
            return
        keep = -(-length // self.size)
        text.blocks, gone = text.blocks[:keep], text.blocks[keep:]
        text.fed = min(text.fed, length)
        self.give_back(gone[::-1])
        self.check()

    def move(self, source: int, target: int) -> None:
        self.blocks.move([source], [target])
        self.tables[target] = list(self.tables[source])
        self.rows[target] = self.rows.pop(source)
        self.check()

    def clear(self) -> None:
        """A step has failed."""
        self.blocks.clear()
        self.rows, self.found, self.idle = {}, {}, []
        self.free = set(self.holds)
        self.check()

    def check(self) -> None:
        blocks, allocator = self.blocks, self.blocks.allocator
        counts = [sum(block in text.blocks for text in self.rows.values()) for block in range(1 + self.pool)]
        owned = {row: owned for row, owned in enumerate(blocks.owned) if owned}
        must(owned == {row: text.blocks for row, text in self.rows.items() if text.blocks},
             "a row's blocks stay its own")  # fmt: skip
        must(allocator.owned == counts, "a block counts its rows")
        must(sorted(allocator._free) == sorted(self.free), "a block is free, idle or owned")
        must(len(self.free) + len(self.idle) + sum(map(bool, counts)) == self.pool, "a block is free, idle or owned")
        for key, block in allocator.known.items():
            prefix = self.holds[block][-1]
            must(bool(prefix) and self.reads(prefix, len(prefix) // self.size - 1, block), "what is known is computed")
            must(self.keys.setdefault(prefix, key) == key == allocator.keys[block], "a key is its block's")
        must(len(set(self.keys.values())) == len(self.keys), "a key is its block's")
        must(sum(map(bool, allocator.keys)) == len(allocator.known), "a key is its block's")
        must(set(allocator.known.values()) == set(self.found.values()), "what is known is what should be")
        must(list(allocator.idle) == self.idle, "the end of a text goes before its beginning")
        reserved = [self.rows[row].reserved if row in self.rows else 0 for row in range(self.max_batch)]
        must(blocks.reservation == reserved, "what is reserved is there")
        must(blocks.available == self.available >= 0, "what is reserved is there")
        must(all(row in self.rows or not text for row, text in enumerate(blocks.texts)), "a row takes its text along")
        must((blocks.asked_tokens, blocks.hit_tokens) == (self.asked, self.hits), "an admitted row is counted, once")
        must(blocks.evictions == self.evictions, "what is forgotten is counted")
        for row, column, block in blocks.begun:
            self.tables[row][column] = block
        blocks.begun.clear()
        for row, text in self.rows.items():
            must(self.tables[row][: len(text.blocks)] == text.blocks, "the device's tables are the host's")


class History(Model):
    """One pool's life, by a random generator."""

    def __init__(self, random: Random) -> None:
        self.random = random
        super().__init__(random.randint(2, 12), random.choice([1, 2, 4]), random.randint(1, 4))
        self.contents = [random.choices(range(3), k=self.size) for _ in range(2)]

    def some(self, start: int, tokens: int) -> Tokens:
        """Tokens from the middle of a block on, which are often those of other rows."""
        whole = [token for _ in range(2 + tokens // self.size) for token in self.random.choice(self.contents)]
        return tuple(whole[start % self.size :][:tokens])

    def run(self, operations: int = 60) -> None:
        for _ in range(operations):
            free = [row for row in range(self.max_batch) if row not in self.rows]
            chance = self.random.random()
            if free and (not self.rows or chance < 0.25):
                prompt = self.some(0, self.random.randint(1, min(LONGEST, self.pool * self.size) * 2 // 3))
                more = self.random.choice([0, 1, 1, self.size, 8])
                self.reserve(self.random.choice(free), prompt, len(prompt) + more)
            elif self.rows:
                self.one(self.random.choice(list(self.rows)), free, chance)
        for row in list(self.rows):
            self.release(row, self.rows[row].fed)
        must(self.blocks.available == self.pool, "a block is free, idle or owned")

    def one(self, row: int, free: list[int], chance: float) -> None:
        text = self.rows[row]
        if chance < 0.75:
            left = len(text.prompt) - text.fed
            tokens = self.random.randint(1, min(left if left > 0 else LONGEST - text.fed, 6) or 1)
            if text.fed + tokens <= LONGEST:
                ahead = text.prompt[text.fed : text.fed + tokens]
                self.feed(row, ahead or self.some(text.fed, tokens))
        elif chance < 0.9:
            self.release(row, self.random.choice([0, text.fed, self.random.randint(0, text.fed)]))
        elif chance < 0.95:
            self.truncate(row, self.random.randint(0, text.fed + 1))
        elif chance < 0.98 and free:
            self.move(row, self.random.choice(free))
        elif chance > 0.99:
            self.clear()


def outcome(seed: int) -> str:
    """What does not hold in the history of that seed; empty where all does."""
    try:
        History(Random(seed)).run()
    except Broken as broken:
        return str(broken)
    except (RuntimeError, ValueError, LookupError) as error:  # of the allocator, or where there is no such block
        return type(error).__name__
    return ""


def test_histories() -> None:
    for seed in range(500):
        History(Random(seed)).run()


@pytest.mark.long
def test_ten_thousand_histories() -> None:
    found = evicted = 0
    for seed in range(10_000):
        history = History(Random(seed))
        history.run()
        found, evicted = found + history.hits, evicted + history.evictions
    assert found > 100_000
    assert evicted > 10_000


def without_parent(extend: Any, self: PrefixBlocks, keys: list[bytes], data: bytes) -> list[bytes]:
    return [*keys, *(key[16:] for key in extend(self, keys, data)[len(keys) :])]


def weak(extend: Any, self: PrefixBlocks, keys: list[bytes], data: bytes) -> list[bytes]:
    tokens, size = array("q", data), self.block_size
    sums = [sum(tokens[start : start + size]) for start in range(0, len(tokens) - size + 1, size)]
    return [*keys, *(bytes([1 + each % 251]) for each in sums)]


def remembered(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    self._asked = array("q", text).tobytes(), self._asked[1] or self._extend([], array("q", text).tobytes())
    return reserve(self, row, tokens, text)


def the_tail_too(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    done, keys, owned = reserve(self, row, tokens, text), self.texts[row], self.owned[row]
    for other, theirs in enumerate(self.texts):
        if done and other != row and keys == theirs and len(self.owned[other]) > len(keys) == len(owned):
            owned.append(self.owned[other][len(keys)])
            self.allocator.share(owned[-1])
            self.reserved -= 1
    return done


def the_last_token_too(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    done = reserve(self, row, tokens, (*text, 0))
    self.asked_tokens -= done
    return done


def unfound(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    known, self.allocator.known = self.allocator.known, {}
    done = reserve(self, row, tokens, text)
    self.allocator.known = known
    return done


def stale(forget: Any, self: SharedAllocator) -> None:
    block, _ = self.idle.popitem(last=False)
    self.keys[block] = b""
    self._free.append(block)


def held(forget: Any, self: SharedAllocator) -> None:
    block = next((block for block in self.known.values() if self.owned[block]), None)
    if block is None:
        return forget(self)
    del self.known[self.keys[block]]
    self.keys[block] = b""
    self._free.append(block)


def newest(forget: Any, self: SharedAllocator) -> None:
    self.idle.move_to_end(next(reversed(self.idle)), last=False)
    forget(self)


def hasty(allocate: Any, self: SharedAllocator) -> int:
    if self.idle:
        self.forget()
    return allocate(self)


def uncounted(share: Any, self: SharedAllocator, block: int) -> None:
    share(self, block)
    self.owned[block] = 1


def twice(free: Any, self: SharedAllocator, block: int) -> None:
    free(self, block)
    if block in self._free:
        self._free.append(block)


def claimed_as_well(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    keys = self._extend([], array("q", text).tobytes())[: (len(text) - 1) // self.block_size]
    idle = len([key for key in keys if self.allocator.known.get(key) in self.allocator.idle])
    self.reserved -= idle
    done = reserve(self, row, tokens, text)
    self.reserved += idle
    return done


def touched(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    done = reserve(self, row, tokens, text)
    if not done and self.allocator.idle:
        self.allocator.idle.move_to_end(next(iter(self.allocator.idle)))
    return done


def asked(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    self.asked_tokens += len(text)
    return reserve(self, row, tokens, text)


def untold(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    done = reserve(self, row, tokens, text)
    self.begun.clear()
    return done


def reserved_whole(reserve: Any, self: PrefixBlocks, row: int, tokens: int, text: Sequence[int]) -> bool:
    done = reserve(self, row, tokens, text)
    self.reserved += len(self.owned[row]) if done else 0
    return done


def counted_again(forget: Any, self: SharedAllocator) -> None:
    forget(self)
    self.evictions += 1


def the_last(publish: Any, self: SharedAllocator, block: int, key: bytes) -> None:
    self.known[key], self.keys[block] = block, key


def turned(method: Any, self: PrefixBlocks, row: int, *args: Any) -> Any:
    self.owned[row].reverse()
    return method(self, row, *args)


def never_back(truncate: Any, self: PrefixBlocks, row: int, length: int) -> None:
    if length < len(self.owned[row]) * self.block_size:
        raise ValueError
    truncate(self, row, length)


def map_kept(clear: Any, self: PrefixBlocks) -> None:
    known = dict(self.allocator.known)
    clear(self)
    self.allocator.known = known


MUTANTS = {
    "a hash without its parent": (
        changed(PrefixBlocks, "_extend", without_parent), "what is found holds the whole beginning",
    ),
    "a hash too weak": (changed(PrefixBlocks, "_extend", weak), "what is found holds the whole beginning"),
    "the keys of the text before": (
        changed(PrefixBlocks, "reserve", remembered), "what is found holds the whole beginning",
    ),
    "a block that is not full": (
        changed(PrefixBlocks, "reserve", the_tail_too), "what is found holds the whole beginning",
    ),
    "a block that is not written": (
        changed(PrefixBlocks, "_publish", lambda publish, self, row, full: publish(self, row, full + 1)),
        "what is known is computed",
    ),
    "the last token": (changed(PrefixBlocks, "reserve", the_last_token_too), "the last token is computed"),
    "the map still points there": (changed(SharedAllocator, "forget", stale), "what is known is computed"),
    "what is held is forgotten": (changed(SharedAllocator, "forget", held), "what a row owns is given to no other"),
    "the newest is forgotten": (changed(SharedAllocator, "forget", newest), "the least recently used goes first"),
    "forgotten without need": (changed(SharedAllocator, "allocate", hasty), "the least recently used goes first"),
    "from the beginning on": (
        changed(BlockManager, "release", turned), "the end of a text goes before its beginning",
    ),
    "a hit is not counted": (changed(SharedAllocator, "share", uncounted), "a block counts its rows"),
    "freed twice": (changed(SharedAllocator, "free", twice), "a block is free, idle or owned"),
    "idle blocks are room, claimed or not": (
        changed(PrefixBlocks, "reserve", claimed_as_well), "room is what no row owns, claims or has reserved",
    ),
    "a refused row has used blocks": (changed(PrefixBlocks, "reserve", touched), "a refused row changes nothing"),
    "each attempt is counted": (changed(PrefixBlocks, "reserve", asked), "a refused row changes nothing"),
    "counted twice": (changed(PrefixBlocks, "reserve", asked), "an admitted row is counted, once"),
    "the device does not hear of hits": (
        changed(PrefixBlocks, "reserve", untold), "the device's tables are the host's",
    ),
    "hits are reserved as well": (changed(PrefixBlocks, "reserve", reserved_whole), "what is reserved is there"),
    "nothing is found": (changed(PrefixBlocks, "reserve", unfound), "what is known is found"),
    "evictions are counted twice": (
        changed(SharedAllocator, "forget", counted_again), "what is forgotten is counted",
    ),
    "of two blocks, the second": (changed(SharedAllocator, "publish", the_last), "a key is its block's"),
    "nothing is published": (
        changed(PrefixBlocks, "_publish", lambda publish, self, row, full: None), "what is known is what should be",
    ),
    "clear keeps the map": (changed(PrefixBlocks, "clear", map_kept), "a key is its block's"),
    "texts stay where they are": (
        changed(PrefixBlocks, "move", lambda move, self, *rows: BlockManager.move(self, *rows)),
        "a row takes its text along",
    ),
    "blocks change places": (changed(PrefixBlocks, "grow", turned), "a row's blocks stay its own"),
    "one token too few has room": (
        changed(BlockManager, "grow", lambda grow, self, row, length: grow(self, row, length - 1)),
        "a row has room for its text",
    ),
    "back to any length": (
        changed(PrefixBlocks, "truncate", lambda truncate, self, *args: BlockManager.truncate(self, *args)),
        "a row writes where nobody else reads",
    ),
    "never back": (changed(PrefixBlocks, "truncate", never_back), "a row goes back over its drafts"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_histories_tell(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each thing that must hold can fail, and its name comes up."""
    mutate, what = MUTANTS[name]
    mutate(monkeypatch)
    assert what in (outcome(seed) for seed in range(200))  # up to the first


def test_each_thing_that_must_hold_has_a_mutant() -> None:
    calls = [node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call)]
    named = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "must"]
    assert {name.value for name in named if isinstance(name, ast.Constant)} == {what for _, what in MUTANTS.values()}


class Pool(RuleBasedStateMachine):
    """The same, where hypothesis chooses, and looks for a short history."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(6, 2, 3)

    def row(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.model.rows)))

    def free(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([row for row in range(3) if row not in self.model.rows]))

    @precondition(lambda self: len(self.model.rows) < 3)
    @rule(data=st.data(), prompt=st.lists(st.integers(0, 1), min_size=1, max_size=8), more=st.integers(0, 6))
    def reserve(self, data: st.DataObject, prompt: list[int], more: int) -> None:
        self.model.reserve(self.free(data), tuple(prompt), len(prompt) + more)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def prompt(self, data: st.DataObject) -> None:
        text = self.model.rows[row := self.row(data)]
        if left := text.prompt[text.fed :]:
            self.model.feed(row, left[: data.draw(st.integers(1, len(left)))])

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def go_on(self, data: st.DataObject, tokens: list[int]) -> None:
        text = self.model.rows[row := self.row(data)]
        if len(text.prompt) <= text.fed < LONGEST - 4:
            self.model.feed(row, tuple(tokens))

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = self.row(data)
        self.model.release(row, data.draw(st.integers(0, self.model.rows[row].fed)))

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), length=st.integers(0, 12))
    def truncate(self, data: st.DataObject, length: int) -> None:
        self.model.truncate(self.row(data), length)

    @precondition(lambda self: 0 < len(self.model.rows) < 3)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        self.model.move(self.row(data), self.free(data))

    @rule()
    def clear(self) -> None:
        self.model.clear()


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)
