"""Allocation of KV blocks."""

from __future__ import annotations

from collections.abc import MutableSequence


class BlockAllocator:
    """Allocates fixed-size KV blocks by id, last freed first.

    Args:
        num_blocks: blocks in all.
        block_size: tokens in a block.
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

    def lacking(self, block_ids: MutableSequence[int], num_tokens: int) -> int:
        """Blocks that a request's block list lacks to hold `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(block_ids))

    def grow(self, block_ids: MutableSequence[int], num_tokens: int) -> bool:
        """Extend a request's block list in place to hold `num_tokens` tokens.

        Returns:
            False, with nothing changed, where too few blocks are free.
        """
        lacking = self.lacking(block_ids, num_tokens)
        if lacking > self.num_free:
            return False
        for _ in range(lacking):
            block = self._take()
            self._used.add(block)
            block_ids.append(block)
        return True

    def shrink(self, block_ids: MutableSequence[int], num_tokens: int) -> None:
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
            self._put_back(block)

    def _take(self) -> int:
        return self._free.pop()

    def _put_back(self, block: int) -> None:
        self._free.append(block)


class PartAllocator(BlockAllocator):
    """Allocates a drafter's KV blocks, each a part of one of the target's.

    A block of the target is divided when no part is free, and given back as soon as all its parts are free. Part p of
    block b has the id p · (blocks of the target) + b.

    Args:
        target: allocates the target's blocks.
        parts: drafter's blocks in a block of the target.
        block_size: tokens of the drafter in a part.
    """

    def __init__(self, target: BlockAllocator, parts: int, block_size: int) -> None:
        super().__init__(0, block_size)
        self.num_blocks = parts * target.num_blocks
        self.parts = parts
        self._target = target
        self._divided: dict[int, list[int]] = {}
        """The block list of each divided block: itself."""
        self._spare: dict[int, list[int]] = {}
        """Free parts of each divided block that has any."""

    @property
    def num_spare(self) -> int:
        """Free parts of divided blocks."""
        return len(self._divided) * self.parts - len(self._used)

    @property
    def num_free(self) -> int:
        return self._target.num_free * self.parts + self.num_spare

    def blocks_to_divide(self, num_parts: int) -> int:
        """Blocks of the target that `num_parts` more parts would take."""
        return -(-max(0, num_parts - self.num_spare) // self.parts)

    def _take(self) -> int:
        if not self._spare:
            taken: list[int] = []
            self._target.grow(taken, 1)
            self._divided[taken[0]] = taken
            self._spare[taken[0]] = [part * self._target.num_blocks + taken[0] for part in range(self.parts)]
        block, spare = next(iter(self._spare.items()))
        part = spare.pop()
        if not spare:
            del self._spare[block]
        return part

    def _put_back(self, block: int) -> None:
        whole = block % self._target.num_blocks
        spare = self._spare.setdefault(whole, [])
        spare.append(block)
        if len(spare) == self.parts:
            del self._spare[whole]
            self._target.shrink(self._divided.pop(whole), 0)
