from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from turbospec.hosts.vllm.shared.support import (
    SetUp,
    drafts_in_one_pass,
    drafts_late,
    kept_tokens,
    may_be_scheduled_by_us,
    unsupported,
)

SUPPORTED = SetUp((0, 32, 0), "draft_model")


@pytest.mark.parametrize("version", [(0, 29, 0), (0, 32, 0), (0, 30, "1rc0")])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram", "suffix", "medusa", "dflash"])
def test_known_versions_and_methods_are_supported(version: tuple[int | str, ...], method: str) -> None:
    assert unsupported(SetUp(version, method)) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": None}, "--speculative-config"),
        ({"version": (0, 28, 1)}, "vLLM 0.28"),
        ({"version": (1, 0, 0)}, "vLLM 1.0"),
        ({"method": "extract_hidden_states"}, "drafts nothing"),
        ({"method": "mlp_speculator"}, "no drafter"),
        ({"method": "of tomorrow"}, "'of tomorrow'"),
        ({"draft_tokens": 129}, "num_speculative_tokens is 129"),
        ({"adaptive_verification": True}, "enable_adaptive_verification"),
        ({"data_parallel_size": 2, "experts": True}, "mixture of experts"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"scheduler_per_rank": True}, "external_launcher"),
        ({"target_mla": True, "async_scheduling": True}, "--attention-backend to FLASH_ATTN_MLA"),
        (
            {"target_mla": True, "async_scheduling": True, "attention_backend": "TRITON_MLA"},
            "--no-async-scheduling",
        ),
        (
            {
                "target_mla": True,
                "async_scheduling": True,
                "attention_backend": "FLASHINFER_MLA",
                "version": (0, 30, 0),
            },
            "--attention-backend to FLASH_ATTN_MLA, or --no-async-scheduling",
        ),
        ({"model_runner_v2": True, "version": (0, 31, 0)}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"lookup": True, "method": "ngram"}, "not 'ngram'"),
        ({"lookup": True, "method": "medusa"}, "not 'medusa'"),
        ({"lookup": True, "version": (0, 31, 0)}, "lookup needs vLLM 0.32"),
        ({"lookup": True, "watermarks_drafts": True}, "allow_target_only_watermarking"),
    ],
)
def test_what_cannot_be_told_a_length_is_said_why(change: dict[str, Any], says: str) -> None:
    reason = unsupported(replace(SUPPORTED, **change))
    assert reason is not None
    assert says in reason


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp", "dflash"])
def test_a_look_up_is_offered_beside_a_model(method: str) -> None:
    assert unsupported(replace(SUPPORTED, method=method, lookup=True)) is None


def test_a_drafter_whose_drafts_have_watermarks_is_supported() -> None:
    assert unsupported(replace(SUPPORTED, method="eagle3", watermarks_drafts=True)) is None


def test_engines_of_dense_models_have_controllers_of_their_own() -> None:
    assert unsupported(replace(SUPPORTED, data_parallel_size=2)) is None


def a_worker(**change: Any) -> SimpleNamespace:
    """vLLM's configuration in a worker, where TurboSpec's scheduler gives orders, but for the changes."""
    own = {
        "method": "eagle3",
        "scheduler_cls": "turbospec.hosts.vllm.scheduler.schedulers.TurboSpecScheduler",
        "additional_config": {"turbospec": "adaptive"},
        "is_multimodal_model": False,
        "use_v2_model_runner": False,
        "async_scheduling": False,
        "kv_transfer_config": None,
        "disable_padded_drafter_batch": False,
        "drafter": {},
        "use_mla": False,
        "context_parallel": "decode",
        "context_parallel_size": 1,
    } | change
    parallel = {f"{own['context_parallel']}_context_parallel_size": own["context_parallel_size"]}
    return SimpleNamespace(
        speculative_config=own["method"]
        and SimpleNamespace(
            method=own["method"],
            disable_padded_drafter_batch=own["disable_padded_drafter_batch"],
            draft_model_config=SimpleNamespace(
                hf_text_config=SimpleNamespace(**own["drafter"]), use_mla=own["use_mla"]
            ),
        ),
        scheduler_config=SimpleNamespace(scheduler_cls=own["scheduler_cls"], async_scheduling=own["async_scheduling"]),
        model_config=SimpleNamespace(is_multimodal_model=own["is_multimodal_model"]),
        parallel_config=SimpleNamespace(**{"decode_context_parallel_size": 1} | parallel),
        additional_config=own["additional_config"],
        use_v2_model_runner=own["use_v2_model_runner"],
        kv_transfer_config=own["kv_transfer_config"],
    )


@pytest.mark.parametrize(
    "change",
    [
        {"method": None},
        {"scheduler_cls": None},
        {"scheduler_cls": "another.Scheduler", "additional_config": {}},
        {"scheduler_cls": "another.Scheduler", "additional_config": object()},
    ],
)
def test_workers_are_left_alone_unless_a_scheduler_gives_orders(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TURBOSPEC_POLICY", raising=False)
    assert may_be_scheduled_by_us(a_worker())
    assert not may_be_scheduled_by_us(a_worker(**change))


def test_a_worker_knows_our_scheduler_where_the_environment_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURBOSPEC_POLICY", raising=False)
    assert may_be_scheduled_by_us(a_worker(additional_config={}))


def test_a_worker_of_another_scheduler_hears_of_a_policy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "adaptive")
    assert may_be_scheduled_by_us(a_worker(scheduler_cls="another.Scheduler", additional_config={}))


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ngram"},
        {"is_multimodal_model": True},
        {"kv_transfer_config": object()},
        {"disable_padded_drafter_batch": True},
        {"context_parallel_size": 2},
        {"context_parallel": "prefill", "context_parallel_size": 2},
        {"drafter": {"sliding_window": 512}},
        {"drafter": {"attention_chunk_size": 8192}},
        {"drafter": {"layer_types": ["full_attention", "sliding_attention"]}},
        {"drafter": {"layer_types": ["chunked_attention"], "sliding_window": None}},
        {"drafter": {"sliding_window_size": 128}},  # of MiMo
        {"drafter": {"sliding_window_size": 512, "local_layer_ids": [0]}},  # of Inkling
        {"method": "dflash", "drafter": {"layer_types": ["full_attention"], "dflash_config": {"use_swa": True}}},
        {"use_mla": True},
    ],
)
def test_some_drafters_run_in_every_step(change: dict[str, Any]) -> None:
    assert kept_tokens(a_worker()) > 0
    assert kept_tokens(a_worker(**change)) == 0


@pytest.mark.parametrize(
    "drafter",
    [
        {"layer_types": ["full_attention"], "sliding_window": 512},
        {"use_sliding_window": False, "sliding_window": 512},
        {"sliding_window_size": 512, "local_layer_ids": []},
        {"sliding_window_size": -1},
        {"dflash_config": {"use_swa": False}},
    ],
)
def test_a_window_that_no_layer_has_is_none(drafter: dict[str, Any]) -> None:
    assert kept_tokens(a_worker(drafter=drafter)) > 0


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ngram"},
        {"async_scheduling": True},
        {"use_v2_model_runner": True},
        {"kv_transfer_config": object()},
    ],
)
def test_some_drafters_cannot_wait_for_the_tokens(change: dict[str, Any]) -> None:
    assert drafts_late(a_worker())
    assert not drafts_late(a_worker(**change))


@pytest.mark.parametrize(
    ("kind", "model_runner_v2", "keeps"),
    [
        (None, True, True),
        ("use_gemma4_mtp", False, False),
        ("use_step3p5_mtp", False, False),
        ("use_multi_module_mtp", False, True),  # V1 runs its first module only
        ("use_multi_module_mtp", True, False),
    ],
)
def test_mtp_is_kept_for_where_it_is_like_eagle(kind: str | None, model_runner_v2: bool, keeps: bool) -> None:
    worker = a_worker(method="mtp", use_v2_model_runner=model_runner_v2)
    for name in ("use_gemma4_mtp", "use_step3p5_mtp", "use_multi_module_mtp"):
        setattr(worker.speculative_config, name, lambda name=name: name == kind)
    assert (kept_tokens(worker) > 0) == keeps


@pytest.mark.parametrize(
    ("method", "parallel_drafting", "one_pass"),
    [("eagle3", False, False), ("eagle3", True, True), ("draft_model", True, True), ("suffix", False, True)],
)
def test_some_drafters_need_one_pass_for_any_length(method: str, parallel_drafting: bool, one_pass: bool) -> None:
    assert drafts_in_one_pass(SimpleNamespace(method=method, parallel_drafting=parallel_drafting)) == one_pass
