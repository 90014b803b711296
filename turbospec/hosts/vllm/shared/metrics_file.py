"""Carries metrics from the engine core's process to the one that answers `/metrics`, by a file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from turbospec.interface import StepOutcome, StepPlan, StepView

log = logging.getLogger("turbospec")

METRICS_FILE_VARIABLE = "TURBOSPEC_METRICS_FILE"
"""Of the environment: tells the engine core's process the file; set by the plugin. In vLLM's configuration, by which
its caches go, a path that is another at every start would have the model compiled anew."""
EVERY_SECONDS = 1.0
"""Between a step and the file that has it."""


class MetricsFileWriter:
    """A controller's listener that has a thread write a collector's metrics out: steps do not wait for the file.

    Args:
        path: the file, replaced as a whole each time.
        collector: what is written.
    """

    def __init__(self, path: Path, collector: Collector) -> None:
        self._path = path
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._news = threading.Event()
        threading.Thread(target=self._run, name="turbospec-metrics", daemon=True).start()

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self._news.set()

    def _run(self) -> None:
        while self._news.wait():
            time.sleep(EVERY_SECONDS)
            self._news.clear()
            try:
                write_to_textfile(str(self._path), self._registry)
            except OSError as error:
                log.warning("TurboSpec's metrics stand still from now on: %s", error)
                return


class MetricsFileReader(Collector):
    """A collector of what another process wrote last; nothing where there is no file yet."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError:
            return
        yield from text_string_to_metric_families(text)

    def describe(self) -> list[Metric]:
        """Nothing to say before the first step; without this a registry would ask for the metrics themselves."""
        return []
