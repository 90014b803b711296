"""The drafter that a configuration names."""

from __future__ import annotations

from turbospec import UserError
from turbospec_engine.config import EngineConfig
from turbospec_engine.drafter.base import Drafter
from turbospec_engine.drafter.draft_model import DraftModel
from turbospec_engine.drafter.eagle3 import Eagle3Drafter
from turbospec_engine.drafter.lookup import LookupDrafter
from turbospec_engine.drafter.parallel import ParallelDrafter
from turbospec_engine.eagle3_head import Eagle3Head
from turbospec_engine.lookup import build_lookup
from turbospec_engine.models import Models
from turbospec_engine.parallel_head import ParallelHead


def build_drafter(config: EngineConfig, models: Models, num_blocks: int) -> Drafter | None:
    """The drafter of one engine, whose KV cache has `num_blocks` blocks; None without speculation.

    Raises:
        UserError: the models were loaded without the draft model, or the drafter needs a package that is not installed.
    """
    if config.drafter is None:
        return None
    if config.drafter_is_lookup:
        return LookupDrafter(build_lookup(str(config.drafter)))
    if models.drafter is None:
        raise UserError(f"drafter={str(config.drafter)!r}, but the models have no draft model; load them with it")
    sizes = {"num_blocks": num_blocks, "block_size": config.block_size, "max_draft": config.max_draft}
    if isinstance(models.drafter, Eagle3Head):
        return Eagle3Drafter(models.drafter, models.target, **sizes)
    if isinstance(models.drafter, ParallelHead):
        return ParallelDrafter(models.drafter, models.target, **sizes)
    return DraftModel(models.drafter, num_blocks, config.block_size, models.vocab_size)
