"""The look-up that a name stands for."""

from __future__ import annotations

from turbospec_engine.config import NGRAM, SUFFIX
from turbospec_engine.lookup.base import Lookup
from turbospec_engine.lookup.ngram import NGramLookup
from turbospec_engine.lookup.suffix import SuffixLookup


def build_lookup(name: str) -> Lookup | None:
    """The look-up of this name; None where it is the name of none.

    Raises:
        UserError: the look-up needs a package that is not installed.
    """
    made = {NGRAM: NGramLookup, SUFFIX: SuffixLookup}.get(name)
    return None if made is None else made()
