"""Which blocks of a pool are free, and which row owns the others: host code that knows no tensor. Chapter 3."""

from __future__ import annotations

from collections.abc import Sequence

NULL = 0  # the null block, which no row owns: padding writes there, and unused table entries name it


class BlockAllocator:
    """Blocks 1..blocks-1, each free or owned. Allocating and freeing one takes the same time however many there are."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks - 1, NULL, -1))  # a stack; the lowest number comes first
        self.owned = [0] * blocks  # 1 for a block that a row owns

    @property
    def free_blocks(self) -> int:
        """Blocks that no row owns, not counting the null block."""
        return len(self._free)

    def allocate(self) -> int:
        """A free block. RuntimeError where there is none: admission must see to it that this cannot happen."""
        if not self._free:
            raise RuntimeError("no free block: more was admitted than the pool can hold")
        block = self._free.pop()
        self.owned[block] = 1
        return block

    def free(self, block: int) -> None:
        """Give a block back. ValueError for one that is not owned, the null block included."""
        if not 0 <= block < len(self.owned) or not self.owned[block]:
            raise ValueError(f"block {block} is not owned, so it cannot be freed")
        self.owned[block] = 0
        self._free.append(block)


class BlockManager:
    """Which row owns which blocks: a row reserves blocks ahead, takes them as it grows, and then those that are left.

    Within its reservation growth never fails. owned: each row's blocks, in order. reservation: blocks that each row may
    come to own. reserved: of these, how many are not taken yet. begun: what tables on a device do not know yet.
    """

    def __init__(self, blocks: int, block_size: int, max_batch: int) -> None:
        self.block_size, self.allocator = block_size, BlockAllocator(blocks)
        self.owned: list[list[int]] = [[] for _ in range(max_batch)]
        self.reservation = [0] * max_batch
        self.reserved = 0
        self.begun: list[tuple[int, int, int]] = []  # row, column of its table, block

    def __str__(self) -> str:
        return f"{self.allocator.blocks - 1} blocks of {self.block_size}"

    @property
    def available(self) -> int:
        """Blocks that no row owns or has reserved."""
        return self.allocator.free_blocks - self.reserved

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def fits(self, tokens: int) -> bool:
        """Whether a row of up to `tokens` tokens could run, if it were alone."""
        return self.blocks_of(tokens) < self.allocator.blocks

    def reserve(self, row: int, tokens: int, text: Sequence[int] = ()) -> bool:
        """Reserve the blocks of up to `tokens` tokens for `row`, which is free. False, and nothing done: too many.

        text: what it begins with, for managers whose blocks may hold some of that already; the row then owns these.
        """
        wanted = self.blocks_of(tokens)
        if wanted > self.available:
            return False
        self.reservation[row] = wanted
        self.reserved += wanted
        return True

    def can_grow(self, row: int, length: int) -> bool:
        """Whether there are blocks for a text of this length."""
        return self.blocks_of(length) - self.reservation[row] <= self.available

    def grow(self, row: int, length: int) -> int:
        """Give the row the blocks for a text of this length, its reserved ones first; how many tokens they hold."""
        owned = self.owned[row]
        while len(owned) * self.block_size < length:
            if len(owned) < self.reservation[row]:
                self.reserved -= 1
            else:
                self.reservation[row] += 1
            owned.append(self.allocator.allocate())
            self.begun.append((row, len(owned) - 1, owned[-1]))
        return len(owned) * self.block_size

    def truncate(self, row: int, length: int) -> None:
        """Take back the row's blocks past a text of this length. They stay reserved for it."""
        owned = self.owned[row]
        while (len(owned) - 1) * self.block_size >= length:
            self.allocator.free(owned.pop())
            self.reserved += 1
        self.begun = [each for each in self.begun if each[0] != row or each[1] < len(owned)]

    def unreserve(self, row: int, blocks: int) -> None:
        """Leave the row a reservation of so many blocks, or of those that it owns: others may have the rest."""
        kept = max(blocks, len(self.owned[row]))
        self.reserved -= self.reservation[row] - kept
        self.reservation[row] = kept

    def release(self, row: int, text: Sequence[int] = ()) -> None:
        """Take back the row's blocks and its reservation. text: its tokens, as far as they are known and written."""
        self.truncate(row, 0)
        self.reserved -= self.reservation[row]
        self.reservation[row] = 0

    def clear(self) -> None:
        """Everything is free again, as new: no row owns or has reserved anything."""
        for row in range(len(self.owned)):
            self.release(row)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows `sources` are to be known as `targets`, which are free."""
        for source, target in zip(sources, targets, strict=True):
            self.owned[target], self.owned[source] = self.owned[source], []
            self.reservation[target], self.reservation[source] = self.reservation[source], 0
        to = dict(zip(sources, targets, strict=True))
        self.begun = [(to.get(row, row), column, block) for row, column, block in self.begun]
