"""From counts to plain words.

A step that drafts K tokens emits 1 + S1 + … + SK tokens for each request, S being the survival of each position, and
takes longer than a plain one. Counts alone say the first and not the second, so the answer to "does it pay" is a
break-even: how much longer such a step may take. With what a draft and a verified token cost, it becomes a yes or a no
and a best K; with a run without speculation to compare with, it is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from turbospec.doctor.counts import BenchResult, DraftCounts
from turbospec.interface import FloatArray

ENOUGH_DRAFTS = 200
NEVER_RIGHT = 0.05
"""Acceptance of the first position below which something is wrong, not merely hard to guess."""
WEAK = 0.4
DEAD = 0.05
"""Survival below which a position brings nothing."""
LENGTH_TOLERANCE = 0.1
"""Difference in tokens for each request from which two runs did not do the same work."""
EVEN_LENGTHS = 0.9
"""Mean length of drafts, in parts of the longest, below which they were not all of one length; the last of a text are
shorter anyway."""
TTFT_TOLERANCE = 1.1
NOISE = 0.02
"""Part by which two runs of the same thing may well differ."""

Severity = Literal["good", "warning", "bad"]


@dataclass(slots=True, frozen=True)
class StepCost:
    """What drafting adds to a step, in parts of a step that drafts nothing."""

    draft_token: float
    """Each position drafted: one pass of the drafter."""
    verify_token: float
    """Each position verified."""

    def of(self, length: int) -> float:
        """Duration of a step that drafts `length` tokens, 1 for none."""
        return 1.0 + length * (self.draft_token + self.verify_token)


@dataclass(slots=True, frozen=True)
class Finding:
    severity: Severity
    text: str
    checks: tuple[str, ...] = ()
    """What to look at next, most likely first."""


def good(text: str) -> Finding:
    return Finding("good", text)


def warning(text: str, checks: tuple[str, ...] = ()) -> Finding:
    return Finding("warning", text, checks)


def bad(text: str, checks: tuple[str, ...] = ()) -> Finding:
    return Finding("bad", text, checks)


@dataclass(slots=True)
class Diagnosis:
    conditional: FloatArray
    """(K,) acceptance of each position once the one before it is accepted; NaN where that never happened."""
    tokens_per_step: FloatArray
    """(K + 1,) expected tokens of a request's step that drafts 0 … K."""
    speedup: FloatArray
    """(K + 1,) tokens for the time of a step, over those of a plain one, at the assumed cost."""
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def best_length(self) -> int:
        """Draft length that makes most tokens at the assumed cost; 0 for none."""
        return int(np.argmax(self.speedup))


NEVER_RIGHT_CHECKS = (
    "Target quantised, drafter trained on the weights before that: serve the unquantised target for a few requests; if "
    "acceptance comes back, retrain the drafter on the quantised target's output or use another quantisation.",
    "Wrong mapping of the draft vocabulary (EAGLE-3's d2t and t2d): look for them in the head's checkpoint, and "
    "compare draft_vocab_size with their length.",
    "Wrong checkpoint: compare the head's config.json (hidden size, layers of the target it reads, vocabulary) and the "
    "target's name in its model card with the target that is served.",
    "Another tokenizer than the target's: compare the two vocabularies; a draft model must share all of it.",
    "Chat template: send one request through the completions endpoint with the exact text the drafter was trained "
    "on; if acceptance is fine there, the chat endpoint formats it differently.",
)
WEAK_CHECKS = (
    "The drafter was trained on other text than this traffic: compare acceptance on a sample of its training domain.",
    "High temperature: drafts made greedily match sampled tokens less often; compare with temperature 0, and have "
    "drafts sampled (draft_sample_method) if that is the cause.",
)


def diagnose(counts: DraftCounts | None, cost: StepCost) -> Diagnosis:
    """Findings from counts alone.

    Args:
        counts: what was drafted and accepted; None where nothing was.
        cost: assumed of drafting.
    """
    if counts is None or counts.drafts <= 0:
        return _nothing("nothing was drafted in this time: either no request decoded, or drafting was off")
    if not counts.accepted:
        return _nothing("the server does not tell acceptance by position")
    if counts.positions == 0:
        return _nothing("TurboSpec's metrics, a second behind, show no draft yet; watch for longer")
    known = counts.conditional()[: counts.positions]
    survival: FloatArray = np.cumprod(np.nan_to_num(known), dtype=np.float64)  # what nothing got to has no survivors
    tokens = np.concatenate([[1.0], 1.0 + np.cumsum(survival)])
    speedup = tokens / np.array([cost.of(length) for length in range(len(tokens))])
    diagnosis = Diagnosis(known, tokens, speedup)
    if counts.drafts < ENOUGH_DRAFTS:
        diagnosis.findings.append(
            warning(f"only {counts.drafts} drafts were seen; take what follows as a guess and look again")
        )
    if counts.drafted is None and counts.mean_draft_length < EVEN_LENGTHS * len(counts.accepted):
        diagnosis.findings.append(
            warning(
                f"drafts were {counts.mean_draft_length:.1f} tokens long on average, of {len(counts.accepted)}, and "
                "nothing tells how many got to each position: acceptance of the later ones is at least what is shown"
            )
        )
    first = float(known[0])
    diagnosis.findings.append(_of_drafter(first))
    if first >= NEVER_RIGHT:
        diagnosis.findings += _of_length(counts, diagnosis, survival)
    return diagnosis


def _nothing(text: str) -> Diagnosis:
    return Diagnosis(np.zeros(0), np.ones(1), np.ones(1), [warning(text)])


def _of_drafter(first: float) -> Finding:
    share = f"{first:.1%} of first draft tokens are accepted"
    if first < NEVER_RIGHT:
        return bad(
            f"{share}: the drafter is never right here. This is a fault of the set-up, not hard text. "
            "Until it is found, speculation only costs: turn it off.",
            NEVER_RIGHT_CHECKS,
        )
    if first < WEAK:
        return warning(f"{share}: a weak drafter for this traffic.", WEAK_CHECKS)
    return good(f"{share}: the drafter fits its target.")


def _of_length(counts: DraftCounts, diagnosis: Diagnosis, survival: FloatArray) -> list[Finding]:
    findings: list[Finding] = []
    dead = np.flatnonzero(survival < DEAD)
    if len(dead):
        findings.append(
            warning(
                f"acceptance dies at position {dead[0] + 1}: less than {DEAD:.0%} of drafts get past it, "
                "and what is drafted from there on is drafted for nothing"
            )
        )
    used = min(round(counts.mean_draft_length), len(survival))
    tokens, here = float(diagnosis.tokens_per_step[used]), float(diagnosis.speedup[used])
    findings.append(
        good(
            f"a step that drafts {used} makes {tokens:.2f} tokens a request: it pays as long as it takes less than "
            f"{tokens:.2f} times as long as a plain one"
        )
    )
    best = diagnosis.best_length
    if best == 0:
        findings.append(bad("at the assumed cost no draft length pays: turn speculation off"))
    elif best == used:
        findings.append(
            good(f"at the assumed cost {best} is the best fixed length: {here:.2f} × a plain step's tokens")
        )
    else:
        findings.append(
            warning(
                f"at the assumed cost {best} would be a better fixed length than {used}: "
                f"{diagnosis.speedup[best]:.2f} × no speculation instead of {here:.2f} ×"
            )
        )
    return findings


def compare(run: BenchResult, baseline: BenchResult) -> list[Finding]:
    """Findings from a run with speculation and one without."""
    findings: list[Finding] = []
    if baseline.counts is not None:
        findings.append(warning(f"{baseline.path} speculates too: this compares two ways of speculating"))
    for what, ours, theirs in (
        ("request rate", run.request_rate, baseline.request_rate),
        ("maximum concurrency", run.max_concurrency, baseline.max_concurrency),
    ):
        if ours != theirs:
            findings.append(bad(f"not the same experiment: {what} {ours} here, {theirs} there"))
    longer = run.tokens_per_request / baseline.tokens_per_request
    if abs(math.log(longer)) > math.log1p(LENGTH_TOLERANCE):
        findings.append(
            bad(
                f"not the same work: {run.tokens_per_request:.0f} tokens a request here, "
                f"{baseline.tokens_per_request:.0f} there. Speculation does not change what is written; fix the "
                "lengths (--ignore-eos) or the sampling before comparing."
            )
        )
    throughput = run.output_throughput / baseline.output_throughput
    tpot, ttft = run.mean_tpot_ms / baseline.mean_tpot_ms, run.p99_ttft_ms / baseline.p99_ttft_ms
    # At a fixed rate the throughput is the rate's, whatever speculation does.
    gains = [1.0 / tpot] if run.request_rate == baseline.request_rate != "inf" else [throughput, 1.0 / tpot]
    pays = min(gains) >= 1.0 - NOISE
    text = f"measured: {throughput:.2f} × the output tokens/s and {tpot:.2f} × the mean TPOT of no speculation"
    findings.append(good(text) if pays else bad(text))
    if ttft > TTFT_TOLERANCE:
        findings.append(
            warning(
                f"measured: {ttft:.2f} × the P99 TTFT of no speculation: first tokens wait for the drafter's prefill "
                "and its first draft; a shorter draft delays them less"
            )
        )
    return findings
