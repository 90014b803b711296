from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.controller import ControllerStats
from turbospec.hosts.vllm.shared import metrics_file
from turbospec.hosts.vllm.shared.metrics_file import MetricsFileReader, MetricsFileWriter, file_of_engine
from turbospec.interface import StepPlan
from turbospec.observability.metrics import StepMetrics


@pytest.fixture(autouse=True)
def _without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_file, "EVERY_SECONDS", 0.01)


def a_step(*listeners: StepMetrics | MetricsFileWriter) -> None:
    """Tell listeners of one step: a draft of 3 tokens, 2 of them accepted."""
    view = make_view(1, max_draft=4)
    for listener in listeners:
        listener.on_step(view, StepPlan(np.array([3])), make_outcome(view, 3, 2), 0.0)


def eventually(is_so: Callable[[], bool]) -> None:
    late_at = time.monotonic() + 10
    while not is_so() and time.monotonic() < late_at:
        time.sleep(0.01)
    assert is_so()


LABELS = {"model_name": "m", "engine": "0"}
"""Those of vLLM's own metrics."""


def metrics() -> StepMetrics:
    return StepMetrics(ControllerStats())


def test_another_process_shows_the_same(tmp_path: Path) -> None:
    path, counted, there = tmp_path / "metrics.prom", metrics(), CollectorRegistry()
    there.register(MetricsFileReader(path, "m"))
    assert generate_latest(there) == b""
    a_step(counted, MetricsFileWriter(path, counted))
    eventually(path.exists)
    samples = [sample for family in counted.collect() for sample in family.samples]
    assert there.get_sample_value("turbospec_emitted_tokens_total", LABELS) == 3
    for sample in samples:
        assert there.get_sample_value(sample.name, sample.labels | LABELS) == sample.value


def test_faults_are_shown_without_an_outcome(tmp_path: Path) -> None:
    path, stats, there = tmp_path / "metrics.prom", ControllerStats(), CollectorRegistry()
    there.register(MetricsFileReader(path, "m"))
    writer = MetricsFileWriter(path, StepMetrics(stats))
    stats.host_faults = 2
    writer.wake()
    late_at = time.monotonic() + 10
    while not path.exists() and time.monotonic() < late_at:
        time.sleep(0.01)
    assert there.get_sample_value("turbospec_host_faults_total", LABELS) == 2


def test_several_engine_cores_have_a_label_and_a_file_each(tmp_path: Path) -> None:
    path, there = tmp_path / "metrics.prom", CollectorRegistry()
    there.register(MetricsFileReader(path, "m", engines=3))
    for engine, tokens in ((0, 5), (2, 7)):  # the second has not served anything yet
        text = f"# TYPE turbospec_emitted_tokens_total counter\nturbospec_emitted_tokens_total {tokens}\n"
        file_of_engine(path, engine).write_text(text)
    assert [
        there.get_sample_value("turbospec_emitted_tokens_total", LABELS | {"engine": str(engine)})
        for engine in range(3)
    ] == [5, None, 7]
    assert generate_latest(there).count(b"# TYPE turbospec_emitted_tokens_total") == 1


def fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_text("turbospec_steps_total{"), id="truncated"),
        pytest.param(lambda path: path.write_bytes(bytes(range(256))), id="no text"),
        pytest.param(lambda path: path.write_bytes(b"a" * (metrics_file.MAX_BYTES + 1)), id="huge"),
        pytest.param(lambda path: path.mkdir(), id="folder"),
        pytest.param(fifo, id="FIFO"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="endless"),
    ],
)
def test_a_file_that_cannot_be_read_leaves_the_other_metrics_alone(
    spoil: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, there = tmp_path / "metrics.prom", CollectorRegistry()
    there.register(MetricsFileReader(path, "m", engines=2))
    there.register(metrics())
    file_of_engine(path, 1).write_text("# TYPE turbospec_x counter\nturbospec_x_total 7\n")
    spoil(path)
    with caplog.at_level(logging.WARNING, logger="turbospec"):
        for _ in range(2):
            assert there.get_sample_value("turbospec_x_total", LABELS | {"engine": "1"}) == 7
            assert there.get_sample_value("turbospec_steps_total") == 0
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


def test_a_server_that_has_ended_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The process that reads the file ends first and takes the folder along."""
    folder = tmp_path / "turbospec-1"
    folder.mkdir()
    writer = MetricsFileWriter(folder / "metrics.prom", metrics())
    shutil.rmtree(folder)
    a_step(writer)
    writer._thread.join(10)
    assert not writer._thread.is_alive()
    assert caplog.records == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("No space for a metric")])
def test_a_write_that_fails_is_said_once_and_tried_again(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    write = metrics_file.write_to_textfile

    def full(path: str, registry: CollectorRegistry) -> None:
        tries.append(path)
        if len(tries) < 3:
            raise error
        write(path, registry)

    monkeypatch.setattr(metrics_file, "write_to_textfile", full)
    writer = MetricsFileWriter(tmp_path / "metrics.prom", metrics())
    with caplog.at_level(logging.WARNING, logger="turbospec"):
        for number in range(1, 4):
            a_step(writer)
            eventually(lambda number=number: len(tries) == number)
    eventually((tmp_path / "metrics.prom").exists)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space" in caplog.text
