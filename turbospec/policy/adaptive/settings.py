"""The settings of `adaptive` in a policy file."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Literal

from pydantic import Field

from turbospec.policy.config import CEILING, DraftLength, PolicyConfig


class AdaptiveSettings(PolicyConfig, ABC):
    """TurboSpec's own policy."""

    policy: Literal["adaptive"]
    max_draft: DraftLength | None = Field(default=None, description="Longest draft; none: the engine's maximum.")
    probe_share: float = Field(
        default=0.01,
        ge=0,
        le=0.2,
        description="Share of step time that experiments may lose, as predicted; 0: three steps at the start alone.",
    )
    first_token_weight: float = Field(
        default=8.0,
        ge=0,
        le=1e6,
        json_schema_extra=CEILING,
        description="How much more a second is worth to a request without its first token than to one that decodes.",
    )
    tpot_slo_ms: Annotated[float, Field(gt=0, le=1e7, json_schema_extra=CEILING)] | None = Field(
        default=None,
        description="TPOT objective: drafts add no more to a step than each request is ahead of it or gains.",
    )
    ttft_slo_ms: Annotated[float, Field(gt=0, le=1e7, json_schema_extra=CEILING)] | None = Field(
        default=None,
        description="P99 TTFT objective: drafts add less to steps while more than one first token in 100 is late.",
    )
