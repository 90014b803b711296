"""Numbers that a scenario may give: plausible ones, and none that the simulator's arrays cannot hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST = 10**9
"""Tokens of a text or of a step, and whatever else is counted."""
MOST_CACHED = 10**12
"""Tokens of a KV cache."""
MOST_REQUESTS = 10**8
"""Of a run; each takes 40 bytes while it lasts."""
MOST_PLACES = 10**6
"""Requests served at once."""
MOST_SEED = 2**53

Count = Annotated[int, Field(ge=1, le=MOST)]
