"""Findings about speculation on a server, from counts of drafted and accepted tokens.

A step with draft length K emits 1 + S_1 + … + S_K tokens per request, S_j being the probability that positions 1 to j
are all accepted (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023), and takes longer
than a step without drafts. Counts give the tokens and not the time, so they yield a break-even: how much longer the
step may take. An assumed cost per drafted and per verified token gives the speedup of each K, and the best K. A run
without speculation as baseline gives the measured gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from turbospec.doctor.counts import BenchResult, DraftCounts
from turbospec.interface import FloatArray

ENOUGH_DRAFTS = 200
MISMATCH = 0.05
"""Acceptance rate of the first position below which the set-up is at fault, and not the text hard to predict."""
WEAK = 0.4
"""Acceptance rate of the first position below which the drafter is called weak."""
WASTED = 0.05
"""Probability of acceptance, of a position and all before it, below which the position is useless."""
LENGTH_TOLERANCE = 0.1
"""Relative difference in tokens per request above which two runs did different work."""
EVEN_LENGTHS = 0.9
"""Mean over maximum draft length below which K was not constant. Not 1: the last drafts of a request are shorter."""
TTFT_TOLERANCE = 1.1
"""Ratio of P99 TTFT to the baseline's above which it is reported."""
NOISE = 0.02
"""Relative difference that two runs of the same configuration may show."""

Severity = Literal["good", "warning", "bad"]


@dataclass(slots=True, frozen=True)
class StepCost:
    """Time that drafting adds to a step, as fractions of a step without drafts."""

    draft_token: float
    """Per drafted position: one drafter pass."""
    verify_token: float
    """Per verified position."""

    def of(self, length: int) -> float:
        """Duration of a step with K = `length`; 1 for K = 0."""
        return 1.0 + length * (self.draft_token + self.verify_token)


@dataclass(slots=True, frozen=True)
class Finding:
    """One statement about a server, with its severity and what to check."""

    severity: Severity
    text: str
    checks: tuple[str, ...] = ()
    """What to check, the most likely cause first."""


def good(text: str) -> Finding:
    return Finding("good", text)


def warning(text: str, checks: tuple[str, ...] = ()) -> Finding:
    return Finding("warning", text, checks)


def bad(text: str, checks: tuple[str, ...] = ()) -> Finding:
    return Finding("bad", text, checks)


@dataclass(slots=True)
class Diagnosis:
    """What drafts are worth on a server: acceptance by position, speedup by K, and the findings."""

    conditional: FloatArray
    """(K,) acceptance rate of each position, given that all before it were accepted; NaN without observations."""
    tokens_per_step: FloatArray
    """(K + 1,) expected tokens per request of a step with draft length 0 … K; empty where the draft length varies, and
    without drafts."""
    speedup: FloatArray
    """(K + 1,) tokens per step time at the assumed cost, relative to a step without drafts; empty likewise."""
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def best_length(self) -> int | None:
        """The fixed K with the largest speedup at the assumed cost; 0: no draft; None without `speedup`."""
        return int(np.argmax(self.speedup)) if len(self.speedup) else None


MISMATCH_CHECKS = (
    "Quantised target, drafter trained for the unquantised one: serve the unquantised target for a few requests; if "
    "they are accepted, retrain the drafter on the quantised target's output or use another quantisation.",
    "Wrong mapping of the draft vocabulary (EAGLE-3): the drafter's checkpoint must hold d2t and t2d, d2t as long as "
    "draft_vocab_size in the drafter's config.json.",
    "Wrong checkpoint: compare the drafter's config.json (hidden size, vocabulary, layers of the target that it reads) "
    "and the target named in its model card with the model that is served.",
    "Wrong tokenizer: compare the vocabularies of drafter and target; a draft model needs the target's.",
    "Chat template: send the exact text format of the drafter's training data to /v1/completions; if it is accepted "
    "there, the template of /v1/chat/completions differs (--chat-template).",
)
WEAK_CHECKS = (
    "The drafter's training data differ from this traffic: compare the acceptance rate on prompts of its own domain.",
    "High temperature: greedy drafts match sampled tokens less often. Compare with temperature 0; if that is the "
    'cause, add "draft_sample_method": "probabilistic" to --speculative-config.',
)


def diagnose(counts: DraftCounts | None, cost: StepCost) -> Diagnosis:
    """Findings from counts and an assumed cost.

    Args:
        counts: drafted and accepted tokens; None where nothing was drafted.
        cost: assumed cost of drafting.
    """
    if counts is not None and 0 < counts.engines == counts.engines_off:
        return _nothing(
            bad(
                "TurboSpec is off, and vLLM drafts its own length in every step: TurboSpec could not start, or "
                "repeated faults turned it off. The server's log says what failed"
            )
        )
    if counts is None or counts.drafts <= 0:
        return _nothing(warning("nothing was drafted in this time: no request was decoding, or speculation was off"))
    if not counts.accepted:
        return _nothing(warning("the server does not count accepted tokens by position"))
    if counts.positions == 0:
        return _nothing(
            warning("TurboSpec's metrics, which lag by a second, show no draft yet; watch for longer (--seconds)")
        )
    known = counts.conditional()[: counts.positions]
    survival: FloatArray = np.cumprod(np.nan_to_num(known), dtype=np.float64)  # unobserved: 0
    tokens = np.concatenate([[1.0], 1.0 + np.cumsum(survival)])
    speedup = tokens / np.array([cost.of(length) for length in range(len(tokens))])
    varying = counts.drafted is None and counts.mean_draft_length < EVEN_LENGTHS * len(counts.accepted)
    one_length = counts.drafted is None and not varying
    of_fixed_lengths = (tokens, speedup) if one_length else (np.zeros(0), np.zeros(0))
    diagnosis = Diagnosis(known, *of_fixed_lengths)
    if counts.engines_off:
        diagnosis.findings.append(
            bad(
                f"TurboSpec is off in {counts.engines_off} of {counts.engines} engines, which draft vLLM's own length: "
                "the server's log says what failed"
            )
        )
    if counts.drafts < ENOUGH_DRAFTS:
        diagnosis.findings.append(
            warning(f"only {counts.drafts} drafts were counted: the findings below are rough; repeat with more traffic")
        )
    if varying:
        diagnosis.findings.append(
            warning(
                f"the mean draft length is {counts.mean_draft_length:.1f} of {len(counts.accepted)}, and the server "
                "does not count drafts by position: the acceptance rate of later positions is at least what is shown, "
                "and no fixed K can be named. Measure with one draft length, or with TurboSpec's metrics"
            )
        )
    first = float(known[0])
    diagnosis.findings.append(_of_drafter(first))
    if first >= MISMATCH:
        if one_length:
            diagnosis.findings += _of_length(diagnosis, survival)
        elif counts.drafted is not None:
            diagnosis.findings.append(_of_chosen_lengths(counts.drafted, counts.accepted))
    return diagnosis


def _nothing(finding: Finding) -> Diagnosis:
    """A diagnosis without figures."""
    return Diagnosis(np.zeros(0), np.zeros(0), np.zeros(0), [finding])


def _of_drafter(first: float) -> Finding:
    share = f"{first:.1%} of first draft tokens are accepted"
    if first < MISMATCH:
        return bad(
            f"{share}: the drafter does not match its target. This is a fault of the set-up, not of the text, unless "
            "it is a look-up (`ngram`, `suffix`), which finds drafts only where text repeats. Until it is found, "
            "speculation only costs time: start vLLM without --speculative-config.",
            MISMATCH_CHECKS,
        )
    if first < WEAK:
        return warning(f"{share}: the drafter is weak on this traffic.", WEAK_CHECKS)
    return good(f"{share}: the drafter matches its target.")


def _of_length(diagnosis: Diagnosis, survival: FloatArray) -> list[Finding]:
    findings: list[Finding] = []
    wasted = np.flatnonzero(survival < WASTED)
    if len(wasted):
        findings.append(
            warning(
                f"positions from {wasted[0] + 1} on are wasted: under {WASTED:.0%} of drafts are accepted that far. "
                f'Set "num_speculative_tokens" to {wasted[0]} or less in --speculative-config'
            )
        )
    used = len(survival)  # the mean draft length is below it: the last drafts of requests are shorter
    tokens, here = float(diagnosis.tokens_per_step[used]), float(diagnosis.speedup[used])
    findings.append(
        good(
            f"a step with K = {used} emits {tokens:.2f} tokens per request: it pays if it takes less than {tokens:.2f} "
            "× the time of a step without drafts"
        )
    )
    best = diagnosis.best_length
    if best == 0:
        findings.append(bad("at the assumed cost no K pays: start vLLM without --speculative-config"))
    elif best == used:
        findings.append(
            good(f"at the assumed cost K = {best} is the best fixed K: {here:.2f} × the throughput of no speculation")
        )
    else:
        findings.append(
            warning(
                f"at the assumed cost K = {best} is a better fixed K than {used}: {diagnosis.speedup[best]:.2f} × the "
                f'throughput of no speculation instead of {here:.2f} ×; set "num_speculative_tokens" in '
                "--speculative-config"
            )
        )
    return findings


def _of_chosen_lengths(drafted: Sequence[float], accepted: Sequence[float]) -> Finding:
    """Of a server where TurboSpec chooses K; both arguments count tokens by position.

    Drafts are long there where they are expected to be accepted: acceptance by position is no estimate for a fixed K.
    """
    tokens, mean = 1.0 + sum(accepted) / drafted[0], sum(drafted) / drafted[0]
    return good(
        f"TurboSpec chooses K, {mean:.1f} on average: a request that drafts emits {tokens:.2f} tokens in the step, "
        f"which pays if the step takes less than {tokens:.2f} × the time of one without drafts. Its long drafts are "
        "those that it expects to be accepted: the acceptance of later positions says nothing about a fixed K"
    )


def compare(run: BenchResult, baseline: BenchResult) -> list[Finding]:
    """Findings from a run with speculation and its baseline without."""
    findings: list[Finding] = []
    if baseline.counts is not None:
        findings.append(warning(f"the baseline {baseline.path} speculates too: this compares two ways of speculation"))
    settings = [
        ("request rate", run.request_rate, baseline.request_rate),
        ("maximum concurrency", run.max_concurrency, baseline.max_concurrency),  # None: not limited
    ]
    if run.model and baseline.model:
        settings.append(("model", run.model, baseline.model))
    if run.prompts and baseline.prompts:
        settings.append(("number of prompts", run.prompts, baseline.prompts))
    for what, ours, theirs in settings:
        if ours != theirs:
            findings.append(bad(f"not the same experiment: {what} {ours}, baseline {theirs}"))
    if run.prompts == baseline.prompts and run.completed != baseline.completed:
        findings.append(
            warning(f"{run.completed} requests were completed, in the baseline {baseline.completed}: others failed")
        )
    longer = run.tokens_per_request / baseline.tokens_per_request
    if abs(math.log(longer)) > math.log1p(LENGTH_TOLERANCE):
        findings.append(
            bad(
                f"not the same work: {run.tokens_per_request:.0f} tokens per request, baseline "
                f"{baseline.tokens_per_request:.0f}. Speculation does not change output lengths; run both with "
                "--ignore-eos, or with the same sampling options, and compare again."
            )
        )
    prompts = run.prompt_tokens_per_request, baseline.prompt_tokens_per_request
    if all(prompts) and abs(math.log(prompts[0] / prompts[1])) > math.log1p(LENGTH_TOLERANCE):
        findings.append(
            bad(f"not the same work: {prompts[0]:.0f} prompt tokens per request, baseline {prompts[1]:.0f}")
        )
    throughput = run.output_throughput / baseline.output_throughput
    tpot = run.mean_tpot_ms / baseline.mean_tpot_ms
    # In a long run, servers that keep up with a fixed rate serve as many requests/s, with speculation or without.
    fixed_rate = run.request_rate == baseline.request_rate != "inf"
    served = throughput / longer
    unequal = fixed_rate and abs(math.log(served)) > math.log1p(NOISE)
    if unequal:
        gains = [served]
    elif fixed_rate:
        gains = [1.0 / tpot]
    else:
        gains = [throughput, 1.0 / tpot]
    pays = min(gains) >= 1.0 - NOISE
    text = f"measured: {throughput:.2f} × the output tokens/s and {tpot:.2f} × the mean TPOT of the baseline"
    if unequal:
        who = "this server" if served < 1.0 else "the baseline"
        # A short run ends when its last answer does, long after the last arrival, whether or not a queue had formed.
        text += (
            f"; {who} took longer for the requests: it did not keep up with {run.request_rate} requests/s, or the run "
            "is short; the throughput decides"
        )
    findings.append(good(text) if pays else bad(text))
    if run.p99_ttft_ms and baseline.p99_ttft_ms and (ttft := run.p99_ttft_ms / baseline.p99_ttft_ms) > TTFT_TOLERANCE:
        text = f"measured: {ttft:.2f} × the P99 TTFT of the baseline: "
        if unequal and served < 1.0:
            text += (
                "if the server did not keep up with the rate, requests waited in its queue, otherwise for the drafter; "
                "compare at a lower rate, or in a longer run"
            )
        else:
            text += (
                "first tokens wait for the drafter's prefill and first draft; a smaller "
                '"num_speculative_tokens" delays them less'
            )
        findings.append(warning(text))
    return findings
