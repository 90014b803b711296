"""Builds a look-up by its name."""

from __future__ import annotations

from turbospec import UserError
from turbospec_engine.config import LOOKUPS, NGRAM, SUFFIX
from turbospec_engine.lookup.base import Lookup
from turbospec_engine.lookup.ngram import NGramLookup
from turbospec_engine.lookup.suffix import SuffixLookup


def build_lookup(name: str) -> Lookup:
    """The look-up of this name.

    Raises:
        UserError: there is none, or it needs a package that is not installed.
    """
    if name == NGRAM:
        return NGramLookup()
    if name == SUFFIX:
        return SuffixLookup()
    raise UserError(f"lookup={name!r} is unknown; use {' or '.join(map(repr, LOOKUPS))}")
