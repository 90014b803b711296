"""The schema of a scenario's workload."""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from turbospec.files.settings import Settings
from turbospec.models.logistic import MAX_CLASSES
from turbospec_sim.limits import MAX_REQUESTS, Count, Positive
from turbospec_sim.workload.acceptance import Acceptance
from turbospec_sim.workload.arrivals import Arrivals, BurstArrivals, ClosedLoop, DayArrivals, TraceArrivals
from turbospec_sim.workload.lengths import Lengths
from turbospec_sim.workload.repeats import Repeats


class RequestClass(Settings):
    """Requests of one kind; views have the class's id unless it is `hidden`."""

    name: str
    share: Positive = 1.0
    """Share of the requests that are of this class, relative to the other classes' shares."""
    prompt_tokens: Lengths | None = None
    """Required unless arrivals are a trace."""
    output_tokens: Lengths | None = None
    cached_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of each prompt that the prefix cache holds, in whole KV blocks; it is not computed."""
    cached_in_common: bool = False
    """Whether the requests of the class share those KV blocks: they are held once, for the longest of the running
    requests, and take no memory while none runs."""
    max_tokens: Count | None = None
    """Limit of the output that requests send, at which a longer output is cut; None: exactly their output, as with
    `ignore_eos`."""
    acceptance: Acceptance
    """Of the drafter's tokens."""
    lookup: Repeats | None = None
    """What a look-up finds in the outputs; None: nothing. An engine offers a look-up where a class has one."""
    hidden: bool = False
    """Whether views have class id 0 in place of the class, as where users name no service class."""


class Workload(Settings):
    """Requests, their arrivals and their classes."""

    requests: int | None = Field(default=None, ge=1, le=MAX_REQUESTS)
    """Measured requests; None: all of a trace."""
    warmup_requests: int = Field(default=0, ge=0, le=MAX_REQUESTS)
    """Requests that are served, all at once, before the measured ones, as `vllm bench serve --num-warmups`."""
    arrivals: Arrivals
    classes: tuple[RequestClass, ...] = Field(min_length=1, max_length=MAX_CLASSES)

    @model_validator(mode="after")
    def _complete(self) -> Workload:
        names = [kind.name for kind in self.classes]
        if len(set(names)) < len(names):
            raise ValueError("two classes have the same name")
        if isinstance(self.arrivals, TraceArrivals):
            if self.warmup_requests:
                raise ValueError("a trace has no warm-up requests; leave `warmup_requests` out")
            return self
        if self.requests is None:
            raise ValueError("`requests` is missing; give the number of measured requests")
        for kind in self.classes:
            for field in ("prompt_tokens", "output_tokens"):
                if getattr(kind, field) is None:
                    raise ValueError(f"class `{kind.name}` has no `{field}`; only a trace needs none")
        return self

    @property
    def has_rates(self) -> bool:
        """Whether a request rate gives the load."""
        return not isinstance(self.arrivals, ClosedLoop | TraceArrivals)

    @property
    def period_seconds(self) -> float | None:
        """Of arrivals whose rate varies; None for others."""
        return self.arrivals.period_seconds if isinstance(self.arrivals, BurstArrivals | DayArrivals) else None

    def whole_period(self, rate: float) -> int:
        """Requests that arrive in one period at a mean rate, in requests/s; 0 where the rate does not vary."""
        return math.floor(rate * (self.period_seconds or 0.0))

    @property
    def concurrency(self) -> int | None:
        """Clients of a closed loop; None for other arrivals."""
        return self.arrivals.concurrency if isinstance(self.arrivals, ClosedLoop) else None
