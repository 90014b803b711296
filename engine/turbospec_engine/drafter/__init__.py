"""Drafters; `base` holds the interface and the rules for a new one. Public: `__all__`."""

from turbospec_engine.drafter.base import Drafter
from turbospec_engine.drafter.build import build_drafter
from turbospec_engine.drafter.dflash import DFlashDrafter
from turbospec_engine.drafter.draft_model import DraftModel
from turbospec_engine.drafter.eagle3 import Eagle3Drafter
from turbospec_engine.drafter.lookup import LookupDrafter
from turbospec_engine.drafter.parallel import ParallelDrafter

__all__ = [
    "DFlashDrafter",
    "DraftModel",
    "Drafter",
    "Eagle3Drafter",
    "LookupDrafter",
    "ParallelDrafter",
    "build_drafter",
]
