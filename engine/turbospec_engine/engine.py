"""The embedded engine: schedule, plan, draft, verify, emit, observe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from turbospec import Phase, StepController, StepOutcome, StepPlan, StepView, UserError
from turbospec.types import FloatArray, IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.blocks import BlockAllocator
from turbospec_engine.config import NGRAM, EngineConfig
from turbospec_engine.detokenizer import Detokenizer
from turbospec_engine.draft import Draft
from turbospec_engine.drafter import Drafter, DraftModel, NGramDrafter
from turbospec_engine.models import Models
from turbospec_engine.request import Completion, FinishReason, Request, RequestOutput, SamplingParams
from turbospec_engine.runner import ModelRunner, block_table, kv_bytes_per_token
from turbospec_engine.sampler import verify
from turbospec_engine.scheduler import ScheduledBatch, Scheduler

DEFAULT_CACHE_BYTES = 2 << 30


@dataclass(slots=True)
class PlannedStep:
    """A scheduled batch with its drafts, ready to be verified."""

    view: StepView
    proposal: Draft
    """What the drafter made, one row for each row of the view."""
    batch: ScheduledBatch
    """The n requests to run: those of the view, less the aborted, and behind them those that arrived since."""
    view_rows: IntArray
    """Row in the view of each of the first requests of the batch."""
    draft: Draft
    """The drafts of the batch's requests."""
    final_draws: FloatArray
    """(n,) uniforms for the token after the accepted ones."""
    accept_draws: FloatArray
    """(n, longest draft) uniforms that decide on draft tokens."""
    draft_seconds: float
    seconds: float
    """Everything spent on the step so far: scheduling, planning, drafting."""


@dataclass(slots=True, frozen=True)
class Emission:
    """What a step emits for one request, before the moment it leaves."""

    request: Request
    token_ids: tuple[int, ...]
    text: str


class Engine:
    """Serves requests with speculative decoding under a controller. Not thread-safe.

    Raises:
        UserError: the checkpoints or the configuration do not fit together.
    """

    def __init__(self, config: EngineConfig, controller: StepController, *, models: Models | None = None) -> None:
        self.config = config
        self.controller = controller
        self.models = models or Models.load(config)
        self.device = torch.device(config.device)
        text_config = self.models.target.config.get_text_config()
        model_limit = getattr(text_config, "max_position_embeddings", None) or 2048
        self.max_model_len = config.max_model_len or model_limit
        if self.max_model_len > model_limit:
            raise UserError(
                f"max_model_len={self.max_model_len} is beyond the target's {model_limit} positions; lower it"
            )
        window = getattr(text_config, "sliding_window", None)
        if window is not None and window < self.max_model_len:
            raise UserError(
                f"{config.target}: attends to a sliding window of {window} tokens, which this engine does not support; "
                "set max_model_len to no more than that"
            )
        if config.max_draft >= self.max_model_len:
            raise UserError(
                f"max_draft={config.max_draft} does not fit in max_model_len={self.max_model_len}; lower it"
            )
        num_blocks = config.num_blocks or self._default_num_blocks()
        self.allocator = BlockAllocator(num_blocks, config.block_size)
        self.scheduler = Scheduler(self.allocator, config.max_num_seqs, config.max_num_batched_tokens)
        self.target = ModelRunner(self.models.target, num_blocks, config.block_size)
        self.target.warm_up()
        self.drafter = self._build_drafter(num_blocks)
        self._requests: dict[str, Request] = {}
        self._class_ids = {"default": 0}
        self._allowed_masks: dict[tuple[int, ...], torch.Tensor] = {}
        self._next_row_id = 0
        self._next_step = 0
        self._planned: PlannedStep | None = None

    @property
    def tokenizer(self) -> Any:
        """The target's Hugging Face tokenizer."""
        return self.models.tokenizer

    def add_request(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> str:
        """Queue a request.

        Returns:
            Its id: `request_id`, or one the engine makes up.

        Raises:
            UserError: the prompt is empty, too long or out of the vocabulary, or a parameter is out of range.
        """
        params = params or SamplingParams()
        token_ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else [int(token) for token in prompt]
        self._check(token_ids, params)
        row_id = self._next_row_id
        request_id = str(row_id) if request_id is None else request_id
        if request_id in self._requests:
            raise UserError(f"request id {request_id!r} is in use; give another")
        self._next_row_id += 1
        request = Request(
            request_id,
            row_id,
            token_ids,
            params,
            arrival=time.monotonic(),
            max_total_tokens=min(len(token_ids) + params.max_tokens, self.max_request_tokens),
            class_id=self._class_ids.setdefault(params.service_class, len(self._class_ids)),
            seed=(self.config.seed, row_id) if params.seed is None else (params.seed,),
            allowed=self._allowed_mask(params.allowed_token_ids),
            detokenizer=Detokenizer(self.models.backend_tokenizer, params.stop),
        )
        self._requests[request_id] = request
        self.scheduler.add(request)
        return request_id

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self.scheduler.has_work()

    def abort(self, request_id: str) -> None:
        """Drop a request; an unknown or finished one is ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, "abort")

    def abort_all(self) -> None:
        """Drop every unfinished request."""
        for request_id in list(self._requests):
            self.abort(request_id)

    def is_prefilling(self) -> bool:
        """Whether any unfinished request has yet to emit its first token."""
        return any(request.phase == Phase.PREFILL for request in self._requests.values())

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Run one step: one draft and one verify pass over all scheduled requests.

        With `emit="before_draft"` the tokens are returned before any drafting for the next step begins; with
        "after_draft" the next step's drafts are made first.
        """
        if not self.has_work():
            return []
        planned, self._planned = self._planned, None
        if planned is None:
            planned = self._plan()
        else:
            self._revise(planned)
        emissions = self._verify(planned)
        if self.config.emit == "after_draft" and self.has_work():
            self._planned = self._plan()
        emitted_at = time.perf_counter()
        return [
            RequestOutput(
                emission.request.request_id,
                emission.token_ids,
                emission.text,
                emission.request.finish_reason is not None,
                emission.request.finish_reason,
                emitted_at,
            )
            for emission in emissions
        ]

    def generate(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Serve prompts to the end, all at once, and return their completions in the prompts' order.

        Args:
            prompts: texts or token ids.
            params: one for all, or one for each.

        Raises:
            UserError: as `add_request`, or the engine is serving other requests.
        """
        if self.has_work():
            raise UserError("generate needs an idle engine; finish or abort the requests in flight, or use add_request")
        each = params if isinstance(params, Sequence) else [params] * len(prompts)
        requests: list[Request] = []
        try:
            for prompt, request_params in zip(prompts, each, strict=True):
                requests.append(self._requests[self.add_request(prompt, request_params)])
        except UserError:
            for request in requests:
                self.abort(request.request_id)
            raise
        while self.has_work():
            self.step()
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
        """Serve one prompt and yield its tokens as they come; closing the iterator aborts the request."""
        request_id = self.add_request(prompt, params)
        try:
            while request_id in self._requests:
                yield from (output for output in self.step() if output.request_id == request_id)
        finally:
            self.abort(request_id)

    @property
    def max_request_tokens(self) -> int:
        """Longest prompt and output together that the model and the whole cache can hold."""
        return min(self.max_model_len, self.allocator.num_blocks * self.allocator.block_size)

    def _plan(self) -> PlannedStep:
        began = time.perf_counter()
        batch = self.scheduler.schedule()
        view = self._view(batch)
        plan = self.controller.plan(view)
        lengths = self._reserve(batch, self._checked_lengths(plan, view))
        longest = int(lengths.max(initial=0))
        draws = np.zeros((len(batch.requests), 2 * longest + 1))
        for row, request in enumerate(batch.requests):
            if not request.params.greedy:
                draws[row, : 2 * lengths[row] + 1] = request.rng.random(2 * lengths[row] + 1)
        draft_began = time.perf_counter()
        draft = Draft.none(len(batch.requests))
        if longest:
            assert self.drafter is not None  # draft_limits are 0 without one
            draft = self.drafter.propose(batch.requests, lengths, draws[:, 1::2], plan.gate)
        now = time.perf_counter()
        return PlannedStep(
            view=view,
            proposal=draft,
            batch=batch,
            view_rows=np.arange(view.size),
            draft=draft,
            final_draws=draws[:, 0],
            accept_draws=draws[:, 2::2],
            draft_seconds=now - draft_began,
            seconds=now - began,
        )

    def _revise(self, planned: PlannedStep) -> None:
        """Bring a batch that was planned before the last tokens left up to date with aborts and arrivals."""
        old = planned.batch
        planned.view_rows = np.array(
            [row for row, request in enumerate(old.requests) if request.finish_reason is None], np.int64
        )
        planned.batch = ScheduledBatch(
            [old.requests[row] for row in planned.view_rows], [old.num_tokens[row] for row in planned.view_rows]
        )
        self.scheduler.admit_late(planned.batch)
        late = planned.batch.requests[len(planned.view_rows) :]
        planned.draft = planned.draft.take(planned.view_rows).padded(len(late))
        planned.accept_draws = np.pad(planned.accept_draws[planned.view_rows], ((0, len(late)), (0, 0)))
        drawn = [0.0 if request.params.greedy else request.rng.random() for request in late]
        planned.final_draws = np.concatenate([planned.final_draws[planned.view_rows], drawn])

    def _verify(self, planned: PlannedStep) -> list[Emission]:
        began = time.perf_counter()
        requests, draft = planned.batch.requests, planned.draft
        scheduled = np.array(planned.batch.num_tokens)
        computed = np.array([request.computed for request in requests])
        prefilling = np.array([request.phase == Phase.PREFILL for request in requests])
        completes = computed + scheduled == np.array([request.num_tokens for request in requests])
        query_lens = scheduled + draft.drafted

        ragged = RaggedBatch(query_lens, computed + query_lens, block_table(requests))
        rows = np.flatnonzero(completes)
        # A request's wanted logits are its last 1 + drafted: after its newest token and after each draft token.
        wanted = draft.drafted[rows] + 1
        logits_at = np.repeat(np.cumsum(query_lens)[rows] - np.cumsum(wanted), wanted) + np.arange(wanted.sum())
        logits = self.target.forward(self._input_ids(planned), ragged, logits_at)
        accepted, final = np.zeros((2, len(requests)), np.int64)
        if len(rows):
            accepted[rows], final[rows] = verify(
                logits,
                [requests[row] for row in rows],
                draft.take(rows),
                planned.accept_draws[rows],
                planned.final_draws[rows],
            )
        self._synchronize()
        verify_seconds = time.perf_counter() - began

        emissions: list[Emission] = []
        emitted = np.zeros(len(requests), np.int64)
        for row, request in enumerate(requests):
            if completes[row]:
                candidates = [*draft.tokens[row, : accepted[row]].tolist(), int(final[row])]
                emissions.append(self._emit(request, candidates))
                emitted[row] = len(emissions[-1].token_ids)
            else:
                request.computed += planned.batch.num_tokens[row]
        # Whatever ended the output at an accepted draft token kept the tokens after it from being judged.
        truncated = completes & (emitted <= accepted)
        accepted = np.minimum(accepted, emitted)

        def per_view_row(values: np.ndarray) -> np.ndarray:
            column = np.zeros(planned.view.size, values.dtype)
            column[planned.view_rows] = values[: len(planned.view_rows)]
            return column

        tokens_batched = int(query_lens.sum())
        outcome = StepOutcome(
            step=planned.view.step,
            request_ids=planned.view.request_ids,
            drafted=per_view_row(draft.drafted),
            accepted=per_view_row(accepted),
            emitted=per_view_row(emitted),
            truncated=per_view_row(truncated),
            proposed=planned.proposal.proposed,
            confidence=planned.proposal.confidence,
            draft_rows=planned.proposal.draft_rows,
            draft_context_tokens=planned.proposal.context_tokens,
            catch_up_tokens=planned.proposal.catch_up_tokens,
            tokens_batched=tokens_batched,
            padded_tokens=tokens_batched,
            prefill_tokens=int(scheduled[prefilling].sum()),
            context_tokens=int((computed + query_lens).sum()),
            draft_seconds=planned.draft_seconds,
            verify_seconds=verify_seconds,
            step_seconds=planned.seconds + time.perf_counter() - began,
            waiting_requests=len(self.scheduler.waiting),
        )
        self.controller.observe(outcome)
        return emissions

    def _input_ids(self, planned: PlannedStep) -> torch.Tensor:
        """(tokens,) each request's scheduled tokens and its drafts, end to end."""
        draft, pieces = planned.draft, list[IntArray]()
        for row, (request, count) in enumerate(zip(planned.batch.requests, planned.batch.num_tokens, strict=True)):
            pieces.append(request.tokens[request.computed : request.computed + count])
            pieces.append(draft.tokens[row, : draft.drafted[row]])
        return torch.from_numpy(np.concatenate(pieces)).to(self.device)

    def _emit(self, request: Request, candidates: list[int]) -> Emission:
        """Append as many of a request's new tokens as EOS, stop strings and the length limit allow."""
        request.decode_steps += int(request.emitted > 0)
        # The pass has written the newest token and the accepted drafts to the cache; the last candidate is not in it.
        request.computed = request.num_tokens + len(candidates) - 1
        request.draft_computed = min(request.draft_computed, request.computed)
        reason: FinishReason | None = None
        if not request.params.ignore_eos:
            for position, token_id in enumerate(candidates):
                if token_id in self.models.eos_token_ids:
                    candidates, reason = candidates[: position + 1], "stop"
                    break
        used, text = request.detokenizer.feed(candidates)
        candidates = candidates[:used]
        request.append(candidates)
        if request.detokenizer.stopped:
            reason = "stop"
        elif reason is None and request.tokens_left == 0:
            reason = "length"
        if reason is not None:
            text += request.detokenizer.flush(request.output_tokens.tolist())
            self._finish(request, reason)
        else:
            self.allocator.shrink(request.block_ids, request.computed)
        return Emission(request, tuple(candidates), text)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        self.scheduler.finish(request)
        del self._requests[request.request_id]

    def _view(self, batch: ScheduledBatch) -> StepView:
        requests = batch.requests
        now = time.monotonic()
        limits = np.zeros(len(requests), np.int64)
        prefill_tokens = 0
        for row, request in enumerate(requests):
            if request.phase == Phase.PREFILL:
                prefill_tokens += batch.num_tokens[row]
            elif self.drafter is not None:
                limits[row] = self._draft_limit(request, self.drafter)
        view = StepView(
            step=self._next_step,
            now=now,
            request_ids=np.array([request.row_id for request in requests], np.int64),
            phase=np.array([request.phase for request in requests], np.int64),
            context_tokens=np.array([request.computed for request in requests], np.int64),
            emitted_tokens=np.array([request.emitted for request in requests], np.int64),
            tokens_left=np.array([request.tokens_left for request in requests], np.int64),
            stale_tokens=np.array(
                [self.drafter.stale_tokens(request) if self.drafter else 0 for request in requests], np.int64
            ),
            class_ids=np.array([request.class_id for request in requests], np.int64),
            draft_limits=limits,
            max_draft=self.config.max_draft if self.drafter else 0,
            waiting_requests=len(self.scheduler.waiting),
            waiting_seconds=now - self.scheduler.waiting[0].arrival if self.scheduler.waiting else 0.0,
            prefill_tokens=prefill_tokens,
            draft_before_emit=self.config.emit == "after_draft",
            parallel_drafter=self.drafter.parallel if self.drafter else False,
        )
        self._next_step += 1
        return view

    def _draft_limit(self, request: Request, drafter: Drafter) -> int:
        block_size = self.allocator.block_size
        room = (len(request.block_ids) + self.allocator.num_free) * block_size - request.num_tokens
        limit = min(self.config.max_draft, request.tokens_left - 1, room)
        if request.params.max_draft is not None:
            limit = min(limit, request.params.max_draft)
        if drafter.max_model_len is not None:
            limit = min(limit, drafter.max_model_len - request.num_tokens)
        return max(0, limit)

    def _checked_lengths(self, plan: StepPlan, view: StepView) -> IntArray:
        lengths = np.asarray(plan.draft_lengths, np.int64)
        if lengths.shape != (view.size,) or (lengths < 0).any() or (lengths > view.draft_limits).any():
            raise UserError(
                f"the controller's draft lengths {lengths.tolist()} are not within 0 and the step's limits "
                f"{view.draft_limits.tolist()}; wrap the policy in turbospec.controller.Controller"
            )
        return lengths

    def _reserve(self, batch: ScheduledBatch, lengths: IntArray) -> IntArray:
        """Find blocks for the drafts, oldest request first, and shorten those that find none."""
        lengths = lengths.copy()
        for row in np.flatnonzero(lengths):
            request = batch.requests[row]
            room = (len(request.block_ids) + self.allocator.num_free) * self.allocator.block_size - request.num_tokens
            lengths[row] = min(lengths[row], room)
            self.allocator.grow(request.block_ids, request.num_tokens + int(lengths[row]))
        return lengths

    def _check(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        if not token_ids:
            raise UserError("the prompt is empty; give at least one token")
        if len(token_ids) >= self.max_request_tokens:
            raise UserError(
                f"the prompt's {len(token_ids)} tokens leave no room in the {self.max_request_tokens} that model and "
                "KV cache hold; shorten it, or raise max_model_len or num_blocks"
            )
        vocab_size = self.models.vocab_size
        for name, ids in (("prompt", token_ids), ("allowed_token_ids", params.allowed_token_ids or ())):
            if ids and (min(ids) < 0 or max(ids) >= vocab_size):
                raise UserError(
                    f"{name} holds a token outside 0 and {vocab_size - 1}; encode with the target's tokenizer"
                )
        if params.max_draft is not None and params.max_draft > self.config.max_draft:
            raise UserError(
                f"max_draft={params.max_draft} is beyond the engine's {self.config.max_draft}; lower it or build the "
                "engine with a larger max_draft"
            )

    def _allowed_mask(self, allowed: tuple[int, ...] | None) -> torch.Tensor | None:
        if allowed is None:
            return None
        if allowed not in self._allowed_masks:
            mask = torch.full((self.models.vocab_size,), -torch.inf, device=self.device)
            mask[list(allowed)] = 0.0
            self._allowed_masks[allowed] = mask
        return self._allowed_masks[allowed]

    def _default_num_blocks(self) -> int:
        per_request = -(-self.max_model_len // self.config.block_size)
        models = [self.models.target] + ([self.models.drafter] if self.models.drafter is not None else [])
        block_bytes = sum(kv_bytes_per_token(model) for model in models) * self.config.block_size
        affordable = DEFAULT_CACHE_BYTES // block_bytes
        return max(per_request, min(self.config.max_num_seqs * per_request, affordable))

    def _build_drafter(self, num_blocks: int) -> Drafter | None:
        if self.config.drafter is None:
            return None
        if str(self.config.drafter) == NGRAM:
            return NGramDrafter()
        if self.models.drafter is None:
            raise UserError(
                f"drafter={str(self.config.drafter)!r}, but the models were loaded without one; load them with it"
            )
        return DraftModel(self.models.drafter, num_blocks, self.config.block_size, self.models.vocab_size)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
