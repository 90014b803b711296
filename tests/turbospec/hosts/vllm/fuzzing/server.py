"""A server for a walk: the stand-in for vLLM's scheduler, or a real one, with TurboSpec's on top."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Protocol

from tests.turbospec.hosts.vllm.fuzzing import stand_in
from tests.turbospec.hosts.vllm.fuzzing.stand_in import Pause, Status
from turbospec.hosts.vllm.shared.graph_lengths import graph_schedule
from turbospec.hosts.vllm.shared.support import BESIDE_LOOKUP

PAUSES = {"none": Pause.NONE, "new": Pause.NEW, "all": Pause.ALL}


@dataclass(slots=True, frozen=True)
class Setup:
    """A server's configuration. Tokens and requests."""

    policy: Path
    trace: Path | None = None
    asynchronous: bool = False
    v2: bool = False
    method: str = "draft_model"
    longest: int = 5
    own_table: bool = False
    """Whether the user gave a table of draft lengths."""
    prefix_caching: bool = False
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_model_len: int = 100
    caches: int = 8
    """Requests of the model's length that the KV cache holds."""
    slots: int = 1
    lookup: bool = False
    graphs: Any = None
    """vLLM's `cudagraph_mode`."""
    graph_sizes: tuple[int, ...] = ()
    """Its `cudagraph_capture_sizes`, rising."""

    @property
    def table(self) -> list[tuple[int, int, int]]:
        """The draft length for each batch size, as vLLM gets it."""
        return [(1, self.max_num_seqs, self.longest)] if self.own_table else graph_schedule(self.longest)

    @classmethod
    def draw(cls, rng: random.Random, policy: Path) -> Setup:
        """Any."""
        seqs, longest = rng.choice((1, 2, 4, 8, 8, 64, 1024)), rng.choice((1, 2, 5, 8, 15))
        drawn = cls(
            policy=policy,
            asynchronous=rng.random() < 0.5,
            v2=rng.random() < 0.5,
            method=rng.choice(("draft_model", "eagle", "eagle3", "mtp", "ngram", "medusa", "dflash")),
            longest=longest,
            own_table=rng.random() < 0.3,
            prefix_caching=rng.random() < 0.5,
            max_num_seqs=seqs,
            max_num_batched_tokens=rng.choice((16, 64, 64, 512)) + 2 * seqs,
            max_model_len=rng.choice((40, 100, 100, 400)),
            caches=rng.choice((1, 1, 2, 2, 50)),
            slots=rng.choice((1, 1, longest)),
        )
        return replace(drawn, lookup=drawn.method in BESIDE_LOOKUP and rng.random() < 0.4)


@dataclass(slots=True, frozen=True)
class Added:
    """A request."""

    name: str
    prompt: int
    max_tokens: int
    params: Any
    """With `extra_args`, or None."""
    arrived: float
    client: int = 0
    session: bool = False
    grammar: bool = False
    blocked: bool = False
    loaded: int = 0
    """Tokens of the prompt whose KV comes from elsewhere, for one that is blocked."""


class Server(Protocol):
    """What an engine core does with its scheduler."""

    hosted: Any
    """The module with TurboSpec's schedulers."""
    scheduler: Any

    def build(self, extend: Callable[[Any], Any]) -> None:
        """Make the scheduler, of TurboSpec's class as `extend` returns it."""
        ...

    def add(self, request: Added) -> None: ...
    def abort(self, names: Iterable[str]) -> None: ...
    def pause(self, what: Literal["none", "new", "all"]) -> None: ...
    def reset(self) -> None:
        """Preempt all running requests, and drop what they compute."""
        ...

    def blocked(self) -> list[str]: ...
    def unblock(self, name: str) -> None: ...
    def between_turns(self) -> list[str]: ...
    def next_turn(self, name: str, tokens: int, max_tokens: int) -> None: ...
    def fail(self, name: str) -> None:
        """Let a request end with an error, when the next step does."""
        ...

    def rule_out(self, output: Any) -> None:
        """Rule out drafts of a step under way, by the grammars of its requests."""
        ...

    def model_output(self, names: Sequence[str], sampled: Sequence[list[int]]) -> Any: ...
    def drafts(self, names: Sequence[str], tokens: Sequence[list[int]]) -> Any: ...
    def post_step(self, take: Callable[[], Any], executed: bool) -> None:
        """What the engine core does after a step without async scheduling; `take` asks the worker for its drafts."""
        ...


class StandIn:
    """A server without vLLM."""

    hosted = stand_in.hosted_schedulers()
    scheduler: Any

    def __init__(self, setup: Setup, rng: random.Random) -> None:
        self._setup = setup
        self._rng = rng

    def build(self, extend: Callable[[Any], Any]) -> None:
        hosted = self.hosted
        base = hosted.TurboSpecAsyncScheduler if self._setup.asynchronous else hosted.TurboSpecScheduler
        self.scheduler = extend(base)(_configuration(self._setup, self._rng))

    def add(self, request: Added) -> None:
        self.scheduler.add_request(
            stand_in.Request(
                request.name,
                request.prompt,
                request.max_tokens,
                request.params,
                request.arrived,
                client_index=request.client,
                resumable=request.session,
                grammar=request.grammar,
                status=Status.BLOCKED if request.blocked or request.grammar else Status.WAITING,
                num_computed_tokens=request.loaded,
            )
        )

    def abort(self, names: Iterable[str]) -> None:
        self.scheduler.finish_requests(names)

    def pause(self, what: Literal["none", "new", "all"]) -> None:
        self.scheduler.set_pause_state(PAUSES[what])

    def reset(self) -> None:
        self.scheduler.reset_prefix_cache()

    def blocked(self) -> list[str]:
        return self._with(Status.BLOCKED)

    def unblock(self, name: str) -> None:
        self.scheduler.requests[name].status = Status.WAITING

    def between_turns(self) -> list[str]:
        return self._with(Status.BETWEEN_TURNS)

    def next_turn(self, name: str, tokens: int, max_tokens: int) -> None:
        self.scheduler.continue_session(self.scheduler.requests[name], tokens, max_tokens)

    def fail(self, name: str) -> None:
        self.scheduler.failing.add(name)

    def rule_out(self, output: Any) -> None:
        drafts = {name: [1] * len(tokens) for name, tokens in output.scheduled_spec_decode_tokens.items()}
        self.scheduler.update_draft_token_ids_in_output(self.drafts([*drafts], [*drafts.values()]), output)

    def model_output(self, names: Sequence[str], sampled: Sequence[list[int]]) -> Any:
        rows = {name: row for row, name in enumerate(names)}
        return stand_in.ModelRunnerOutput(list(names), rows, list(sampled))

    def drafts(self, names: Sequence[str], tokens: Sequence[list[int]]) -> Any:
        return stand_in.DraftTokenIds(list(names), list(tokens))

    def post_step(self, take: Callable[[], Any], executed: bool) -> None:
        core = stand_in.EngineCore(self.scheduler, take)
        core.post_step(executed)

    def _with(self, status: Status) -> list[str]:
        return [name for name, request in self.scheduler.requests.items() if request.status is status]


def _configuration(setup: Setup, rng: random.Random) -> Any:
    """The parts of a `VllmConfig` that are read."""
    settings = {"policy": str(setup.policy)}
    if setup.trace is not None:
        settings["trace"] = str(setup.trace)
    if setup.lookup:
        settings["lookup"] = "ngram"
    return SimpleNamespace(
        additional_config={"turbospec": settings},
        speculative_config=SimpleNamespace(
            method=setup.method,
            num_speculative_tokens=setup.longest,
            num_speculative_tokens_per_batch_size=setup.table,
            draft_model_config=None,
            parallel_drafting=False,
            disable_padded_drafter_batch=False,
            max_num_new_slots_for_drafting=setup.slots,
            use_multi_module_mtp=lambda: False,
            use_gemma4_mtp=lambda: False,
            use_step3p5_mtp=lambda: False,
        ),
        model_config=SimpleNamespace(is_multimodal_model=False, max_model_len=setup.max_model_len),
        cache_config=SimpleNamespace(enable_prefix_caching=setup.prefix_caching),
        parallel_config=SimpleNamespace(data_parallel_index=0, decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(
            async_scheduling=setup.asynchronous,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
        ),
        compilation_config=SimpleNamespace(
            cudagraph_mode=setup.graphs,
            cudagraph_capture_sizes=[*setup.graph_sizes],
            max_cudagraph_capture_size=max(setup.graph_sizes, default=0),
        ),
        kv_transfer_config=None,
        use_v2_model_runner=setup.v2,
        blocks=setup.caches * -(-(setup.max_model_len + setup.longest) // stand_in.BLOCK),
        rng=rng,
    )
