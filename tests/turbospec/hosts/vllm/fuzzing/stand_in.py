"""vLLM's scheduler without vLLM: how 0.32 counts requests, tokens and KV blocks.

`hosted_schedulers` imports TurboSpec's schedulers on top of these classes. Their methods have vLLM's names, and the
rules that TurboSpec sees are copied: chunked prefill, preemption, async placeholders and stale output, blocked and
streaming requests, pauses, drafts that a grammar rules out. The KV cache is a number of blocks, and prefix-cache hits
are random.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.turbospec.hosts.vllm.fuzzing.worker import END
from turbospec.hosts.vllm.scheduler import loop

BLOCK = 4
"""Tokens of a KV block."""
TEXT = random.Random(0).choices(range(3), k=2000)
"""The tokens of every request."""


class Status(Enum):
    BLOCKED = auto()
    """Waits for its grammar, or for KV blocks from elsewhere."""
    WAITING = auto()
    PREEMPTED = auto()
    BETWEEN_TURNS = auto()
    """A streaming session that waits for its next input."""
    RUNNING = auto()
    FINISHED = auto()


class Pause(Enum):
    NONE = auto()
    NEW = auto()
    ALL = auto()


@dataclass(eq=False)
class Request:
    """vLLM's `Request`. What counts are the numbers of tokens: all texts are alike."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    sampling_params: Any
    arrival_time: float
    client_index: int = 0
    resumable: bool = False
    grammar: bool = False
    status: Status = Status.WAITING
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    num_in_flight_tokens: int = 0
    num_stale_output_tokens: int = 0
    num_preemptions: int = 0
    drop_stale_output: bool = False
    is_prefill_chunk: bool = False
    spec_token_ids: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def all_token_ids(self) -> list[int]:
        return TEXT[: self.num_tokens]

    @property
    def use_structured_output(self) -> bool:
        return self.grammar

    @property
    def num_tokens_with_spec(self) -> int:
        return self.num_tokens + len(self.spec_token_ids)

    def is_finished(self) -> bool:
        return self.status is Status.FINISHED


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[Any]
    scheduled_cached_reqs: Any
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    finished_req_ids: set[str]
    preempted_req_ids: set[str]
    num_spec_tokens_to_schedule: int
    num_invalid_spec_tokens: dict[str, int] | None = None
    has_structured_output_requests: bool = False


@dataclass
class ModelRunnerOutput:
    req_ids: list[str]
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]


@dataclass
class DraftTokenIds:
    req_ids: list[str]
    draft_token_ids: list[list[int]]


class Scheduler:
    """vLLM's. `config.blocks` and `config.rng` are of the KV cache; the other fields of `config` have vLLM's names."""

    connector: Any = None
    ec_connector: Any = None

    def __init__(self, config: Any) -> None:
        self.max_num_running_reqs = self.max_num_active_reqs = config.scheduler_config.max_num_seqs
        self.max_num_scheduled_tokens = config.scheduler_config.max_num_batched_tokens
        self.max_model_len = config.model_config.max_model_len
        self.num_spec_tokens = config.speculative_config.num_speculative_tokens
        self.use_v2_model_runner = config.use_v2_model_runner
        self._slots = config.speculative_config.max_num_new_slots_for_drafting
        lengths = {
            batch: length
            for first, last, length in config.speculative_config.num_speculative_tokens_per_batch_size
            for batch in range(first, min(last, self.max_num_running_reqs) + 1)
        }
        self.dynamic_sd_lookup = [lengths.get(batch, 0) for batch in range(self.max_num_running_reqs + 1)]
        self._rng: random.Random = config.rng
        self._caches_prefixes = config.cache_config.enable_prefix_caching
        self._free = config.blocks
        self.block_size = BLOCK
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=["all layers"])
        self.kv_cache_manager = SimpleNamespace(
            block_pool=SimpleNamespace(get_num_free_blocks=lambda: self._free), watermark_blocks=0
        )
        self._held: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.kv_holding_waiting: deque[Request] = deque()
        self.deferred_waiting: set[Request] = set()
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()
        self._preempted: set[str] = set()
        self.failing: set[str] = set()
        """Requests that end with an error when the next step does."""
        self._between_turns = 0
        self._pause = Pause.NONE
        self.structured_output_manager = SimpleNamespace(validate_tokens=self._valid)

    # The engine core's calls

    def add_request(self, request: Request) -> None:
        assert request.request_id not in self.requests
        self.requests[request.request_id] = request
        if request.status is Status.BLOCKED:
            self.deferred_waiting.add(request)
        (self.kv_holding_waiting if request.num_computed_tokens > 0 else self.waiting).append(request)

    def continue_session(self, request: Request, tokens: int, max_tokens: int) -> None:
        """The next input of a session that waits for it: the last sampled token is dropped."""
        kept = min(max(request.num_computed_tokens - request.num_prompt_tokens, 0), request.num_output_tokens)
        request.num_prompt_tokens += kept + tokens
        request.num_output_tokens, request.max_tokens = 0, max_tokens
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_prompt_tokens - tokens)
        request.status = Status.WAITING
        self._between_turns -= 1

    def finish_requests(self, names: Iterable[str] | None) -> None:
        """Abort; None is all."""
        for name in list(self.requests if names is None else names):
            request = self.requests.get(name)
            if request is None:
                continue
            self._between_turns -= request.status is Status.BETWEEN_TURNS
            self._remove({request})
            self._finish(request)

    def set_pause_state(self, pause: Pause) -> None:
        self._pause = pause

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(self.kv_holding_waiting)

    def has_requests(self) -> bool:
        if self.finished_req_ids:
            return True
        if self._pause is Pause.ALL:
            return False
        waiting = len(self.kv_holding_waiting) + (0 if self._pause is Pause.NEW else len(self.waiting))
        return len(self.running) + waiting - self._between_turns > 0

    def reset_prefix_cache(self) -> None:
        """With all running requests preempted, and their output dropped."""
        while self.running:
            self._preempt(self.running.pop(), drop=True)

    def shutdown(self) -> None:
        pass

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        del throttle_prefills
        new: list[Request] = []
        resumed: list[Request] = []
        scheduled: dict[str, int] = {}
        drafts: dict[str, list[int]] = {}
        budget = 0 if self._pause is Pause.ALL else self.max_num_scheduled_tokens
        room = self.max_num_scheduled_tokens
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0 and room > self._slots:
            request = self.running[index]
            placeholders = request.num_output_placeholders
            ends = request.num_computed_tokens + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens
            tokens = min(
                request.num_tokens_with_spec + placeholders - request.num_computed_tokens,
                budget,
                room - self._slots,
                self.max_model_len - request.num_computed_tokens - 1,
            )
            if (placeholders > 0 and ends) or tokens <= 0:
                index += 1
                continue
            while not (fits := self._allocate(request, tokens)):
                victim = self.running.pop()
                self._preempt(victim, drop=False)
                preempted = True
                if victim is request:
                    break
            if not fits:
                break
            name = request.request_id
            scheduled[name] = tokens
            budget, room, index = budget - tokens, room - tokens - self._slots, index + 1
            if request.spec_token_ids:
                number = tokens + request.num_computed_tokens - request.num_tokens - placeholders
                if number > 0:
                    drafts[name] = request.spec_token_ids[:number]
                request.spec_token_ids = []
        if not preempted and self._pause is not Pause.ALL:
            budget = self._admit(budget, room, new, resumed, scheduled)
        assert sum(scheduled.values()) <= self.max_num_scheduled_tokens
        if self.use_v2_model_runner:
            new, resumed = new + resumed, []
        length = self.dynamic_sd_lookup[len(scheduled)] if scheduled else self.num_spec_tokens
        output = SchedulerOutput(
            [SimpleNamespace(req_id=each.request_id) for each in new],
            SimpleNamespace(resumed_req_ids={each.request_id for each in resumed}),
            scheduled,
            sum(scheduled.values()),
            drafts,
            self.finished_req_ids,
            self._preempted,
            length,
        )
        self._update_after_schedule(output)
        return output

    def get_grammar_bitmask(self, output: SchedulerOutput) -> None:
        """Requests with a grammar change nothing that is counted here."""

    def update_from_output(
        self, scheduled: SchedulerOutput, model_output: ModelRunnerOutput
    ) -> dict[int, SimpleNamespace]:
        sent: dict[int, list[SimpleNamespace]] = defaultdict(list)
        stopped: set[Request] = set()
        for name, tokens in scheduled.num_scheduled_tokens.items():
            request = self.requests.get(name)
            if request is None:
                continue
            request.num_in_flight_tokens -= tokens
            assert request.num_in_flight_tokens >= 0
            stale = request.num_stale_output_tokens > 0
            if stale:
                request.num_stale_output_tokens -= tokens
                assert request.num_stale_output_tokens >= 0
                if request.drop_stale_output:
                    continue
            index = model_output.req_id_to_index[name]
            sampled = model_output.sampled_token_ids[index] if model_output.sampled_token_ids else []
            drafts = scheduled.scheduled_spec_decode_tokens.get(name)
            if drafts and sampled and not stale:
                rejected = len(drafts) + 1 - len(sampled)
                if request.num_computed_tokens > 0:
                    request.num_computed_tokens -= rejected
                if request.num_output_placeholders > 0:
                    request.num_output_placeholders -= rejected
            stops = self._append(request, sampled, stale)
            if sampled or stops:
                sent[request.client_index].append(SimpleNamespace(request_id=name, new_token_ids=sampled))
            if stops and self._handle_stopped_request(request):
                self._finish(request)
            if stops:
                stopped.add(request)
        # One that a stop has put back into a queue is in no other.
        self.running = [each for each in self.running if each not in stopped]
        for queue in (self.waiting, self.kv_holding_waiting):
            kept = [each for each in queue if each not in stopped or not each.is_finished()]
            queue.clear()
            queue.extend(kept)
        for name in self.failing & self.requests.keys():
            sent[self.requests[name].client_index].append(SimpleNamespace(request_id=name, new_token_ids=[]))
        self.finish_requests(self.failing)
        self.failing = set()
        return {client: SimpleNamespace(outputs=outputs) for client, outputs in sent.items()}

    def update_draft_token_ids(self, drafts: DraftTokenIds) -> None:
        for name, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            request = self.requests.get(name)
            if request is None:
                continue
            if request.is_prefill_chunk:
                request.spec_token_ids = []
            else:
                request.spec_token_ids = self._valid(request, tokens)

    def update_draft_token_ids_in_output(self, drafts: DraftTokenIds, scheduled: SchedulerOutput) -> None:
        """Under async scheduling: the drafts that a grammar rules out, once the step before has ended."""
        scheduled.num_invalid_spec_tokens = {}
        for name, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            request, length = self.requests.get(name), len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
            if request is not None and (invalid := length - len(self._valid(request, tokens[:length]))):
                scheduled.num_invalid_spec_tokens[name] = invalid

    # Its own methods

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += tokens
            request.num_in_flight_tokens += tokens
            tokens_now = request.num_tokens + request.num_output_placeholders
            request.is_prefill_chunk = request.num_computed_tokens < tokens_now
            output.has_structured_output_requests |= request.use_structured_output and not request.is_prefill_chunk
        self.finished_req_ids = set()
        self._preempted = set()

    def _admit(
        self, budget: int, room: int, new: list[Request], resumed: list[Request], scheduled: dict[str, int]
    ) -> int:
        """Start requests of the queues, in their order."""
        skipped: dict[bool, list[Request]] = {True: [], False: []}
        while budget > 0 and room > self._slots:
            queue = self.kv_holding_waiting
            if not queue and self._pause is Pause.NONE:
                queue = self.waiting
            if not queue or len(self.running) + self._between_turns >= self.max_num_active_reqs:
                break
            request = queue[0]
            blocked = request.status in (Status.BLOCKED, Status.BETWEEN_TURNS)
            if blocked or (request.num_stale_output_tokens and not request.drop_stale_output):
                queue.popleft()
                self.deferred_waiting.add(request)
                skipped[request.num_computed_tokens > 0].append(request)
                continue
            computed = request.num_computed_tokens or self._cached(request)
            tokens = min(request.num_tokens - computed, budget, room - self._slots)
            assert tokens > 0
            if not self._allocate(request, tokens, computed):
                break
            queue.popleft()
            self.deferred_waiting.discard(request)
            self.running.append(request)
            (new if request.status is Status.WAITING else resumed).append(request)
            scheduled[request.request_id] = tokens
            budget, room = budget - tokens, room - tokens - self._slots
            request.status, request.num_computed_tokens = Status.RUNNING, computed
        self.kv_holding_waiting.extendleft(reversed(skipped[True]))
        self.waiting.extendleft(reversed(skipped[False]))
        return budget

    def _cached(self, request: Request) -> int:
        if not self._caches_prefixes or self._rng.random() < 0.5:
            return 0
        return self._rng.randint(0, (request.num_tokens - 1) // BLOCK) * BLOCK

    def _allocate(self, request: Request, tokens: int, computed: int | None = None) -> bool:
        before = request.num_computed_tokens if computed is None else computed
        total = min(before + tokens + self.num_spec_tokens, self.max_model_len)
        blocks = -(-total // BLOCK) - self._held.get(request.request_id, 0)
        if blocks > self._free:
            return False
        if blocks > 0:
            self._free -= blocks
            self._held[request.request_id] = self._held.get(request.request_id, 0) + blocks
        return True

    def _preempt(self, request: Request, *, drop: bool) -> None:
        self._free += self._held.pop(request.request_id, 0)
        request.status, request.num_computed_tokens, request.spec_token_ids = Status.PREEMPTED, 0, []
        request.drop_stale_output = drop or (request.drop_stale_output and request.num_stale_output_tokens > 0)
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)
        self._preempted.add(request.request_id)

    def _append(self, request: Request, sampled: list[int], stale: bool) -> bool:
        """Add what was sampled, cut where the request ends; whether it does."""
        del stale
        for number, token in enumerate(sampled, 1):
            request.num_output_tokens += 1
            full = request.num_tokens >= self.max_model_len or request.num_output_tokens >= request.max_tokens
            if token == END or full:
                del sampled[number:]
                return True
        return False

    def _handle_stopped_request(self, request: Request) -> bool:
        """Whether a request that stops has ended; a session waits for its next input."""
        if not request.resumable or request.num_tokens > self.max_model_len // 2:
            return True
        request.num_computed_tokens -= request.num_output_placeholders
        request.spec_token_ids, request.drop_stale_output = [], True
        request.num_stale_output_tokens, request.num_output_placeholders = request.num_in_flight_tokens, 0
        for queue in (self.waiting, self.kv_holding_waiting):
            if request in queue:
                queue.remove(request)
        request.status = Status.BETWEEN_TURNS
        self._between_turns += 1
        self.deferred_waiting.add(request)
        (self.kv_holding_waiting if request.num_computed_tokens > 0 else self.waiting).append(request)
        return False

    def _finish(self, request: Request) -> None:
        request.status = Status.FINISHED
        self._free += self._held.pop(request.request_id, 0)
        self.finished_req_ids.add(request.request_id)
        del self.requests[request.request_id]

    def _remove(self, requests: Collection[Request]) -> None:
        for queue in (self.waiting, self.kv_holding_waiting):
            kept = [each for each in queue if each not in requests]
            queue.clear()
            queue.extend(kept)
        self.running = [each for each in self.running if each not in requests]
        self.deferred_waiting.difference_update(requests)

    def _valid(self, request: Request, drafts: list[int]) -> list[int]:
        return drafts[: self._rng.randint(0, len(drafts))] if request.grammar else drafts


class AsyncScheduler(Scheduler):
    """vLLM's, for steps that are scheduled before the one before has ended."""

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        super()._update_after_schedule(output)
        placeholders = [-1] * output.num_spec_tokens_to_schedule
        for name in output.num_scheduled_tokens:
            request = self.requests[name]
            if request.is_prefill_chunk:
                continue
            request.num_output_placeholders += 1 + len(output.scheduled_spec_decode_tokens.get(name, ()))
            request.spec_token_ids = placeholders

    def _append(self, request: Request, sampled: list[int], stale: bool) -> bool:
        stops = super()._append(request, sampled, stale)
        if not stale:
            request.num_output_placeholders -= len(sampled)
            assert request.num_output_placeholders >= 0
        return stops


@dataclass
class EngineCore:
    """vLLM's; `take` asks its workers for drafts."""

    scheduler: Scheduler
    take: Callable[[], DraftTokenIds | None]

    def post_step(self, model_executed: bool) -> None:
        if model_executed and (drafts := self.take()) is not None:
            self.scheduler.update_draft_token_ids(drafts)


def hosted_schedulers() -> Any:
    """A module like `turbospec.hosts.vllm.scheduler.schedulers`, with the classes above in place of vLLM's."""
    platform = SimpleNamespace(is_cpu=lambda: True)
    contents: Mapping[str, Mapping[str, Any]] = {
        "vllm": {"__path__": []},
        "vllm.v1": {"__path__": []},
        "vllm.v1.core": {"__path__": []},
        "vllm.v1.core.sched": {"__path__": []},
        "vllm.v1.engine": {"__path__": []},
        "vllm.platforms": {"current_platform": platform},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": AsyncScheduler},
        "vllm.v1.engine.core": {"EngineCore": EngineCore},
    }
    path = Path(loop.__file__).with_name("schedulers.py")
    spec = importlib.util.spec_from_file_location("turbospec_schedulers_on_a_stand_in", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = {name: sys.modules.get(name) for name in contents}
    for name, names in contents.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(names)
    try:
        spec.loader.exec_module(module)
    finally:
        for name, original in before.items():
            del sys.modules[name]
            if original is not None:
                sys.modules[name] = original
    return module
