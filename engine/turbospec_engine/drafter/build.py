"""The drafter that a configuration names."""

from __future__ import annotations

from turbospec import UserError
from turbospec_engine.blocks import BlockAllocator, PartAllocator
from turbospec_engine.config import EngineConfig
from turbospec_engine.dflash_head import DFlashHead
from turbospec_engine.drafter.base import Drafter
from turbospec_engine.drafter.dflash import DFlashDrafter
from turbospec_engine.drafter.draft_model import DraftModel
from turbospec_engine.drafter.eagle3 import Eagle3Drafter
from turbospec_engine.drafter.lookup import LookupDrafter
from turbospec_engine.drafter.parallel import ParallelDrafter
from turbospec_engine.eagle3_head import Eagle3Head
from turbospec_engine.kv_store import KVMemory, drafter_parts
from turbospec_engine.lookup import build_lookup
from turbospec_engine.models import Models
from turbospec_engine.parallel_head import ParallelHead
from turbospec_engine.runner import kv_memory, kv_shape


def build_drafter(
    config: EngineConfig, models: Models, memory: KVMemory, blocks: BlockAllocator
) -> tuple[Drafter | None, BlockAllocator | None]:
    """The drafter of one engine, None without speculation, and its KV blocks, None where it has no KV cache.

    Its blocks are parts of the target's where their shapes allow it. Otherwise its KV cache has memory of its own, with
    as many blocks as the target's.

    Args:
        config: of the engine.
        models: of the engine.
        memory: of the target's KV cache.
        blocks: the target's.

    Raises:
        UserError: the models were loaded without the draft model, or the drafter needs a package that is not installed.
    """
    if config.drafter is None:
        return None, None
    if config.drafter_is_lookup:
        return LookupDrafter(build_lookup(str(config.drafter))), None
    model = models.drafter
    if model is None:
        raise UserError(f"drafter={str(config.drafter)!r}, but the models have no draft model; load them with it")
    shape = kv_shape(model)
    parts = drafter_parts(memory.shape, shape, config.block_size)
    if parts is None:
        memory = kv_memory(model, blocks.num_blocks, config.block_size)
        draft_blocks = BlockAllocator(blocks.num_blocks, config.block_size)
    else:
        draft_blocks = PartAllocator(blocks, *parts)
    store = memory.store(shape)
    # As many as in the target's largest pass: what drafters compute in every step takes no second pass.
    most = config.max_num_batched_tokens + config.max_num_seqs * config.max_draft
    sizes = {
        "num_blocks": blocks.num_blocks,
        "block_size": config.block_size,
        "max_draft": config.max_draft,
        "max_pass_tokens": most,
    }
    if isinstance(model, Eagle3Head):
        drafter = Eagle3Drafter(model, models.target, store, **sizes)
    elif isinstance(model, ParallelHead):
        drafter = ParallelDrafter(model, models.target, store, **sizes)
    elif isinstance(model, DFlashHead):
        drafter = DFlashDrafter(model, models.target, store, **sizes)
    else:
        drafter = DraftModel(model, store, models.vocab_size, max_pass_tokens=most)
    return drafter, draft_blocks
