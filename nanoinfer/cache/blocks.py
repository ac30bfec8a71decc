"""Which blocks of a pool are free: host code that knows no tensor. Chapter 3."""

from __future__ import annotations

NULL = 0  # the null block, which no row owns: padding writes there, and unused table entries name it


class BlockAllocator:
    """Blocks 1..blocks-1, each free or owned. Allocating and freeing one takes the same time however many there are."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks - 1, NULL, -1))  # a stack; the lowest number comes first
        self.owned = bytearray(blocks)

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
