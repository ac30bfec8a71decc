"""Blocks that grow as long as there are any, and that texts share where they begin alike. Chapter 5.

A full block is known by its tokens and a hash of all before them, so one look-up a block finds what another sequence
has computed, or one that is gone: a known block that no row owns is kept until its room is wanted. It costs the host a
hash a block. Idea: vLLM's automatic prefix caching. SGLang keeps a tree in place of hashes (Zheng et al. 2023, "SGLang:
Efficient Execution of Structured Language Model Programs", section 3).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from nanoinfer.cache.blocks import BlockManager

if TYPE_CHECKING:
    from nanoinfer.requests import Request


class SharedBlocks(BlockManager):
    """A `BlockManager` whose rows may take more than they have reserved, and share what their texts begin with.

    users: how many rows own each block. known: blocks by key; a dict compares keys in full, and they hold the tokens.
    idle: known blocks that no row owns, the least recently used first. identity: all that keys and values depend on
    besides the tokens and their places: the model and its precision; None shares nothing.
    """

    def __init__(self, blocks: int, block_size: int, max_batch: int, identity: bytes | None = None) -> None:
        super().__init__(blocks, block_size, max_batch)
        self.identity = identity
        self.users: dict[int, int] = {}
        self.known: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}  # of each known block
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.texts: list[list[bytes]] = [[] for _ in range(max_batch)]  # keys of the full blocks of each row's text
        self.told = [0] * max_batch  # of each row's blocks, the first ones: those that `grow` has returned
        self._asked: tuple[bytes, list[bytes]] = b"", []

    @property
    def available(self) -> int:
        return super().available + len(self.idle)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Blocks that rows own, known ones that no row owns, and all."""
        return self.blocks - len(self.free) - len(self.idle), len(self.idle), self.blocks

    def check(self, request: Request) -> None:
        """ValueError for a request whose longest text these blocks cannot hold, even if it were alone."""
        longest = len(request.prompt_token_ids) + request.limit
        if self.blocks_of(longest) > self.blocks:
            raise ValueError(
                f"prompt {request.index} may grow to {longest} tokens, which {self} cannot hold: "
                "lower its max_tokens, or raise kv_blocks"
            )

    def reserve(self, row: int, tokens: int, text: Sequence[int] = ()) -> bool:
        """As the base's; the row then owns the known blocks that `text` begins with.

        False: nothing has changed, there are too few blocks now.
        """
        keys, hits = self.find(text)
        wanted = self.blocks_of(tokens)
        if wanted - len(hits) > self.available - sum(block in self.idle for block in hits):
            return False
        for block in hits:
            self.idle.pop(block, None)
            self.users[block] = self.users.get(block, 0) + 1
        self.owned[row], self.texts[row] = hits, keys
        self.reserved[row], self.told[row] = wanted - len(hits), 0
        return True

    def find(self, text: Sequence[int]) -> tuple[list[bytes], list[int]]:
        """Return the keys of a text's full blocks, and the known blocks that it begins with.

        These end before the last token, whose logits somebody must compute. The keys of the newest text are remembered,
        since the head of the queue asks again at every step.
        """
        if self.identity is None:
            return [], []
        data = array("q", text).tobytes()
        if data != self._asked[0]:
            self._asked = data, self._extend([], data)
        keys = self._asked[1]
        found = (self.known.get(key, -1) for key in keys[: (len(text) - 1) // self.block_size])
        return keys, list(takewhile(lambda block: block >= 0, found))

    def claim(self, row: int, tokens: int) -> bool:
        """Reserve what the row lacks for its first `tokens` tokens. False: nothing has changed, there are too few."""
        more = self.blocks_of(tokens) - len(self.owned[row]) - self.reserved[row]
        if more > 0:
            if more > self.available:
                return False
            self.reserved[row] += more
        return True

    def room(self, row: int) -> int:
        """How many tokens the row's blocks hold, those included that it has reserved."""
        return (len(self.owned[row]) + self.reserved[row]) * self.block_size

    def grow(self, row: int, tokens: int) -> list[int]:
        """As the base's. New are all that no call has returned, those that were found included."""
        super().grow(row, tokens)
        told, self.told[row] = self.told[row], len(self.owned[row])
        return self.owned[row][told:]

    def extend(self, row: int, start: int, tokens: int) -> None:
        """Give the row the blocks of its first `tokens` tokens; those that fill from `start` on can be found.

        The step that is being planned will write them, and its own sequences may read them already: in each layer it
        writes the keys and values of all before any attends. Steps run in order. So each step that was planned must
        be launched, and if one fails, `forget` forgets what was never written.
        """
        super().grow(row, tokens)
        self._publish(row, start // self.block_size, tokens // self.block_size)

    def publish(self, row: int, text: Sequence[int], count: int) -> None:
        """Let others find the full blocks of a text of which the row has written `count` tokens."""
        if self.identity is not None:
            full, done = min(count, len(text)) // self.block_size, len(self.texts[row])
            rest = array("q", text[done * self.block_size : full * self.block_size])
            self.texts[row] = self._extend(self.texts[row], rest.tobytes())
            self._publish(row, done, full)

    def release(self, row: int) -> None:
        self.texts[row] = []
        super().release(row)  # from the end of a text to its beginning, which is thus forgotten last

    def forget(self) -> None:
        """Forget every text."""
        while self.idle:
            self._evict()

    def allocate(self) -> int:
        if not self.free and self.idle:
            self._evict()
        block = super().allocate()
        self.users[block] = 1
        return block

    def give_back(self, block: int) -> None:
        """Take a user from the block. After the last it is idle, or free if nobody could find it."""
        self.users[block] -= 1
        if self.users[block]:
            return
        del self.users[block]
        if block in self.keys:
            self.idle[block] = None
        else:
            super().give_back(block)

    def rename(self, source: int, target: int) -> None:
        """Row `source` is to be known as `target`, which is free."""
        super().rename(source, target)  # type: ignore[misc]  # of a manager whose rows have other names in time
        self.texts[target], self.texts[source] = self.texts[source], []
        self.told[target], self.told[source] = self.told[source], 0

    def _evict(self) -> None:
        """The idle block that was used least recently is as free as any."""
        block, _ = self.idle.popitem(last=False)
        del self.known[self.keys.pop(block)]
        super().give_back(block)

    def _extend(self, keys: list[bytes], data: bytes) -> list[bytes]:
        """Keys of a text's first blocks, and of the full ones in `data`, its next tokens, of 8 bytes each.

        A key holds the block's tokens, behind the digest of the key before, which stands for all tokens before them.
        """
        keys, size = list(keys), 8 * self.block_size
        for start in range(0, len(data) - size + 1, size):
            parent = blake2b(keys[-1] if keys else self.identity or b"", digest_size=16)
            keys.append(parent.digest() + data[start : start + size])
        return keys

    def _publish(self, row: int, start: int, stop: int) -> None:
        """Make blocks `start` to `stop` - 1 of the row findable, as far as their keys are known."""
        for block, key in zip(self.owned[row][start:stop], self.texts[row][start:stop], strict=False):
            if key not in self.known:
                self.known[key], self.keys[block] = block, key


class SharedRoom:
    """For a paged cache: which room a sequence gets when it is admitted, and what it finds there.

    preemption: whether it gets the room of its prompt and little more, since it may give its room back.
    """

    blocks: Any
    preemption: bool

    def admit(self, row: int, sequence: Any) -> bool:
        request, known = sequence.request, sequence.tokens
        longest = len(request.prompt_token_ids) + request.limit
        tokens = min(longest, len(known) + AHEAD) if self.preemption else longest
        text = () if sequence.params.prompt_logprobs is not None else known  # a hit would compute no logits
        if not self.blocks.reserve(row, tokens, text):
            return False
        sequence.cached = len(self.blocks.owned[row]) * self.blocks.block_size
        return True


AHEAD = 64  # tokens past its prompt for which a sequence gets room when it is admitted, where it may be preempted
