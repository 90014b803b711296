"""Allocation of KV blocks."""

from __future__ import annotations


class BlockAllocator:
    """Allocates fixed-size KV blocks by id, last freed first.

    Target and drafter have tensors of their own but share the ids: block b of a request holds the same tokens in both.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def grow(self, block_ids: list[int], num_tokens: int) -> bool:
        """Extend a request's block list in place to hold `num_tokens` tokens.

        Returns:
            False, with nothing changed, where too few blocks are free.
        """
        lacking = self.blocks_for(num_tokens) - len(block_ids)
        if lacking > len(self._free):
            return False
        for _ in range(lacking):
            block = self._free.pop()
            self._used.add(block)
            block_ids.append(block)
        return True

    def shrink(self, block_ids: list[int], num_tokens: int) -> None:
        """Free a request's blocks, in place, past those that `num_tokens` tokens need.

        Raises:
            ValueError: a block is not in use (a double free).
        """
        keep = self.blocks_for(num_tokens)
        while len(block_ids) > keep:
            block = block_ids.pop()
            if block not in self._used:
                raise ValueError(f"KV block {block} is freed twice")
            self._used.remove(block)
            self._free.append(block)
