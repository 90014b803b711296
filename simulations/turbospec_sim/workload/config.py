"""The part of a scenario that says what is asked of the server."""

from __future__ import annotations

from pydantic import Field, model_validator

from turbospec.files.settings import Settings
from turbospec.models.logistic import MAX_CLASSES
from turbospec_sim.limits import MOST_REQUESTS, Count
from turbospec_sim.workload.acceptance import Acceptance
from turbospec_sim.workload.arrivals import Arrivals, ClosedLoop, TraceArrivals
from turbospec_sim.workload.lengths import Lengths


class RequestClass(Settings):
    """Requests of one kind; the controller is told the class unless `hidden`."""

    name: str
    share: float = Field(default=1.0, gt=0)
    """Part of the requests that are of this class, relative to the other classes' shares."""
    prompt_tokens: Lengths | None = None
    """Needed unless arrivals come from a trace."""
    output_tokens: Lengths | None = None
    cached_share: float = Field(default=0.0, ge=0, lt=1)
    """Part of each prompt that the prefix cache holds already, in whole blocks, and that is not computed."""
    cached_in_common: bool = False
    """Whether that part's blocks are held by all who use them, so that no request needs them for itself."""
    max_tokens: Count | None = None
    """What requests allow the server to emit; none: exactly their output, as with `ignore_eos`."""
    acceptance: Acceptance
    hidden: bool = False
    """Whether the controller is told class 0 whatever the class, as where users name none."""


class Workload(Settings):
    """Requests, their arrivals and their classes."""

    requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    """How many are measured; none: all of a trace."""
    warmup_requests: int = Field(default=0, ge=0, le=MOST_REQUESTS)
    """Served, all at once, before the measurement begins, as `vllm bench serve --num-warmups`."""
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
            raise ValueError("`requests` is missing; say how many are measured")
        for kind in self.classes:
            for field in ("prompt_tokens", "output_tokens"):
                if getattr(kind, field) is None:
                    raise ValueError(f"class `{kind.name}` has no `{field}`; only a trace can do without")
        return self

    @property
    def has_rates(self) -> bool:
        """Whether the load is given by a rate."""
        return not isinstance(self.arrivals, ClosedLoop | TraceArrivals)

    @property
    def concurrency(self) -> int | None:
        """Clients of a closed loop; None where requests arrive by the clock."""
        return self.arrivals.concurrency if isinstance(self.arrivals, ClosedLoop) else None
