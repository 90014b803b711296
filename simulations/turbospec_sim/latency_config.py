"""Sources of a scenario's step times: given coefficients, a measured profile, or a roofline model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from turbospec.files.settings import Settings
from turbospec.files.suggestions import nearest
from turbospec.interface import FloatArray
from turbospec.models.profile import Profile
from turbospec_sim.hardware import GIGA, GPUS, MODELS, TERA, Gpu, ModelShape
from turbospec_sim.limits import MAX_COUNT, MAX_ENTRIES, SMALLEST, Count, Seconds
from turbospec_sim.profile_fit import fitted_coefficients
from turbospec_sim.step_time import StepTimes, floor_and_slope
from turbospec_sim.workload.files import InputFile

CurvePoint = tuple[Annotated[int, Field(ge=0, le=MAX_COUNT)], Seconds]
Dtype = Literal["float32", "float16", "bfloat16", "fp8", "int8", "int4"]
BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


Factor = Annotated[float, Field(gt=0, le=1000)]


class SpeedChange(Settings):
    """The machine's speed from a moment on: another tenant, a clock that is throttled. Factors on durations; 2 is twice
    as slow."""

    at_seconds: Seconds
    """Since the measured part began."""
    step: Factor = 1.0
    """On the whole step, host time included."""
    target: Factor = 1.0
    """On the target's pass, in addition."""
    drafter: Factor = 1.0
    """On drafting, in addition."""


class ColdStart(Settings):
    """First steps that take longer: compilation, caches, graph capture."""

    factor: float = Field(ge=1, le=1000)
    """On the time of the first step; its distance from 1 decays exponentially."""
    steps: float = Field(gt=0, le=MAX_COUNT)
    """Steps in which that distance falls to 1/e; for the drafter, steps in which it drafts."""


class Stalls(Settings):
    """Bursts of noise: several steps in a row that take longer."""

    probability: float = Field(gt=0, le=1)
    """That a stall begins with a step, outside of stalls."""
    mean_steps: float = Field(default=1.0, ge=1, le=MAX_COUNT)
    """Mean length; lengths are geometric."""
    factor: Factor
    """On the duration of its steps, host time included."""


class _Latency(Settings):
    """What all sources have in common. A given coefficient overrides the derived value."""

    host_seconds: Seconds | None = None
    """Host time of a step."""
    host_request_seconds: Seconds | None = None
    """Host time for each request of the step."""
    kv_token_seconds: Seconds | None = None
    """For each KV token that the target's pass reads."""
    attention_pair_seconds: Seconds | None = None
    """For each pair of a prompt token and a token that it attends to."""
    sampled_token_seconds: Seconds | None = None
    """For each token of the target's pass that a token is sampled after: those of decoding requests, drafts too."""
    prompt_seconds: Seconds = 0.0
    """For a target's pass with prompt tokens, which replays piecewise CUDA graphs where others replay a full one. In
    addition to `piecewise_seconds`, which such a pass takes where there are `graph_lengths`."""
    ungraphed_seconds: Seconds = 0.0
    """For a target's pass over more tokens than the largest of `graph_sizes`, whose kernels are launched one by one."""
    draft_start_seconds: Seconds | None = None
    draft_pass_seconds: Seconds | None = None
    draft_row_seconds: Seconds | None = None
    draft_kv_token_seconds: Seconds | None = None
    catch_up_token_seconds: Seconds | None = None
    """For each prompt token, or token of drafter KV lag, that the drafter computes."""
    catch_up_seconds: Seconds = 0.0
    """For a first drafter pass that computes such tokens: its shape may have no CUDA graph."""
    decision_seconds: Seconds = 0.0
    """For each step with a view."""
    cold_draft_seconds: Seconds = 0.0
    """Once, at the first draft: compilation, allocation and loading."""
    lookup_request_seconds: Seconds = 0.0
    """Host time of the look-up for each request of the step."""
    selection_seconds: Seconds = 0.0
    """For a target's pass over drafts of which the verified tokens were selected after drafting: CUDA graphs for
    unequal lengths, and the exchange of confidence and lengths with the GPU."""
    noise: float = Field(default=0.0, ge=0, le=10)
    """Standard deviation of the logarithm of the target's and of the drafter's time in a step (log-normal noise)."""
    speed: tuple[SpeedChange, ...] = Field(default=(), max_length=1000)
    """Changes of the machine's speed, each until the next; the usual speed before the first."""
    cold_target: ColdStart | None = None
    """First steps of the target."""
    cold_drafter: ColdStart | None = None
    """First steps of the drafter, beside `cold_draft_seconds`."""
    stalls: Stalls | None = None
    graph_sizes: tuple[Count, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Tokens to which CUDA graphs pad the target's pass; empty for no padding. A larger pass replays no graph."""
    graph_lengths: tuple[Annotated[int, Field(ge=0, le=MAX_COUNT)], ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Draft lengths with full CUDA graphs, which replay where every request verifies exactly that many draft tokens;
    empty where the mix of lengths makes no difference."""
    piecewise_seconds: Seconds = 0.0
    """Additional time of a step without a full CUDA graph, where there are `graph_lengths`."""
    piecewise_request_seconds: Seconds = 0.0
    """The same, for each request of the step."""

    @model_validator(mode="after")
    def _rising(self) -> _Latency:
        for name in ("graph_sizes", "graph_lengths"):
            values = list(getattr(self, name))
            if values != sorted(set(values)):
                raise ValueError(f"`{name}` must rise from one to the next")
        moments = [change.at_seconds for change in self.speed]
        if moments != sorted(set(moments)):
            raise ValueError("the `at_seconds` of `speed` must rise from one to the next")
        if self.ungraphed_seconds and not self.graph_sizes:
            raise ValueError("`ungraphed_seconds` needs `graph_sizes`")
        if not self.graph_lengths and (self.piecewise_seconds or self.piecewise_request_seconds):
            raise ValueError("`piecewise_seconds` and `piecewise_request_seconds` need `graph_lengths`")
        return self

    def _times(self, curve: FloatArray, derived: Mapping[str, float]) -> StepTimes:
        target, draft = ("kv_token", "attention_pair", "sampled_token"), ("draft_start", "draft_pass", "draft_row")
        names = ("host", "host_request", *target, *draft, "draft_kv_token", "catch_up_token")
        given = {name: getattr(self, f"{name}_seconds") for name in names}
        chosen = dict(derived) | {name: value for name, value in given.items() if value is not None}
        for name, cold in (("cold_target", self.cold_target), ("cold_drafter", self.cold_drafter)):
            if cold is not None:
                chosen |= {f"{name}_factor": cold.factor, f"{name}_steps": cold.steps}
        if (stalls := self.stalls) is not None:
            chosen |= {"stall_probability": stalls.probability, "stall_steps": stalls.mean_steps}
            chosen["stall_factor"] = stalls.factor
        changes = [(change.at_seconds, change.step, change.target, change.drafter) for change in self.speed]
        return StepTimes(
            curve=curve,
            changes=np.array(changes, np.float64).reshape(-1, 4),
            decision=self.decision_seconds,
            cold_draft=self.cold_draft_seconds,
            lookup_request=self.lookup_request_seconds,
            selection=self.selection_seconds,
            prompt=self.prompt_seconds,
            ungraphed=self.ungraphed_seconds,
            catch_up=self.catch_up_seconds,
            noise=self.noise,
            graph_sizes=self.graph_sizes,
            graph_lengths=self.graph_lengths,
            piecewise=self.piecewise_seconds,
            piecewise_request=self.piecewise_request_seconds,
            **chosen,
        )


class GivenLatency(_Latency):
    """Given coefficients; those left out are 0."""

    source: Literal["coefficients"]
    verify_floor_seconds: Seconds | None = None
    """Time to read the target's weights."""
    verify_token_seconds: Seconds | None = None
    """Time to compute one token in the target."""
    verify_combined: Literal["max", "plus"] = "max"
    """Whether the two overlap ("max") or add up ("plus")."""
    verify_curve: tuple[CurvePoint, ...] | None = Field(default=None, min_length=2, max_length=MAX_ENTRIES)
    """[tokens, seconds] points of the target's pass in place of floor and slope, rising from 0 tokens."""

    @model_validator(mode="after")
    def _one_form(self) -> GivenLatency:
        parts = (self.verify_floor_seconds, self.verify_token_seconds)
        if (self.verify_curve is None) == (parts == (None, None)) or (parts.count(None) == 1):
            raise ValueError("give either `verify_floor_seconds` and `verify_token_seconds` or `verify_curve`")
        if self.verify_curve is not None:
            tokens = [point[0] for point in self.verify_curve]
            if tokens[0] != 0 or tokens != sorted(set(tokens)):
                raise ValueError("the points of `verify_curve` must begin at 0 tokens and rise")
            if self.verify_curve[-1][1] < self.verify_curve[-2][1]:
                raise ValueError("the last two points of `verify_curve` must not fall: larger passes continue them")
        return self

    def step_times(self) -> StepTimes:
        """The coefficients of a step's time."""
        if self.verify_curve is not None:
            return self._times(np.array(self.verify_curve, np.float64).T.copy(), {})
        floor, token = self.verify_floor_seconds or 0.0, self.verify_token_seconds or 0.0
        return self._times(floor_and_slope(floor, token, combined=self.verify_combined), {})

    def profile(self) -> Profile | None:
        """Measured step times for policies that predict."""
        return None


class ProfiledLatency(_Latency):
    """Fitted to a profile by `turbospec profile`, which the policies get too."""

    source: Literal["profile"]
    file: InputFile

    def step_times(self) -> StepTimes:
        """Raises:
        UserError: the profile cannot be read.
        """
        return self._times(*fitted_coefficients(self.profile().samples))

    def profile(self) -> Profile:
        """Measured step times for policies that predict."""
        return Profile.load(self.file)


def _preset(known: dict[str, Any], what: str) -> BeforeValidator:
    def look_up(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in known:
            raise ValueError(f"no {what} is called `{value}`; {nearest(value, known)} (or write its figures)")
        return known[value]

    return BeforeValidator(look_up)


GpuChoice = Annotated[Gpu, _preset(GPUS, "GPU")]
ModelChoice = Annotated[ModelShape, _preset(MODELS, "model")]


class RooflineLatency(_Latency):
    """Derived from the models' shapes and the GPU's rates by the roofline model.

    A pass reads all weights and computes two operations for each weight and token; it takes the longer of the two times
    (Williams, Waterman, Patterson, CACM 52(4), 2009). Kernel launches and communication come on top: `host_seconds` for
    a step, `draft_overhead_seconds` for each drafter pass.
    """

    source: Literal["roofline"]
    gpu: GpuChoice
    gpus: Count = 1
    """GPUs that share the target and the drafter evenly (tensor parallelism)."""
    bandwidth_efficiency: float = Field(default=0.8, ge=SMALLEST, le=1)
    """Share of the peak bandwidth that is reached."""
    flops_efficiency: float = Field(default=0.6, ge=SMALLEST, le=1)
    """Share of the peak rate of operations that is reached."""
    target: ModelChoice
    target_dtype: Dtype = "bfloat16"
    kv_dtype: Dtype = "bfloat16"
    drafter: ModelChoice | None = None
    """None: drafting takes no time (prompt look-up)."""
    drafter_dtype: Dtype = "bfloat16"
    draft_overhead_seconds: Seconds = 0.0

    def step_times(self) -> StepTimes:
        """The coefficients of a step's time."""
        target, bandwidth = self.target, self.gpu.bandwidth_gb_s * GIGA * self.bandwidth_efficiency * self.gpus
        weights = target.layers * target.layer_parameters
        floor = (weights + target.head_parameters) * BYTES[self.target_dtype] / bandwidth
        # The output head runs only for tokens that are sampled after: one of a prompt. It is left out here.
        token = 2.0 * weights / self._flops(self.target_dtype)
        derived = {
            "kv_token": target.kv_values * BYTES[self.kv_dtype] / bandwidth,
            "attention_pair": 4.0 * target.layers * target.heads * target.head_dim / self._flops("bfloat16"),
        }
        if self.drafter is not None:
            model, width = self.drafter, BYTES[self.drafter_dtype]
            weights, rate = model.layers * model.layer_parameters, self._flops(self.drafter_dtype)
            derived |= {
                "draft_start": model.fusion_parameters * width / bandwidth,
                "draft_pass": (weights + model.head_parameters) * width / bandwidth + self.draft_overhead_seconds,
                "draft_row": 2.0 * (weights + model.head_parameters) / rate,
                "draft_kv_token": model.kv_values * BYTES[self.kv_dtype] / bandwidth,
                "catch_up_token": 2.0 * (weights + model.fusion_parameters) / rate,
            }
        return self._times(floor_and_slope(floor, token, combined="max"), derived)

    def profile(self) -> Profile | None:
        """Measured step times for policies that predict."""
        return None

    def _flops(self, dtype: Dtype) -> float:
        rate = self.gpu.tflops_16bit
        if BYTES[dtype] == 1.0 and self.gpu.tflops_8bit is not None:
            rate = self.gpu.tflops_8bit
        return rate * TERA * self.flops_efficiency * self.gpus


Latency = Annotated[GivenLatency | ProfiledLatency | RooflineLatency, Field(discriminator="source")]
