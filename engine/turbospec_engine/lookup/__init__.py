"""Look-ups, which draft from earlier text; `base` holds the interface. Public: `__all__`."""

from turbospec_engine.lookup.base import Found, Lookup
from turbospec_engine.lookup.build import build_lookup
from turbospec_engine.lookup.ngram import NGramLookup
from turbospec_engine.lookup.suffix import SuffixLookup

__all__ = ["Found", "Lookup", "NGramLookup", "SuffixLookup", "build_lookup"]
