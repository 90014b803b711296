"""Random steps that keep the contract: an engine whose batches, limits and measurements are drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from turbospec.interface import (
    MAX_COUNT,
    MAX_DRAFT_LENGTH,
    MAX_STEP_SECONDS,
    MIN_STEP_SECONDS,
    IntArray,
    LookupView,
    Phase,
    Source,
    StepOutcome,
    StepPlan,
    StepView,
)

EXTREMES = 0.01
"""Share of numbers at the edge of what the contract allows."""


@dataclass(slots=True)
class RandomEngine:
    """Makes views, runs plans and makes outcomes. Nothing is computed; what is measured is drawn."""

    rng: np.random.Generator
    max_draft: int = 8
    step: int = 0
    now: float = 0.0
    next_id: int = 0
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    size: int = 4
    """Requests that the batch tends to."""

    def view(self) -> StepView:
        """The view of the next step."""
        rng = self.rng
        self.step += 1 if rng.random() < 0.97 else int(rng.integers(0, 50))
        if rng.random() < 0.02:
            self.size = int(
                rng.choice([0, 1, 2, 3, 8, 16, 40, 100, 300], p=[0.04, 0.2, 0.16, 0.1, 0.2, 0.1, 0.1, 0.06, 0.04])
            )
        if rng.random() < 0.002:
            self.max_draft = int(
                rng.choice([0, 1, 3, 8, 15, 32, MAX_DRAFT_LENGTH], p=[0.1, 0.1, 0.2, 0.3, 0.2, 0.09, 0.01])
            )
        self._exchange_requests()
        n = len(self.ids)
        phase = rng.choice(3, n, p=[0.05, 0.05, 0.9]).astype(np.int64)
        left = rng.integers(-2, 400, n)
        limits = np.minimum(np.maximum(left - 1, 0), rng.integers(0, self.max_draft + 1, n))
        if rng.random() < 0.7:
            limits = np.minimum(np.maximum(left - 1, 0), self.max_draft)
        limits[phase == Phase.PREFILL] = 0
        prefill = int((phase == Phase.PREFILL).sum()) * int(rng.integers(1, 600))
        graphs = tuple(sorted({0, *rng.integers(0, self.max_draft + 1, 2).tolist()})) if rng.random() < 0.1 else ()
        return StepView(
            step=self.step,
            now=self.now,
            request_ids=self.ids.copy(),
            phase=phase,
            context_tokens=self._counts(n, 4000),
            emitted_tokens=self._counts(n, 400),
            tokens_left=left,
            drafter_lag_tokens=self._counts(n, 100) * rng.integers(0, 2, n),
            class_ids=rng.integers(0, 16, n) if rng.random() < 0.9 else rng.integers(-100, 100, n),
            draft_limits=limits,
            max_draft=self.max_draft,
            waiting_requests=self._count(20),
            waiting_seconds=float(rng.random() * 10),
            admitted_requests=self._count(2) if rng.random() < 0.2 else 0,
            prefill_tokens=prefill,
            prefill_limited=bool(rng.random() < 0.1),
            drafter_kv_share=float(rng.random()) if rng.random() < 0.2 else 0.0,
            draft_before_emit=bool(rng.random() < 0.3),
            parallel_drafter=bool(rng.random() < 0.2),
            batch_drafter=bool(rng.random() < 0.3),
            calls_gate=bool(rng.random() < 0.5),
            calls_trim=bool(rng.random() < 0.5),
            first_pass_every_step=bool(rng.random() < 0.1),
            drafter_always_prefills=bool(rng.random() < 0.1),
            drafter_prefill_tokens=self._count(100) if rng.random() < 0.1 else 0,
            graph_lengths=graphs,
            drafter_graph_lengths=graphs if rng.random() < 0.5 else (),
            largest_graph=self._count(100) if rng.random() < 0.5 else 0,
            lookup=self._lookup(phase) if rng.random() < 0.3 else None,
        )

    def _lookup(self, phase: IntArray) -> LookupView:
        rng, n = self.rng, len(phase)
        found = rng.integers(0, self.max_draft + 1, n) * (rng.random(n) < 0.5) * (phase != Phase.PREFILL)
        return LookupView(found.astype(np.int64), rng.exponential(10.0, n) * (found > 0), bool(rng.random() < 0.5))

    def outcome(self, view: StepView, plan: StepPlan) -> StepOutcome:
        """A plan of this view as if it had been run, its gate, selection and trim included."""
        rng, n, lengths = self.rng, view.size, plan.draft_lengths
        confidence = np.full((n, int(lengths.max(initial=0))), np.nan)
        proposed, drafted = np.zeros((2, n), np.int64)
        rows, draft_rows = np.flatnonzero(lengths), list[int]()
        while len(rows):
            seen = rng.random(len(rows)) ** 0.3
            confidence[rows, proposed[rows]] = seen
            proposed[rows] += 1
            draft_rows.append(len(rows))
            keep, more = np.ones(len(rows), np.bool_), proposed[rows] < lengths[rows]
            if plan.gate is not None:
                keep, wanted = plan.gate.advance(rows, seen.astype(rng.choice([np.float32, np.float64])))
                more &= keep & wanted
            drafted[rows] += keep
            rows = rows[more]
        if plan.selection is not None:
            drafted = np.minimum(plan.selection.select(proposed, confidence), drafted)
        joining = int(rng.integers(1, 600)) if rng.random() < 0.3 else 0
        prefill_tokens = min(view.prefill_tokens + joining, MAX_COUNT - n * self.max_draft)
        if plan.trim is not None and prefill_tokens > view.prefill_tokens:
            kept = plan.trim.trim(drafted, n + int(drafted.sum()) + prefill_tokens)
            proposed = np.where(kept < drafted, kept, proposed)
            confidence[np.arange(confidence.shape[1]) >= proposed[:, None]] = np.nan
            drafted = kept
        accepted = rng.binomial(drafted, rng.choice([0.0, 0.3, 0.7, 1.0]))
        tokens = n + int(drafted.sum()) + prefill_tokens
        draft_seconds, verify_seconds = 1e-3 * len(draft_rows), 7e-3 + 2e-5 * tokens
        step_seconds = draft_seconds + verify_seconds + 1e-3
        if rng.random() < EXTREMES:
            step_seconds = float(rng.choice([0.0, MIN_STEP_SECONDS, 1e-5, 10.0, MAX_STEP_SECONDS]))
        self.now += min(step_seconds, 1.0)
        reused = int(rng.integers(1, 20)) if rng.random() < 0.05 else 0
        return StepOutcome(
            step=view.step,
            request_ids=view.request_ids if rng.random() < 0.5 else view.request_ids.copy(),
            drafted=drafted,
            accepted=accepted,
            emitted=np.where(rng.random(n) < 0.98, accepted + 1, 0),
            truncated=rng.random(n) < 0.02,
            proposed=proposed,
            confidence=confidence if rng.random() < 0.8 else None,
            draft_rows=np.array(draft_rows, np.int64),
            draft_context_tokens=self._count(10_000),
            catch_up_tokens=self._count(200) if draft_rows else 0,
            tokens_batched=tokens,
            padded_tokens=tokens,
            piecewise=bool(rng.random() < 0.1),
            prefill_tokens=prefill_tokens,
            context_tokens=self._count(100_000),
            draft_seconds=draft_seconds,
            verify_seconds=verify_seconds,
            step_seconds=step_seconds,
            reused_plan_steps=reused,
            reused_plan_tokens=reused * int(rng.integers(0, 1 + n)),
            reused_plan_prefill_tokens=min(reused, 1) * self._count(2_000),
            reused_plan_seconds=reused * float(rng.choice([MIN_STEP_SECONDS, 8e-3, 8e-3, 8e-3, MAX_STEP_SECONDS])),
            waiting_requests=self._count(20),
            failures=self._count(1),
            sources=None if plan.sources is None else plan.sources.copy(),
            appended=None if plan.append_limits is None else _appended(plan, drafted, rng),
        )

    def _exchange_requests(self) -> None:
        """Let a few requests end and others join, in any order."""
        rng = self.rng
        kept = self.ids[rng.random(len(self.ids)) < 0.97][: self.size]
        joining = max(min(self.size - len(kept), int(rng.integers(0, 1 + self.size))), 0)
        if rng.random() < 0.01:
            self.next_id = int(rng.integers(-(2**62), 2**62))
        fresh = np.arange(self.next_id, self.next_id + joining)
        self.next_id += joining
        self.ids = np.unique(np.concatenate([kept, fresh]))
        if rng.random() < 0.2:
            rng.shuffle(self.ids)

    def _count(self, most: int) -> int:
        return MAX_COUNT if self.rng.random() < EXTREMES else int(self.rng.integers(0, most + 1))

    def _counts(self, n: int, most: int) -> np.ndarray:
        counts = self.rng.integers(0, most + 1, n)
        if n and self.rng.random() < EXTREMES:
            counts[self.rng.integers(n)] = MAX_COUNT
        return counts


def _appended(plan: StepPlan, drafted: IntArray, rng: np.random.Generator) -> IntArray:
    """Some of the last tokens of the drafter's drafts."""
    of_drafter = True if plan.sources is None else plan.sources == Source.DRAFTER
    return np.where(of_drafter, np.clip(drafted - 1, 0, rng.integers(0, 3)), 0)
