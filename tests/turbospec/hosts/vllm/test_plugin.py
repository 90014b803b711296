"""The plugin on a stand-in for vLLM's arguments: a server starts, or is refused with one line."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

from turbospec.errors import UserError
from turbospec.hosts.vllm import plugin
from turbospec.hosts.vllm.shared import support
from turbospec.hosts.vllm.shared.metrics_file import METRICS_FILE_VARIABLE, MetricsFileReader

SERVER, BATCH_RUNNER, SCRIPT = "a server", "vllm run-batch", "a script"


class EngineArgs:
    """vLLM's, for a server with a draft model."""

    def __init__(self, additional_config: Any = None) -> None:
        self.additional_config = additional_config
        self.speculative_config = {"method": "draft_model"}
        self.scheduler_cls = None
        self.data_parallel_size = self.pipeline_parallel_size = self.tensor_parallel_size = 1
        self.distributed_executor_backend: str | None = None

    def create_speculative_config(self) -> Any:
        return SimpleNamespace(
            method="draft_model",
            num_speculative_tokens=5,
            num_speculative_tokens_per_batch_size=None,
            target_model_config=SimpleNamespace(is_moe=False, use_mla=False),
        )

    def create_engine_config(self, usage_context: Any = None) -> Any:
        return SimpleNamespace(
            model_config=SimpleNamespace(served_model_name="m"),
            speculative_config=self.create_speculative_config(),
            scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=False),
            parallel_config=SimpleNamespace(
                data_parallel_size=1,
                pipeline_parallel_size=1,
                tensor_parallel_size=self.tensor_parallel_size,
                distributed_executor_backend=self.distributed_executor_backend or "uni",
            ),
            use_v2_model_runner=False,
        )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """vLLM's modules, by the names that the plugin imports; the classes are fresh ones."""
    for name in ("POLICY", "PROFILE", "TRACE", "LOOKUP"):
        monkeypatch.delenv(f"TURBOSPEC_{name}", raising=False)
    monkeypatch.setenv(METRICS_FILE_VARIABLE, "")
    monkeypatch.setenv(plugin.RAY_PREFIXES, "MINE_")
    modules: dict[str, Any] = {
        "vllm.config": {"VllmConfig": type("Config", (), {"_maybe_disable_dynamic_sd_for_data_parallel": None})},
        "vllm.engine.arg_utils": {"EngineArgs": type("EngineArgs", (EngineArgs,), {})},
        "vllm.v1.worker.worker_base": {"WorkerWrapperBase": type("Wrapper", (), {"init_device": lambda _: None})},
        "vllm.usage.usage_lib": {
            "UsageContext": SimpleNamespace(OPENAI_API_SERVER=SERVER, OPENAI_BATCH_RUNNER=BATCH_RUNNER)
        },
        "vllm.version": {"__version_tuple__": (0, 32, 0)},
    }
    modules["vllm.config"]["VllmConfig"]._maybe_disable_dynamic_sd_for_data_parallel = lambda _: None
    for name in ("vllm", "vllm.engine", "vllm.v1", "vllm.v1.worker", "vllm.usage"):
        modules[name] = {"__path__": []}
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    parent = plugin.log.parent
    yield {name: sys.modules[name] for name in modules}
    plugin.log.parent = parent
    for collector in [each for each in REGISTRY._collector_to_names if isinstance(each, MetricsFileReader)]:
        REGISTRY.unregister(collector)
    plugin._shown.clear()


def start(vllm: dict[str, Any], usage: str = SERVER) -> Any:
    """The configuration of a server whose settings are in the environment."""
    plugin.register()
    return vllm["vllm.engine.arg_utils"].EngineArgs().create_engine_config(usage)


def change_configuration(vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Have vLLM make another configuration than the usual one; before `start`."""
    args = vllm["vllm.engine.arg_utils"].EngineArgs
    create = args.create_engine_config

    def create_changed(self: Any, usage_context: Any = None) -> Any:
        config = create(self, usage_context)
        change(config)
        return config

    monkeypatch.setattr(args, "create_engine_config", create_changed)


def test_a_policy_sets_scheduler_and_table_and_a_private_folder(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    config = start(vllm)
    assert config.scheduler_config.scheduler_cls == support.SYNC_SCHEDULER
    assert config.speculative_config.num_speculative_tokens_per_batch_size
    folder = Path(os.environ[METRICS_FILE_VARIABLE]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_process_shows_the_metrics_of_its_last_engine(vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM does its own. Prometheus refuses a page with one series twice."""
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    for steps in (7, 8):
        start(vllm)
        Path(os.environ[METRICS_FILE_VARIABLE]).write_text(
            f"# TYPE turbospec_steps counter\nturbospec_steps_total {steps}\n"
        )
    shown = [line for line in generate_latest(REGISTRY).decode().splitlines() if line.startswith("turbospec_steps")]
    assert shown == ['turbospec_steps_total{engine="0",model_name="m"} 8.0']


def test_without_a_policy_nothing_changes(vllm: dict[str, Any]) -> None:
    config = start(vllm)
    assert config.scheduler_config.scheduler_cls is None
    assert config.speculative_config.num_speculative_tokens_per_batch_size is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TURBOSPEC_POLICY", "adaptiv"),
        ("TURBOSPEC_POLICY", "/"),
        ("TURBOSPEC_POLICY", "/dev/zero"),
        ("TURBOSPEC_POLICY", "no\nsuch.yaml"),
        ("TURBOSPEC_POLICY", "\udcff.yaml"),
        ("TURBOSPEC_POLICY", "x" * 5000),
        ("TURBOSPEC_PROFILE", "/gone.json"),
        ("TURBOSPEC_TRACE", "/dev/null"),
        ("TURBOSPEC_TRACE", "/proc/trace.jsonl"),
        ("TURBOSPEC_LOOKUP", "ngrams"),
    ],
)
def test_a_wrong_setting_is_one_line_and_no_server(
    variable: str,
    value: str,
    vllm: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    monkeypatch.setenv(variable, value)
    for command in (SERVER, BATCH_RUNNER):
        with pytest.raises(SystemExit) as exit:
            start(vllm, command)
        assert exit.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("turbospec: ")
    with pytest.raises(UserError):
        start(vllm, SCRIPT)


def test_a_look_up_beside_a_look_up_is_one_warning(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    monkeypatch.setenv("TURBOSPEC_LOOKUP", "ngram")
    assert start(vllm).scheduler_config.scheduler_cls == support.SYNC_SCHEDULER
    args = vllm["vllm.engine.arg_utils"].EngineArgs()
    own = args.create_speculative_config
    monkeypatch.setattr(args, "create_speculative_config", lambda: SimpleNamespace(**vars(own()) | {"method": "ngram"}))
    with caplog.at_level(logging.WARNING, "turbospec"):
        config = args.create_engine_config(SERVER)
    assert config.scheduler_config.scheduler_cls is None
    assert len(caplog.records) == 1
    assert "lookup is for servers with a drafter of" in caplog.text


@pytest.mark.parametrize(("asynchronous", "backend"), [(True, None), (True, "FLASH_ATTN_MLA"), (False, None)])
def test_a_target_with_mla_is_refused_where_its_drafts_must_have_one_length(
    asynchronous: bool,
    backend: str | None,
    vllm: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")

    def change(config: Any) -> None:
        config.speculative_config.target_model_config.use_mla = True
        config.scheduler_config.async_scheduling = asynchronous
        config.attention_config = SimpleNamespace(backend=backend and SimpleNamespace(name=backend))

    change_configuration(vllm, monkeypatch, change)
    with caplog.at_level(logging.WARNING, "turbospec"):
        chosen = start(vllm).scheduler_config.scheduler_cls
    refused = asynchronous and backend is None
    assert (chosen is None) == refused
    assert ("--no-async-scheduling" in caplog.text) == refused


@pytest.mark.parametrize(
    ("part", "values", "says"),
    [
        ("parallel_config", {"data_parallel_size": 2}, "mixture of experts"),  # by VLLM_DP_SIZE: the arguments have 1
        ("scheduler_config", {"scheduler_cls": "another.Scheduler"}, "another.Scheduler for this model or platform"),
    ],
)
def test_what_only_the_configuration_tells_is_one_warning(
    part: str,
    values: dict[str, Any],
    says: str,
    vllm: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    monkeypatch.setenv("TURBOSPEC_LOOKUP", "ngram")

    def change(config: Any) -> None:
        config.speculative_config.target_model_config.is_moe = True
        setattr(config, part, SimpleNamespace(**vars(getattr(config, part, SimpleNamespace())) | values))

    change_configuration(vllm, monkeypatch, change)
    with caplog.at_level(logging.WARNING, "turbospec"):
        config = start(vllm)
    assert config.scheduler_config.scheduler_cls not in (support.SYNC_SCHEDULER, support.ASYNC_SCHEDULER)
    assert config.speculative_config.num_speculative_tokens_per_batch_size is None
    assert len(caplog.records) == 1
    assert says in caplog.text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2}, "external_launcher"),
        (
            {"create_watermark_config": lambda: SimpleNamespace(allow_target_only_watermarking=False)},
            "no watermark",
        ),
    ],
)
def test_what_the_arguments_tell_is_one_warning_and_no_table(
    values: dict[str, Any],
    says: str,
    vllm: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a table, vLLM's configuration would have piecewise CUDA graphs on model runner V1."""
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    monkeypatch.setenv("TURBOSPEC_LOOKUP", "ngram")
    plugin.register()
    args = vllm["vllm.engine.arg_utils"].EngineArgs()
    vars(args).update(values)
    assert args.create_speculative_config().num_speculative_tokens_per_batch_size is None
    with caplog.at_level(logging.WARNING, "turbospec"):
        config = args.create_engine_config(SERVER)
    assert config.scheduler_config.scheduler_cls is None
    assert len(caplog.records) == 1
    assert says in caplog.text


@pytest.mark.parametrize(
    "values",
    [
        {"distributed_executor_backend": "external_launcher"},
        {"distributed_executor_backend": "mp", "tensor_parallel_size": 2},
    ],
)
def test_one_scheduler_is_controlled(
    values: dict[str, Any], vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    plugin.register()
    args = vllm["vllm.engine.arg_utils"].EngineArgs()
    vars(args).update(values)
    assert args.create_engine_config(SERVER).scheduler_config.scheduler_cls == support.SYNC_SCHEDULER


@pytest.mark.parametrize(("backend", "prefixes"), [("ray", "MINE_,TURBOSPEC_"), ("mp", "MINE_")])
def test_engine_cores_under_ray_get_the_settings(
    backend: str, prefixes: str, vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")

    def change(config: Any) -> None:
        config.parallel_config.data_parallel_backend = backend

    change_configuration(vllm, monkeypatch, change)
    for _ in range(2):
        start(vllm)
        assert os.environ[plugin.RAY_PREFIXES] == prefixes


def test_a_worker_that_cannot_be_wrapped_ends_the_start(vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    plugin.register()
    worker = vllm["vllm.v1.worker.worker_base"].WorkerWrapperBase()
    worker.worker = SimpleNamespace(model_runner=SimpleNamespace(speculator=SimpleNamespace()))
    worker.vllm_config = SimpleNamespace(
        speculative_config=SimpleNamespace(method="medusa"),
        scheduler_config=SimpleNamespace(scheduler_cls=support.SYNC_SCHEDULER),
        additional_config={},
        use_v2_model_runner=True,
    )
    with pytest.raises(RuntimeError, match=r"does not fit this vLLM's model runner .*Error.*without a policy"):
        worker.init_device()


@pytest.mark.parametrize(
    ("model_runner_v2", "attributes"), [(False, {}), (True, {"speculator": None})], ids=["V1", "V2"]
)
def test_a_stage_without_a_drafter_is_left_alone(
    model_runner_v2: bool, attributes: dict[str, Any], vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pipeline parallelism and a scheduler of the user's own; for TurboSpec's it is refused."""
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    plugin.register()
    worker = vllm["vllm.v1.worker.worker_base"].WorkerWrapperBase()
    runner = SimpleNamespace(**attributes)
    worker.worker = SimpleNamespace(model_runner=runner)
    worker.vllm_config = SimpleNamespace(
        speculative_config=SimpleNamespace(method="medusa"),
        scheduler_config=SimpleNamespace(scheduler_cls="another.Scheduler"),
        additional_config={},
        use_v2_model_runner=model_runner_v2,
    )
    worker.init_device()
    assert vars(runner) == attributes


def test_a_vllm_with_other_names_is_left_alone(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM loads its plugins without catching their errors, whether they are wanted or not."""
    del vllm["vllm.v1.worker.worker_base"].WorkerWrapperBase.init_device
    args = vllm["vllm.engine.arg_utils"].EngineArgs
    before = args.create_engine_config
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    with caplog.at_level(logging.WARNING, "turbospec"):
        plugin.register()
    assert args.create_engine_config is before
    assert len(caplog.records) == 1
    assert "is not supported" in caplog.text


def test_a_configuration_that_cannot_be_read_leaves_the_server_to_vllm(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    del vllm["vllm.version"].__version_tuple__
    with caplog.at_level(logging.WARNING, "turbospec"):
        config = start(vllm)
    assert config.scheduler_config.scheduler_cls is None
    assert config.speculative_config.num_speculative_tokens_per_batch_size is None
    assert len(caplog.records) == 1
    assert "TurboSpec is off" in caplog.text


def test_a_server_without_temporary_files_has_no_metrics_and_starts(
    vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(**_: Any) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    monkeypatch.setattr(plugin.tempfile, "mkdtemp", full)
    with caplog.at_level(logging.WARNING, "turbospec"):
        config = start(vllm)
    assert config.scheduler_config.scheduler_cls == support.SYNC_SCHEDULER
    assert len(caplog.records) == 1
    assert "No usable temporary directory" in caplog.text
