"""Limits of a scenario's numbers: plausible values that the simulator's arrays can hold, and whose products, too."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_COUNT = 10**9
"""Tokens of a request or of a step, and other counts."""
MAX_CACHE_TOKENS = 10**12
"""Tokens of a KV cache."""
MAX_REQUESTS = 10**7
"""Requests of a run; each takes about 100 bytes of memory while they are drawn."""
MAX_BATCH_SLOTS = 10**6
"""Requests that run at once."""
MAX_SEED = 2**53
MAX_ENTRIES = 10_000
"""Entries of a list."""
MAX_SECONDS = 1e6
"""Time of a part of a step, or of an arrival's way to the queue."""
LAST_MOMENT = 1e12
"""Simulated seconds after which a run fails: beyond, a float64 clock no longer resolves the length of a step."""
SMALLEST, LARGEST = 1e-9, 1e12
"""Of a positive real number without a unit of its own: rates of a GPU, shares, limits of an objective."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Moment = Annotated[float, Field(ge=0, le=LAST_MOMENT)]
Rate = Annotated[float, Field(ge=1e-6, le=1e9)]
"""Requests/s."""
