"""Drafters; `base.Drafter` is the interface of one."""

from turbospec_engine.drafter.base import Drafter
from turbospec_engine.drafter.build import build_drafter
from turbospec_engine.drafter.draft_model import DraftModel
from turbospec_engine.drafter.ngram import NGramDrafter

__all__ = ["DraftModel", "Drafter", "NGramDrafter", "build_drafter"]
