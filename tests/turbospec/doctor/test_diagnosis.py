from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from turbospec.doctor.counts import BenchResult, DraftCounts
from turbospec.doctor.diagnosis import Diagnosis, StepCost, compare, diagnose

COST = StepCost(draft_token=0.1, verify_token=0.02)


def counts(*survival: float, drafts: int = 10_000) -> DraftCounts:
    return DraftCounts(drafts, drafts * len(survival), tuple(rate * drafts for rate in survival))


def texts(diagnosis: Diagnosis, severity: str) -> str:
    return " | ".join(finding.text for finding in diagnosis.findings if finding.severity == severity)


def test_table_b_is_recognised() -> None:
    """2 of 25,182 drafted tokens accepted, K = 3: a fault of the set-up, with what to check."""
    diagnosis = diagnose(DraftCounts(8394, 25_182, (2.0, 0.0, 0.0)), COST)
    assert "does not match its target" in texts(diagnosis, "bad")
    (finding,) = [finding for finding in diagnosis.findings if finding.severity == "bad"]
    for cause in ("quantised", "d2t", "checkpoint", "Chat template", "tokenizer"):
        assert any(cause in check for check in finding.checks)
    assert diagnosis.best_length == 0


def test_a_long_draft_of_which_little_is_accepted_is_told_a_better_length() -> None:
    survival = [0.6, 0.3, 0.12, 0.04, 0.01, *[0.0] * 10]
    diagnosis = diagnose(counts(*survival), COST)
    assert "positions from 4 on are wasted" in texts(diagnosis, "warning")
    assert diagnosis.best_length == 2
    assert "K = 2 is a better fixed K than 15" in texts(diagnosis, "warning")


def test_the_best_length_is_that_of_the_arithmetic() -> None:
    diagnosis = diagnose(counts(0.8, 0.6, 0.4), COST)
    expected = [1.0, 1.8 / 1.12, 2.4 / 1.24, 2.8 / 1.36]
    assert diagnosis.speedup.tolist() == pytest.approx(expected)
    assert diagnosis.tokens_per_step.tolist() == pytest.approx([1.0, 1.8, 2.4, 2.8])
    assert diagnosis.best_length == 3
    assert "K = 3 is the best fixed K" in texts(diagnosis, "good")


def test_where_drafting_is_dear_nothing_pays() -> None:
    diagnosis = diagnose(counts(0.5, 0.2), StepCost(draft_token=0.9, verify_token=0.1))
    assert diagnosis.best_length == 0
    assert "no K pays" in texts(diagnosis, "bad")


def test_a_weak_drafter_is_no_fault() -> None:
    diagnosis = diagnose(counts(0.3, 0.1), COST)
    assert "the drafter is weak" in texts(diagnosis, "warning")


def test_few_drafts_make_rough_findings() -> None:
    assert "only 30 drafts" in texts(diagnose(counts(0.7, 0.4, drafts=30), COST), "warning")
    assert texts(diagnose(counts(0.7, 0.4, drafts=200), COST), "warning") == ""


@pytest.mark.parametrize("nothing", [None, DraftCounts(0, 0, (0.0, 0.0)), DraftCounts(50, 100, ())])
def test_counts_without_drafts_are_said(nothing: DraftCounts | None) -> None:
    diagnosis = diagnose(nothing, COST)
    assert [finding.severity for finding in diagnosis.findings] == ["warning"]
    assert diagnosis.best_length is None  # not 0, which a script would take for advice


def test_the_last_drafts_of_requests_may_be_shorter() -> None:
    shorter = DraftCounts(1000, 1850, (800.0, 600.0))
    assert "a step with K = 2 emits 2.40 tokens" in texts(diagnose(shorter, COST), "good")
    eight = diagnose(DraftCounts(1000, 7300, tuple(1000 * 0.95**j for j in range(1, 9))), COST)
    assert "K = 8 is the best fixed K" in texts(eight, "good")
    assert texts(eight, "warning") == ""


RUN = BenchResult(Path("run.json"), counts(0.6, 0.3), 130.0, 8.0, 60.0, 5000, 50, 6000, "inf", 8, "a model", 50)
PLAIN = BenchResult(Path("plain.json"), None, 100.0, 10.0, 58.0, 5000, 50, 6000, "inf", 8, "a model", 50)


def test_where_turbospec_chooses_k_no_fixed_one_is_advised() -> None:
    """1,000 drafts of one token, accepted in 3 cases of 10, and 1,000 of five, each token in 9 of 10."""
    accepted = (1200.0, 810.0, 729.0, 656.0, 590.0)
    diagnosis = diagnose(DraftCounts(2000, 6000, accepted, (2000.0, *[1000.0] * 4)), COST)
    said = texts(diagnosis, "good")
    assert "TurboSpec chooses K, 3.0 on average" in said
    assert "emits 2.99 tokens" in said
    assert not any("num_speculative_tokens" in finding.text for finding in diagnosis.findings)
    assert diagnosis.best_length is None


def test_a_server_without_a_counted_draft_yet_is_no_error() -> None:
    diagnosis = diagnose(DraftCounts(40, 80, (0.0, 0.0), (0.0, 0.0)), StepCost(0.08, 0.02))
    assert "watch for longer" in texts(diagnosis, "warning")


def test_drafts_of_unequal_lengths_are_said_where_positions_are_not_counted() -> None:
    uneven = DraftCounts(1000, 1500, (800.0, 200.0, 50.0))
    assert "at least what is shown" in texts(diagnose(uneven, StepCost(0.08, 0.02)), "warning")
    counted = DraftCounts(1000, 1500, (800.0, 200.0, 50.0), (1000.0, 400.0, 100.0))
    for even in (counts(0.8, 0.5), counted):
        assert "at least what is shown" not in texts(diagnose(even, StepCost(0.08, 0.02)), "warning")


def test_drafts_of_unequal_lengths_name_no_fixed_k() -> None:
    """Of 20,000 drafts, 1,000 have five tokens, nearly all accepted: no position is wasted."""
    accepted = (12_000.0, *(950.0 * 0.97**place for place in range(4)))
    diagnosis = diagnose(DraftCounts(20_000, 24_000, accepted), StepCost(0.08, 0.02))
    assert diagnosis.best_length is None
    said = " ".join(finding.text for finding in diagnosis.findings)
    assert "no fixed K can be named" in said
    assert "wasted" not in said
    assert "num_speculative_tokens" not in said


def test_a_turbospec_that_is_off_is_said_and_its_old_counts_are_not_judged() -> None:
    for drafts in (0, 9000):
        failed = DraftCounts(drafts, 3 * drafts, (80.0, 20.0), (100.0, 50.0), engines=2, engines_off=2)
        (finding,) = diagnose(failed, COST).findings
        assert finding.severity == "bad"
        assert "TurboSpec is off, and vLLM drafts its own length" in finding.text


def test_of_several_engines_those_that_are_on_are_judged() -> None:
    partly = DraftCounts(9000, 18_000, (5000.0, 2000.0), (9000.0, 9000.0), engines=4, engines_off=1)
    diagnosis = diagnose(partly, COST)
    assert "in 1 of 4 engines" in texts(diagnosis, "bad")
    assert "TurboSpec chooses K" in texts(diagnosis, "good")


def severities(run: BenchResult, baseline: BenchResult) -> list[tuple[str, str]]:
    return [(finding.severity, finding.text.split(":")[0]) for finding in compare(run, baseline)]


def test_a_measured_gain_is_said() -> None:
    assert severities(RUN, PLAIN) == [("good", "measured")]


def test_a_measured_loss_is_said() -> None:
    slow = replace(RUN, output_throughput=60.0, mean_tpot_ms=17.0, p99_ttft_ms=130.0)
    assert severities(slow, PLAIN) == [("bad", "measured"), ("warning", "measured")]


def test_at_a_fixed_rate_the_time_per_token_tells() -> None:
    """Both servers keep up: their throughputs are that of the arrivals."""
    plain, run = replace(PLAIN, request_rate="2.0"), replace(RUN, request_rate="2.0", output_throughput=101.0)
    assert severities(replace(run, mean_tpot_ms=6.0), plain) == [("good", "measured")]
    assert severities(replace(run, mean_tpot_ms=11.0), plain) == [("bad", "measured")]
    longer = replace(run, output_tokens=5400, output_throughput=108.0, mean_tpot_ms=11.0)
    assert severities(longer, plain) == [("bad", "measured")]  # as many requests/s


def test_at_a_rate_with_which_a_server_does_not_keep_up_the_throughput_tells() -> None:
    """A full batch has long steps: the slower server may have the lower TPOT."""
    plain, run = replace(PLAIN, request_rate="2.0"), replace(RUN, request_rate="2.0", p99_ttft_ms=300.0)
    loss, queue = compare(replace(run, output_throughput=80.0, mean_tpot_ms=8.0), plain)
    assert loss.severity == "bad"
    assert "this server took longer for the requests: it did not keep up with 2.0 requests/s" in loss.text
    assert "queue" in queue.text
    gain, first_token = compare(replace(run, output_throughput=120.0, mean_tpot_ms=10.4), plain)
    assert gain.severity == "good"
    assert "the baseline took longer for the requests: it did not keep up" in gain.text
    assert "queue" not in first_token.text


def test_a_short_run_is_no_proof_of_a_server_that_does_not_keep_up() -> None:
    """100 answers of 200 tokens, begun within 10 s: the last ends after 12 s, in the baseline after 14 s."""
    plain = replace(PLAIN, request_rate="10.0", output_throughput=20_000 / 14, mean_tpot_ms=20.0)
    run = replace(RUN, request_rate="10.0", output_throughput=20_000 / 12, mean_tpot_ms=10.0)
    (gain,) = compare(run, plain)
    assert gain.severity == "good"
    assert "or the run is short" in gain.text


def test_without_a_rate_both_figures_tell() -> None:
    assert severities(replace(RUN, output_throughput=90.0, mean_tpot_ms=6.0), PLAIN) == [("bad", "measured")]


def test_a_loss_within_noise_is_none() -> None:
    assert severities(replace(RUN, output_throughput=99.0, mean_tpot_ms=10.1), PLAIN) == [("good", "measured")]
    assert severities(replace(RUN, output_throughput=97.0, mean_tpot_ms=10.1), PLAIN) == [("bad", "measured")]


def test_a_first_token_time_that_a_run_lacks_is_not_compared() -> None:
    for missing in (None, 0.0):
        assert severities(RUN, replace(PLAIN, p99_ttft_ms=missing)) == [("good", "measured")]
        assert severities(replace(RUN, p99_ttft_ms=missing), PLAIN) == [("good", "measured")]


def test_runs_that_cannot_be_compared_are_not() -> None:
    """The second run of table B wrote answers 1.6 times as long and ran fewer requests at once."""
    other = replace(RUN, output_tokens=8000, max_concurrency=64)
    found = severities(other, PLAIN)
    assert found[:2] == [("bad", "not the same experiment"), ("bad", "not the same work")]
    for changes in ({"model": "another"}, {"prompts": 47}, {"max_concurrency": None}):
        assert severities(replace(RUN, **changes), PLAIN)[0] == ("bad", "not the same experiment")
    longer = replace(RUN, input_tokens=2 * RUN.input_tokens)
    assert severities(longer, PLAIN)[0] == ("bad", "not the same work")
    assert severities(replace(RUN, input_tokens=0, model="", prompts=None), PLAIN) == [("good", "measured")]
    found = compare(replace(RUN, completed=49), PLAIN)
    assert [finding.severity for finding in found] == ["warning", "good"]
    assert "49 requests were completed, in the baseline 50" in found[0].text
    assert "speculates too" in compare(RUN, RUN)[0].text
