"""Which blocks of a pool are free, and which row owns the others: host code that knows no tensor. Chapter 3."""

from __future__ import annotations


class BlockManager:
    """Blocks of `block_size` tokens. A row reserves all that it may need, and takes a block when it needs one.

    The reservation is what makes growth safe: a sequence that was admitted never finds the pool empty.
    owned: the blocks of each row, in order. reserved: how many blocks each row may yet take.
    """

    def __init__(self, blocks: int, block_size: int, max_batch: int) -> None:
        self.blocks, self.block_size = blocks, block_size
        self.free = list(range(blocks))[::-1]  # a stack: taking and giving back cost the same however many there are
        self.owned: list[list[int]] = [[] for _ in range(max_batch)]
        self.reserved = [0] * max_batch

    def __str__(self) -> str:
        return f"{self.blocks} blocks of {self.block_size}"

    @property
    def available(self) -> int:
        """How many blocks no row owns or has reserved."""
        return len(self.free) - sum(self.reserved)

    def blocks_of(self, tokens: int) -> int:
        """Return how many blocks hold so many tokens."""
        return -(-tokens // self.block_size)

    def reserve(self, row: int, tokens: int) -> bool:
        """Reserve the blocks of up to `tokens` tokens for a row that is free. False if there are too few now."""
        wanted = self.blocks_of(tokens)
        if wanted > self.available:
            return False
        self.reserved[row] = wanted
        return True

    def grow(self, row: int, tokens: int) -> list[int]:
        """Give the row the blocks of its first `tokens` tokens, of those it has reserved; return the new ones."""
        had = len(self.owned[row])
        while len(self.owned[row]) * self.block_size < tokens:
            if not self.reserved[row]:
                raise RuntimeError(f"row {row} grows to {tokens} tokens, past what it has reserved")
            self.reserved[row] -= 1
            self.owned[row].append(self.allocate())
        return self.owned[row][had:]

    def release(self, row: int) -> None:
        """Take back everything that the row owns or has reserved."""
        for block in reversed(self.owned[row]):
            self.give_back(block)
        self.owned[row], self.reserved[row] = [], 0

    def allocate(self) -> int:
        """Take a free block."""
        return self.free.pop()

    def give_back(self, block: int) -> None:
        """Make a block free again."""
        self.free.append(block)
