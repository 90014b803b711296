"""The embedded engine: schedule, plan, draft, verify, emit, observe. `Engine.step` shows a request's life in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch

from turbospec import Phase, Policy, UserError
from turbospec_engine import sizing
from turbospec_engine.attention import kernels_for_any_shape
from turbospec_engine.blocks import BlockAllocator
from turbospec_engine.config import EngineConfig
from turbospec_engine.drafter import Drafter, LookupDrafter, build_drafter
from turbospec_engine.emission import Emission, emit
from turbospec_engine.input_processor import InputProcessor
from turbospec_engine.lookup import Lookup, build_lookup
from turbospec_engine.models import Models
from turbospec_engine.outcome import step_outcome
from turbospec_engine.planned_step import PlannedStep
from turbospec_engine.planning import StepPlanner
from turbospec_engine.request import Completion, FinishReason, Request, RequestOutput, SamplingParams
from turbospec_engine.request_blocks import RequestBlocks
from turbospec_engine.runner import ModelRunner, kv_memory
from turbospec_engine.scheduler import Scheduler
from turbospec_engine.verification import Verification, verify_step


class Engine:
    """Serves requests with speculative decoding under a controller. Not thread-safe.

    Args:
        config: models, sizes and limits.
        controller: chooses the draft lengths.
        models: checkpoints loaded before, to share them between engines.
        drafter: a drafter of your own, in place of the one that `config` names.
        lookup: a look-up of your own beside the drafter, in place of the one that `config` names.

    Raises:
        UserError: the checkpoints or the configuration do not fit together.
    """

    def __init__(
        self,
        config: EngineConfig,
        controller: Policy,
        *,
        models: Models | None = None,
        drafter: Drafter | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        self.config = config
        self.controller = controller
        # A look-up of the user's own may be empty, and false.
        self.lookup = build_lookup(config.lookup) if lookup is None and config.lookup else lookup
        self.models = models or Models.load(config)
        self.models.check_fits(config, with_drafter=drafter is None)
        self.device = torch.device(config.device)
        self.max_model_len = sizing.max_model_len(config, self.models)
        num_blocks = sizing.num_blocks(config, self.models, self.max_model_len)
        self.allocator = BlockAllocator(num_blocks, config.block_size)
        memory = kv_memory(self.models.target, num_blocks, config.block_size)
        draft_blocks = None
        if drafter is None:
            with kernels_for_any_shape(self.device):
                drafter, draft_blocks = build_drafter(config, self.models, memory, self.allocator)
        self.drafter = drafter
        blocks = RequestBlocks(self.allocator, draft_blocks, gives_back=config.drafter_memory == "shared")
        self.scheduler = Scheduler(blocks, config.max_num_seqs, config.max_num_batched_tokens)
        if self.lookup is not None and (self.drafter is None or isinstance(self.drafter, LookupDrafter)):
            raise UserError(
                "a look-up is a second source, but there is no drafter with a model; name one, or use the look-up as "
                "drafter"
            )
        hidden_states = self.drafter.hidden_states if self.drafter else None
        self.target = ModelRunner(self.models.target, memory.store(memory.shape), hidden_states)
        with kernels_for_any_shape(self.device):
            self.target.warm_up()
        self._planner = StepPlanner(config, self.scheduler, self.drafter, self.lookup)
        longest = max(config.max_draft, self._planner.max_draft)
        self._input = InputProcessor(config, self.models, self.max_request_tokens, longest)
        self._requests: dict[str, Request] = {}
        self._next_row_id = 0
        self._planned: PlannedStep | None = None
        self._emitted: list[Emission] = []
        """Not returned yet: those of this step, and of steps that failed after they had emitted."""
        self._error: Exception | None = None
        """Of planning the next step, after the last one's tokens were emitted."""

    @property
    def tokenizer(self) -> Any:
        """The target's Hugging Face tokenizer."""
        return self.models.tokenizer

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of prompt and output together that the model and the whole KV cache can hold."""
        return min(self.max_model_len, self.allocator.num_blocks * self.allocator.block_size)

    def add_request(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> str:
        """Put a request into the waiting queue.

        Returns:
            Its id: `request_id`, or one that the engine chooses.

        Raises:
            UserError: the prompt is empty, too long or out of the vocabulary, a parameter is out of range, or there are
                more service classes than the controller distinguishes.
        """
        if request_id is None:
            request_id = next(name for name in map(str, count(self._next_row_id)) if name not in self._requests)
        if request_id in self._requests:
            raise UserError(f"request id {request_id!r} is in use; choose another")
        request = self._input.process(prompt, params or SamplingParams(), request_id, self._next_row_id)
        self._next_row_id += 1
        self._requests[request_id] = request
        self.scheduler.add(request)
        return request_id

    def has_work(self) -> bool:
        """Whether any request is unfinished, or `step` has outputs to return that an error kept back."""
        return self.scheduler.has_work() or bool(self._emitted)

    def abort(self, request_id: str) -> None:
        """Abort a request, and drop its outputs that `step` has not returned, also if it is finished.

        An unknown id is ignored.
        """
        self._emitted = [emission for emission in self._emitted if emission.request.request_id != request_id]
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, "abort")

    def abort_all(self) -> None:
        """Abort every unfinished request; outputs that `step` has not returned are dropped."""
        self._emitted.clear()
        for request_id in list(self._requests):
            self.abort(request_id)

    def is_prefilling(self) -> bool:
        """Whether any unfinished request is waiting or in prefill."""
        return any(request.phase == Phase.PREFILL for request in self._requests.values())

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Run one step: schedule, plan, draft, verify, emit, observe.

        With `emit="before_draft"` the tokens are returned before any drafting for the next step begins. With
        "after_draft" the next step is scheduled, planned and drafted first, so that this step begins with `verify`.

        After an exception serving can go on: the next call returns the tokens that were emitted before it, and runs no
        step.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.scheduler.has_work() and not self._emitted:
            with kernels_for_any_shape(self.device):
                self._run_step()
        emitted_at = time.perf_counter()
        emitted, self._emitted = self._emitted, []
        return [emission.as_output(emitted_at) for emission in emitted]

    def _run_step(self) -> None:
        began = time.perf_counter()
        planned, self._planned = self._planned, None
        try:
            if planned is not None:
                planned.update_batch(self.scheduler)
            # An update may leave no request, where the running ones got no tokens of the planned step.
            if planned is None or not planned.batch.requests:
                planned = self._schedule_plan_draft()
                began = time.perf_counter()  # what that took is in `planned.seconds`
            verification = verify_step(self.target, planned)
            emissions = self._emit(planned, verification)
        except BaseException:
            self._drop_drafts()
            raise
        self._observe(planned, verification, emissions, planned.seconds + time.perf_counter() - began)
        if self.config.emit == "after_draft" and self.scheduler.has_work():
            # The step's tokens are the requests' by now: an error in planning the next step must not lose them.
            try:
                self._planned = self._schedule_plan_draft()
            except BaseException as error:
                self._drop_drafts()
                if not isinstance(error, Exception):
                    raise
                self._error = error

    def generate(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Serve prompts to the end, as one batch, and return their completions in the prompts' order.

        Args:
            prompts: texts or token ids.
            params: one for all, or one for each.

        Raises:
            UserError: as `add_request`, or the engine is serving other requests, `prompts` is one text, or `params` are
                more or fewer than the prompts.
        """
        self._check_alone("generate")
        if isinstance(prompts, str):
            raise UserError("generate takes a list of prompts, not one text; write [prompt], or use stream")
        each = params if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise UserError(f"{len(each)} params for {len(prompts)} prompts; give one for all, or one for each")
        requests: list[Request] = []
        try:
            for prompt, request_params in zip(prompts, each, strict=True):
                requests.append(self._requests[self.add_request(prompt, request_params)])
            while self.has_work():
                self.step()
        finally:
            self.abort_all()
        return [
            Completion(
                request.request_id,
                tuple(request.output_tokens.tolist()),
                request.detokenizer.text,
                request.finish_reason or "abort",
            )
            for request in requests
        ]

    def stream(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Serve one prompt and yield its tokens as they are emitted; closing the iterator aborts the request.

        Raises:
            UserError: on the first token, as `add_request`; on any token, where the engine serves other requests too,
                whose outputs would be lost.
        """
        self._check_alone("stream")
        request_id = self.add_request(prompt, params)
        try:
            while request_id in self._requests:
                self._check_alone("stream", request_id)
                yield from self.step()
        finally:
            self.abort(request_id)

    def _check_alone(self, caller: str, request_id: str | None = None) -> None:
        """Raise where a caller's steps would lose the outputs of requests other than its own."""
        emitted = {emission.request.request_id for emission in self._emitted}
        if (self._requests.keys() | emitted) - {request_id}:
            raise UserError(
                f"{caller} needs an idle engine; finish or abort the other requests, or use add_request and step"
            )

    def _schedule_plan_draft(self) -> PlannedStep:
        """The phases of a step before its verification."""
        began = time.perf_counter()
        batch = self.scheduler.schedule()
        found = self._planner.look_up(batch)
        view = self._planner.next_view(batch, found)
        plan = self.controller.plan(view)
        return self._planner.draft(batch, view, plan, found, began=began)

    def _drop_drafts(self) -> None:
        """Drop the drafts of a step that failed: the next one drafts after the same tokens again."""
        for request in self.scheduler.running:
            request.draft_computed = max(min(request.draft_computed, request.num_tokens - 2), 0)

    def _emit(self, planned: PlannedStep, verification: Verification) -> dict[int, Emission]:
        """Append accepted tokens and the target's own to their requests. Emissions by row of the batch."""
        emissions: dict[int, Emission] = {}
        for row, request in enumerate(planned.batch.requests):
            if not verification.completes[row]:
                request.computed += planned.batch.num_tokens[row]
                continue
            accepted = planned.draft.tokens[row, : verification.accepted[row]].tolist()
            emission = emit(request, [*accepted, int(verification.final[row])], self.models.eos_token_ids)
            self._emitted.append(emission)
            if emission.finish_reason is not None:
                self._finish(request, emission.finish_reason)
            else:
                self.scheduler.blocks.trim(request)
            emissions[row] = emission
        return emissions

    def _observe(
        self, planned: PlannedStep, verification: Verification, emissions: dict[int, Emission], seconds: float
    ) -> None:
        """Report the step's outcome to the controller."""
        emitted = np.zeros(len(planned.batch.requests), np.int64)
        for row, emission in emissions.items():
            emitted[row] = len(emission.token_ids)
        waiting = len(self.scheduler.waiting)
        self.controller.observe(step_outcome(planned, verification, emitted, seconds=seconds, waiting_requests=waiting))

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        self.scheduler.finish(request)
        del self._requests[request.request_id]
        if not self._requests:
            self._planned = self._error = None
        lookup = self.drafter.lookup if isinstance(self.drafter, LookupDrafter) else self.lookup
        if lookup is not None:
            lookup.finish(request)
