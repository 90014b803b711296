"""Which requests hold KV blocks of the drafter, and when these go back to the target."""

from __future__ import annotations

from collections.abc import Sequence

from turbospec.interface import BoolArray
from turbospec_engine.blocks import BlockAllocator, PartAllocator
from turbospec_engine.request import Request

IDLE_STEPS = 100
"""Decode steps of a request without a draft of the drafter, after which its drafter KV blocks may be given back."""
IN_USE = 1 / 8
"""Of the requests that could draft, the mean share that did in the last `IDLE_STEPS` steps. Above this share new
requests get drafter KV blocks. Experiments of a controller that leaves the drafter off stay below it."""


class RequestBlocks:
    """Grows and frees the KV blocks of requests, in target and drafter.

    While the drafter is in use, a request is admitted with KV blocks for both, and grows in both. Otherwise it gets the
    target's alone, and the drafter's at its first draft. A request that has not drafted for long gives the drafter's
    back where blocks are lacking; its drafter KV lag is then its whole context.

    Args:
        target: the target's blocks.
        drafter: the drafter's; None for a drafter without a KV cache in blocks.
        gives_back: False: every request holds the drafter's blocks as long as the target's. The same holds where
            the drafter's blocks are not parts of the target's: giving them back would free nothing for the target.
    """

    def __init__(
        self, target: BlockAllocator, drafter: BlockAllocator | None = None, *, gives_back: bool = True
    ) -> None:
        self.target, self.drafter = target, drafter
        self.gives_back = gives_back and isinstance(drafter, PartAllocator)
        self.num_given_back = 0
        """Times that a request's drafter KV blocks were given back."""
        self.drafts_lack_blocks = False
        """Whether the last plan drafted for a request that found no drafter KV blocks: drafts precede admissions."""
        self._drafting_share = 1.0

    @property
    def tokens_with_drafter(self) -> int:
        """Tokens that the memory holds in target and drafter together."""
        blocks = self.target.num_blocks
        if isinstance(self.drafter, PartAllocator):
            parts = self.drafter.parts * self.drafter.block_size
            blocks = blocks * parts // (parts + self.target.block_size)
        return blocks * self.target.block_size

    @property
    def shared_kv_share(self) -> float:
        """Memory of a token in the drafter's KV cache as a share of the target's; 0 if the target never gets it."""
        if not self.gives_back or not isinstance(self.drafter, PartAllocator):
            return 0.0
        return self.target.block_size / (self.drafter.parts * self.drafter.block_size)

    @property
    def drafter_in_use(self) -> bool:
        return not self.gives_back or self._drafting_share > IN_USE

    def observe_plan(self, possible: BoolArray, planned: BoolArray) -> None:
        """Count the drafts of a step's plan.

        Args:
            possible: (n,) whether the drafter could draft for a request.
            planned: (n,) whether it is to.
        """
        self.drafts_lack_blocks = False
        if possible.any():
            self._drafting_share += (planned[possible].mean() - self._drafting_share) / IDLE_STEPS

    def fits(self, request: Request, num_tokens: int, *, drafting: bool) -> bool:
        """Whether a request can grow to `num_tokens` tokens, in the drafter too where it is `drafting`."""
        lacking = self.target.lacking(request.block_ids, num_tokens)
        if drafting and isinstance(self.drafter, PartAllocator):
            parts = self.drafter.lacking(request.draft_block_ids, num_tokens)
            lacking += self.drafter.blocks_to_divide(parts)
        return lacking <= self.target.num_free

    def grow(self, request: Request, num_tokens: int, *, drafting: bool) -> bool:
        """Give a request blocks for `num_tokens` tokens, in the drafter too where it is `drafting`.

        Returns:
            False, with nothing changed, where too few blocks are free.
        """
        if not self.fits(request, num_tokens, drafting=drafting):
            return False
        self.target.grow(request.block_ids, num_tokens)
        if drafting and self.drafter is not None:
            self.drafter.grow(request.draft_block_ids, num_tokens)
        return True

    def fits_new(self, request: Request) -> bool:
        """Whether blocks for the prompt of a new request are free."""
        return self.fits(request, request.num_tokens, drafting=self._admits_with_drafter(request))

    def _admits_with_drafter(self, request: Request) -> bool:
        """Whether a new request needs room for its prompt in the drafter too: one that never drafts does not, unless
        the drafter's blocks are reserved."""
        return request.params.max_draft != 0 or not self.gives_back

    def admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Give a new request all of its prompt's blocks, so that a prefill that has begun never waits for any.

        While the drafter is not in use, its blocks stay free, for the next draft of any request. The only request may
        take the drafter's memory.

        Returns:
            False where too few blocks are free, or running requests are to draft first. The request then has no blocks;
            drafter blocks of running requests that are idle may have been given back.
        """
        if running and self.drafts_lack_blocks and isinstance(self.drafter, PartAllocator):
            return False
        drafting = self._admits_with_drafter(request)
        while not self.grow(request, request.num_tokens, drafting=drafting):
            if not self.give_back_idle(running):
                return not running and self.grow(request, request.num_tokens, drafting=False)
        if self.drafter is not None and not self.drafter_in_use:
            self.drafter.shrink(request.draft_block_ids, 0)
        return True

    def give_back_idle(self, running: Sequence[Request]) -> bool:
        """Free the drafter KV blocks of the request that has not drafted for longest; False where none is idle."""
        idle = [r for r in running if r.draft_block_ids and r.decode_steps - r.drafted_at >= IDLE_STEPS]
        if not self.gives_back or not idle:
            return False
        self.give_back(max(idle, key=lambda request: request.decode_steps - request.drafted_at))
        return True

    def give_back(self, request: Request) -> None:
        """Free a request's drafter KV blocks."""
        if self.drafter is not None:
            self.drafter.shrink(request.draft_block_ids, 0)
        request.draft_computed = 0
        self.num_given_back += 1

    def trim(self, request: Request) -> None:
        """Free the blocks that only rejected drafts needed."""
        self.target.shrink(request.block_ids, request.computed)
        if self.drafter is not None:
            self.drafter.shrink(request.draft_block_ids, request.computed)

    def free(self, request: Request) -> None:
        """Free all of a request's blocks."""
        self.target.shrink(request.block_ids, 0)
        if self.drafter is not None:
            self.drafter.shrink(request.draft_block_ids, 0)
        request.computed = request.draft_computed = 0
