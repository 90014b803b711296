# pyright: basic, reportMissingImports=false
"""vLLM's schedulers, with draft lengths that the controller chooses for every step and every request.

Methods of vLLM are extended, none is replaced: after a step is scheduled, the drafts that it verifies may be shortened
and the length of those that it makes is set; drafts are cut to their request's length before a step that verifies them
is scheduled, and every output is reported. All that TurboSpec adds runs within `_Adaptive._measured`, which lets no
error through to vLLM: a step in which it fails drafts as in vLLM without TurboSpec.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from pathlib import Path

import numpy as np
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from turbospec.controller import Controller, ControllerStats
from turbospec.errors import UserError
from turbospec.hosts.vllm.scheduler.lookups import Lookups
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.outputs import accepted, verified
from turbospec.hosts.vllm.scheduler.ruled_out import RULED_OUT_ATTRIBUTE, cut_before, cut_within, drafts_under_grammar
from turbospec.hosts.vllm.scheduler.views import EngineLimits, Queue
from turbospec.hosts.vllm.shared.drafter_orders import (
    DRAFTS_ATTRIBUTE,
    DRAFTS_EXPECTED_ATTRIBUTE,
    ORDERS_ATTRIBUTE,
    DrafterOrders,
)
from turbospec.hosts.vllm.shared.graph_lengths import graph_lengths, graph_schedule, lacking_graphs
from turbospec.hosts.vllm.shared.lookup_drafts import LOOKUP_DRAFTS_ATTRIBUTE, LookupDraft
from turbospec.hosts.vllm.shared.metrics_file import METRICS_FILE_VARIABLE, MetricsFileWriter, file_of_engine
from turbospec.hosts.vllm.shared.settings import Settings, read_settings
from turbospec.hosts.vllm.shared.step_times import STEP_ATTRIBUTE, TIMES_ATTRIBUTE
from turbospec.hosts.vllm.shared.support import (
    HEAD_METHODS,
    LOOK_UP_METHODS,
    drafts_in_one_pass,
    drafts_late,
    kept_tokens,
)
from turbospec.observability.metrics import HostSeconds, StepMetrics
from turbospec.observability.trace import DecisionTrace

log = logging.getLogger("turbospec")

MARK = "_turbospec_fetches_drafts_where_needed"
EMPTY_QUEUE = Queue()
MAX_FAULTS = 100
"""Faults of one burst, after which TurboSpec stays off."""
HEALTHY_STEPS = 200
"""Steps without a fault that end a burst."""


class _Measured:
    """A context that measures the time that TurboSpec takes, and keeps its errors from vLLM.

    A step enters it several times, one after the other. `contextlib.contextmanager` takes three times as long.

    Args:
        seconds: to which the time is added.
        field: of them.
        fail: called after an error.
    """

    __slots__ = ("_began", "_fail", "_field", "_seconds")

    def __init__(self, seconds: HostSeconds, field: str, fail) -> None:
        self._seconds, self._field, self._fail = seconds, field, fail
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind, error, trace) -> bool:
        failed = isinstance(error, Exception)
        if failed:
            self._fail()
        spent = time.perf_counter() - self._began
        setattr(self._seconds, self._field, getattr(self._seconds, self._field) + spent)
        return failed


class _Adaptive(Scheduler):
    """Shared by both schedulers."""

    _loop: VllmLoop | None = None

    def __init__(self, vllm_config, *args, **kwargs) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._controller: Controller | None = None
        self._trace: DecisionTrace | None = None
        self._seconds = HostSeconds()
        self._measured = _Measured(self._seconds, "ours", self._fail)
        self._overlapped = _Measured(self._seconds, "overlapped", self._fail)
        """While the workers run a step."""
        self._metrics_file: MetricsFileWriter | None = None
        self._faults = 0
        """Of the present burst."""
        self._healthy_steps = 0
        self._began = 0.0
        self._was_paused = False
        """Whether the engine was paused since the last step; requests may have stayed in the batch."""
        self._lengths: dict[str, int] = {}
        """K of each request in the last scheduled step, of the drafter's drafts."""
        self._lookup_lengths: dict[str, int] = {}
        """Longest draft of the look-up for each request in the last scheduled step, where it drafts."""
        self._looked_up: dict[str, LookupDraft] = {}
        """Drafts of the look-up for the step that is being scheduled."""
        self._ruled_out: dict[str, int] = {}
        """Lengths of the drafts that a grammar has cut, for the step that is scheduled next."""
        self._under_grammar = True
        """Whether a request of the last scheduled step may have a grammar."""
        self.must_fetch_drafts = True
        """Whether the engine core must ask for the drafts of the last scheduled step: its output does not carry them,
        or its drafter passes run only then."""
        # The server has loaded its model by now. A file that was there when it started may be gone.
        try:
            self._loop = self._build_loop(vllm_config)
            fetch_drafts_only_where_needed()
        except UserError as error:
            self._loop = None
            log.warning("TurboSpec is off, vLLM keeps its own draft length: %s", error)
        except Exception:
            self._loop = None
            log.exception("TurboSpec cannot start and is off; vLLM keeps its own draft length")
        self._stats = ControllerStats() if self._controller is None else self._controller.stats
        self._stats.active = self._loop is not None
        with self._measured:
            self._show_metrics(vllm_config.parallel_config.data_parallel_index)

    def _build_loop(self, vllm_config) -> VllmLoop | None:
        speculation, length_table = vllm_config.speculative_config, self.dynamic_sd_lookup
        if speculation is None:
            log.warning("TurboSpec is off: it needs a --speculative-config")
            return None
        if length_table is None:
            log.warning("TurboSpec is off: vLLM has one draft length for all steps; leave out --scheduler-cls")
            return None
        schedule = [tuple(entry) for entry in speculation.num_speculative_tokens_per_batch_size]
        own_schedule = schedule == graph_schedule(self.num_spec_tokens)
        if own_schedule:
            # The table is TurboSpec's own, for CUDA graphs. Without TurboSpec a step drafts the maximum.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * len(length_table)
        settings = read_settings(vllm_config.additional_config)
        if settings is None:
            log.warning("TurboSpec is off: it needs a policy")
            return None
        # Suffix decoding has no draft model, and no configuration of one.
        drafter = speculation.draft_model_config or vllm_config.model_config
        # DFlash also needs room for the token that its block begins with.
        reserved_length = self.num_spec_tokens + (speculation.method == "dflash")
        limits = EngineLimits(
            max_draft=self.num_spec_tokens,
            max_model_len=min(self.max_model_len, drafter.max_model_len),
            reserved_length=0 if vllm_config.use_v2_model_runner else reserved_length,
            max_batched_tokens=self.max_num_scheduled_tokens,
            parallel_drafter=drafts_in_one_pass(speculation),
            drafter_is_lookup=speculation.method in LOOK_UP_METHODS,
            heads=speculation.method in HEAD_METHODS,
            kept_tokens=kept_tokens(vllm_config),
            drafter_slots=max(speculation.max_num_new_slots_for_drafting, 1),
            prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
            late_drafts=drafts_late(vllm_config),
            tokens_first=_sends_tokens_first(vllm_config),
            async_scheduling=bool(vllm_config.scheduler_config.async_scheduling),
            largest_graph=_largest_graph(vllm_config.compilation_config),
            calls_trim=not self._has_connector,
        )
        if _runs_on_gpu_with_v2(vllm_config) and not limits.drafter_is_lookup:
            self._warn_of_lacking_graphs(vllm_config.compilation_config, own_schedule, set(length_table[1:]))
        controller = self._controller = settings.controller()
        self._trace = _trace(settings, vllm_config.parallel_config.data_parallel_index)
        if self._trace is not None:
            controller.listeners.append(self._trace)
        return VllmLoop(controller, limits, Lookups() if settings.lookup is not None else None)

    def _warn_of_lacking_graphs(self, compilation, own_schedule: bool, table_lengths: set[int]) -> None:
        lacking = lacking_graphs(
            "NONE" if compilation.cudagraph_mode is None else compilation.cudagraph_mode.name,
            graph_lengths(self.num_spec_tokens) if own_schedule else table_lengths,
            table_lengths,
            self.max_num_running_reqs,
            self.max_num_scheduled_tokens,
            compilation.cudagraph_capture_sizes or (),
        )
        if lacking is not None:
            log.warning(lacking)

    def _show_metrics(self, engine: int) -> None:
        """Write metrics from now on, if this process has been told a file; also where TurboSpec could not start."""
        path = os.environ.get(METRICS_FILE_VARIABLE)
        if path is None:
            return
        metrics = StepMetrics(self._stats, self._seconds, max_draft=self.num_spec_tokens)
        self._metrics_file = MetricsFileWriter(file_of_engine(Path(path), engine), metrics)
        if self._controller is not None:
            self._controller.listeners += [metrics, self._metrics_file]
        # Zeros first: Prometheus sees no increase in a series that begins above 0.
        self._metrics_file.wake()

    def schedule(self, *args, **kwargs):
        # While requests run, steps follow one another at once, and the time between two belongs to the second. Time
        # without requests, or in a pause, belongs to no step.
        if self._was_paused or not self.running:
            self._began, self._was_paused = time.perf_counter(), False
        self._looked_up = {}
        if self._loop is not None and self._lookup_lengths:
            with self._measured:
                self._look_up(self._loop)
        return super().schedule(*args, **kwargs)

    def set_pause_state(self, *args, **kwargs):
        self._was_paused = True
        return super().set_pause_state(*args, **kwargs)

    def _update_after_schedule(self, scheduler_output) -> None:
        self.must_fetch_drafts, self._lengths, self._lookup_lengths = True, {}, {}
        if self._loop is not None:
            with self._measured:
                self._trim_drafts(self._loop, scheduler_output)
        with self._measured:
            self._send_looked_up(scheduler_output)
            cut, self._ruled_out = self._ruled_out, {}
            if cut:
                setattr(scheduler_output, RULED_OUT_ATTRIBUTE, cut_before(scheduler_output, cut))
        if self._loop is not None:
            with self._measured:
                restarted = _restarted(self._loop, scheduler_output)
                self._loop.known.forget(scheduler_output.finished_req_ids)
                self._loop.known.preempt(getattr(scheduler_output, "preempted_req_ids", None) or ())
                if self._loop.lookups is not None:
                    self._loop.lookups.forget(scheduler_output.finished_req_ids)
                if scheduler_output.num_scheduled_tokens:
                    self._plan(self._loop, scheduler_output, restarted)
                self._healthy_steps += 1
                if self._healthy_steps == HEALTHY_STEPS:
                    self._faults = 0
        super()._update_after_schedule(scheduler_output)
        self._under_grammar = getattr(scheduler_output, "has_structured_output_requests", True)

    def update_from_output(self, scheduler_output, model_runner_output):
        loop, number = self._loop, getattr(scheduler_output, STEP_ATTRIBUTE, None)
        if loop is None or number is None:
            return super().update_from_output(scheduler_output, model_runner_output)
        sampled: list[int] = []
        with self._measured:
            # Counted before vLLM cuts them where a request ends.
            sampled = list(map(len, model_runner_output.sampled_token_ids))
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        with self._measured:
            rows = model_runner_output.req_id_to_index
            self._seconds.steps += loop.finish(
                number,
                functools.partial(verified, scheduler_output, rows, sampled, outputs),
                functools.partial(accepted, rows, sampled),
                getattr(model_runner_output, TIMES_ATTRIBUTE, None),
            )
        return outputs

    def _handle_stopped_request(self, request) -> bool:
        finished = super()._handle_stopped_request(request)
        if not finished and self._loop is not None:
            with self._measured:
                # A session between two turns may wait for minutes, and starts anew: no input is kept for it.
                self._loop.known.preempt([request.request_id])
        return finished

    def shutdown(self) -> None:
        if self._trace is not None:
            with self._measured:
                self._trace.close()
        super().shutdown()

    def _plan(self, loop: VllmLoop, scheduler_output, restarted: set[str]) -> None:
        scheduled = scheduler_output.num_scheduled_tokens
        if not restarted:
            reused, orders = loop.reuse_plan(scheduled, self._began)
            if reused:
                self._order(scheduler_output, loop.newest, orders, {}, 0, {})
                return
        for each in scheduler_output.scheduled_new_reqs:
            # A session's next input comes in place of the drafts after its last turn.
            self.requests[each.req_id].spec_token_ids = []
        requests = [self.requests[name] for name in scheduled]
        planned = loop.plan(requests, scheduled, restarted, self._queue(), self._began)
        drafted, looked_up = (
            dict(zip(scheduled, lengths.tolist(), strict=True)) if lengths.any() else {}
            for lengths in (planned.lengths, planned.lookup_lengths)
        )
        self._order(scheduler_output, loop.newest, planned.orders, drafted, planned.passes, looked_up)

    def _order(
        self,
        scheduler_output,
        step: int,
        orders: DrafterOrders | None,
        lengths: dict[str, int],
        passes: int,
        lookup_lengths: dict[str, int],
    ) -> None:
        """Take the plan of a step over into vLLM's output. Last, so that a step has all of it or nothing.

        Args:
            scheduler_output: vLLM's.
            step: the loop's number of the step.
            orders: to the worker's drafter.
            lengths: K of each request; empty where the drafter drafts nothing.
            passes: tokens that it drafts for the whole batch.
            lookup_lengths: longest draft of the look-up for each request; empty where it drafts nothing.
        """
        setattr(scheduler_output, STEP_ATTRIBUTE, step)
        if orders is not None:
            setattr(scheduler_output, ORDERS_ATTRIBUTE, orders)
        if lengths:
            setattr(scheduler_output, DRAFTS_EXPECTED_ATTRIBUTE, True)
        scheduler_output.num_spec_tokens_to_schedule = passes
        self.must_fetch_drafts, self._lengths = bool(lengths) or (orders is not None and orders.late), lengths
        self._lookup_lengths = {name: length for name, length in lookup_lengths.items() if length}

    def _look_up(self, loop: VllmLoop) -> None:
        """Have the step that is scheduled next verify what the look-up finds now, where the last plan wants that.

        The tokens of steps in flight are unknown: the draft begins after them, wherever they end, and a worker finds
        its place (`LookupDraft`). Where all tokens are known, the draft is all that is found.
        """
        assert loop.lookups is not None
        requests, limits = [], []
        for name, length in self._lookup_lengths.items():
            request = self.requests.get(name)
            if request is None or request.is_finished() or request.is_prefill_chunk:
                continue
            in_flight = request.num_output_placeholders
            if loop.limits.async_scheduling and not in_flight:
                continue  # it was not in the last step: a worker does not know where it ends
            left = request.max_tokens - request.num_output_tokens - in_flight - 1
            requests.append(request)
            limits.append(max(min(length, left), 0) + in_flight)
        continuations = loop.lookups.find(requests, np.array(limits, np.int64))
        found: dict[str, LookupDraft] = {}
        drafts: dict[str, list[int]] = {}
        for request, row, length in zip(requests, continuations.tokens, continuations.lengths, strict=True):
            name, tokens, in_flight = request.request_id, row[:length].tolist(), request.num_output_placeholders
            found[name] = LookupDraft(request.num_tokens, tokens)
            if in_flight:
                drafts[name] = [-1] * (len(tokens) - in_flight)
            else:
                drafts[name] = self.structured_output_manager.validate_tokens(request, list(tokens))
                if len(drafts[name]) < len(tokens):
                    self._ruled_out[name] = len(drafts[name])
        self._looked_up = found  # all or nothing: a worker needs the tokens in place of each -1
        for name, tokens in drafts.items():
            self.requests[name].spec_token_ids = tokens

    def _send_looked_up(self, scheduler_output) -> None:
        """Give the step's drafts of the look-up to the workers, and drop those that the step does not verify: it has no
        room for them, or computes the request's tokens again after a preemption."""
        looked_up, self._looked_up = self._looked_up, {}
        drafted = scheduler_output.scheduled_spec_decode_tokens
        for name in looked_up.keys() - drafted.keys():
            if (request := self.requests.get(name)) is not None:
                request.spec_token_ids = []
        if sent := {name: draft for name, draft in looked_up.items() if name in drafted}:
            setattr(scheduler_output, LOOKUP_DRAFTS_ATTRIBUTE, sent)

    @property
    def _has_connector(self) -> bool:
        """Whether a connector has read the step's output before TurboSpec can change it."""
        connectors = self.connector, self.ec_connector, getattr(self, "aux_output_connector", None)
        return any(each is not None for each in connectors)

    def _trim_drafts(self, loop: VllmLoop, scheduler_output) -> None:
        """Shorten the drafts that the step verifies, where the plan wants that beside the step's prompts.

        vLLM counts computed tokens and placeholders afterwards. KV blocks that it has allocated for the tokens left out
        stay with their request.
        """
        scheduled, drafts = scheduler_output.num_scheduled_tokens, scheduler_output.scheduled_spec_decode_tokens
        for name, length in loop.trim(scheduled, drafts).items():
            if self.requests[name].use_structured_output and not loop.limits.async_scheduling:
                continue  # vLLM has cut it where a token breaks the grammar: its length depends on its tokens
            left_out = len(drafts[name]) - length
            scheduled[name] -= left_out
            scheduler_output.total_num_scheduled_tokens -= left_out
            drafts[name] = drafts[name][:length]
            if not length:
                del drafts[name]

    def _cut_drafts(self) -> None:
        """Cut the drafts of the last scheduled step, or their placeholders, to each request's K."""
        if not self._lengths:
            return
        with self._measured:
            for name, length in self._lengths.items():
                request = self.requests.get(name)
                if request is not None and len(request.spec_token_ids) > length:
                    request.spec_token_ids = request.spec_token_ids[:length]

    def _queue(self) -> Queue:
        _, requests = self.get_request_counts()
        if not requests:
            return EMPTY_QUEUE
        # Requests that wait for something else, such as a grammar, are in a queue of their own or, in newer versions,
        # among the others.
        deferred = getattr(self, "deferred_waiting", getattr(self, "skipped_waiting", ()))
        ready, now = requests - len(deferred), time.time()
        first = next((request for request in self.waiting if request not in deferred), None) if ready else None
        # A preempted request is first in the queue and has its first token; the others' waiting time is not known then.
        arrived = now if first is None or first.num_preemptions else first.arrival_time
        # A session that waits for its next input keeps its slot.
        slots = getattr(self, "max_num_active_reqs", self.max_num_running_reqs) - len(self.running)
        slots -= getattr(self, "num_waiting_for_streaming_input", 0)
        admitted = 0 if first is None else min(ready, max(slots, 0), self._room(first))
        return Queue(requests, max(now - arrived, 0.0), admitted)

    def _room(self, request) -> int:
        """Requests of this one's length for which KV blocks are free. The prefix cache is not considered."""
        manager, groups = self.kv_cache_manager, len(self.kv_cache_config.kv_cache_groups)
        free = manager.block_pool.get_num_free_blocks() - getattr(manager, "watermark_blocks", 0)
        return max(free, 0) // max(-(-request.num_tokens // self.block_size) * groups, 1)

    def _fail(self) -> None:
        if self._loop is None:
            return
        self._faults, self._healthy_steps = self._faults + 1, 0
        self._stats.host_faults += 1
        if self._faults == 1:
            log.exception("TurboSpec failed in a step; the step runs with vLLM's own draft length")
        if self._faults < MAX_FAULTS:
            self._loop.reset()
        else:
            log.error("TurboSpec failed and is off until the server restarts; vLLM continues with its own draft length")
            self._loop, self._stats.active = None, False
        if self._metrics_file is not None:
            self._metrics_file.wake()


def _sends_tokens_first(vllm_config) -> bool:
    """Whether a step's tokens are sent before its drafting ends.

    Model runner V2 copies them while the drafter runs on the GPU, and sends them once the host has launched it. That is
    at once only where the drafter's passes are CUDA graphs; vLLM captures none for a draft model.
    """
    return vllm_config.speculative_config.method != "draft_model" and _captures_decode_graphs(vllm_config)


def _captures_decode_graphs(vllm_config) -> bool:
    """Whether the configuration asks for full CUDA graphs of decode batches; a worker may fall back to piecewise
    graphs."""
    mode = vllm_config.compilation_config.cudagraph_mode
    return _runs_on_gpu_with_v2(vllm_config) and mode is not None and mode.decode_mode().name == "FULL"


def _runs_on_gpu_with_v2(vllm_config) -> bool:
    return vllm_config.use_v2_model_runner and not current_platform.is_cpu()


def _largest_graph(compilation) -> int:
    """Most tokens of a pass with CUDA graphs; 0 where vLLM captures none."""
    if current_platform.is_cpu() or not compilation.cudagraph_mode:
        return 0
    return int(compilation.max_cudagraph_capture_size or 0)


def _restarted(loop: VllmLoop, scheduler_output) -> set[str]:
    """Requests of a step that the loop knows, or another of the same id, and that do not go on where they were.

    vLLM's new requests include sessions with their next input and, on model runner V2, those that resume.
    """
    new = {each.req_id for each in scheduler_output.scheduled_new_reqs if each.req_id in loop.known}
    return new | scheduler_output.scheduled_cached_reqs.resumed_req_ids


def _trace(settings: Settings, engine: int) -> DecisionTrace | None:
    """The trace of an engine core; None where there is to be none, or where it cannot be written."""
    if settings.trace is None:
        return None
    try:
        return DecisionTrace(file_of_engine(settings.trace, engine))
    except UserError as error:
        log.warning("there is no trace: %s", error)
        return None


def fetch_drafts_only_where_needed() -> None:
    """Make the engine core ask its workers for drafts only after steps that made some.

    Otherwise it asks after every step, a message to each worker and back: 5 to 15 % of a step of 6 ms.
    """
    fetch = EngineCore.post_step
    if hasattr(EngineCore, MARK):
        return
    setattr(EngineCore, MARK, True)

    @functools.wraps(fetch)
    def post_step(core, model_executed: bool) -> None:
        if getattr(core.scheduler, "must_fetch_drafts", True):
            fetch(core, model_executed)

    EngineCore.post_step = post_step


class TurboSpecScheduler(_Adaptive):
    """vLLM's scheduler for engines that schedule a step when the one before has ended, with adaptive K."""

    def get_grammar_bitmask(self, scheduler_output):
        # The engine core calls this after the workers have started the step and before it waits for them: time that
        # costs the step nothing.
        bitmask = super().get_grammar_bitmask(scheduler_output)
        if self._loop is not None:
            with self._overlapped:
                queue = self._queue()
                self._loop.settle(queue)
                requests = [self.requests[name] for name in scheduler_output.num_scheduled_tokens]
                self._loop.plan_ahead(requests, queue)
        return bitmask

    def update_from_output(self, scheduler_output, model_runner_output):
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        drafts = getattr(model_runner_output, DRAFTS_ATTRIBUTE, None)
        if drafts is not None:
            self.update_draft_token_ids(drafts)
            self.must_fetch_drafts = False
        return outputs

    def update_draft_token_ids(self, draft_token_ids) -> None:
        made: dict[str, int] = {}
        if self._under_grammar:
            with self._measured:
                made = drafts_under_grammar(self.requests, draft_token_ids)
        super().update_draft_token_ids(draft_token_ids)
        self._cut_drafts()
        with self._measured:
            for name, length in made.items():
                kept = len(self.requests[name].spec_token_ids)
                if kept < min(length, self._lengths.get(name, 0)):
                    self._ruled_out[name] = kept


class TurboSpecAsyncScheduler(_Adaptive, AsyncScheduler):
    """vLLM's async scheduler, which schedules a step while the one before still runs, with adaptive K."""

    def _update_after_schedule(self, scheduler_output) -> None:
        super()._update_after_schedule(scheduler_output)
        self._cut_drafts()

    def update_draft_token_ids_in_output(self, draft_token_ids, scheduler_output) -> None:
        made: dict[str, int] = {}
        with self._measured:
            made = drafts_under_grammar(self.requests, draft_token_ids)
        super().update_draft_token_ids_in_output(draft_token_ids, scheduler_output)
        with self._measured:
            setattr(scheduler_output, RULED_OUT_ATTRIBUTE, cut_within(scheduler_output, made))

    def update_from_output(self, scheduler_output, model_runner_output):
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._loop is not None:
            with self._measured:
                self._loop.settle(self._queue())
        return outputs
