"""Upper limits of a scenario's numbers: plausible values that the simulator's arrays can hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_COUNT = 10**9
"""Tokens of a request or of a step, and other counts."""
MAX_CACHE_TOKENS = 10**12
"""Tokens of a KV cache."""
MAX_REQUESTS = 10**8
"""Requests of a run; each takes 40 bytes of memory."""
MAX_BATCH_SLOTS = 10**6
"""Requests that run at once."""
MAX_SEED = 2**53

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
