"""Carries metrics from the engine core's process to the one that answers `/metrics`: a file, written once a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from turbospec.types import StepOutcome, StepPlan, StepView

METRICS_FILE_KEY = "turbospec_metrics_file"
"""Key of vLLM's additional configuration that tells the engine core's process the file; set by the plugin."""
EVERY_SECONDS = 1.0


class MetricsFileWriter:
    """A controller's listener that writes a collector's metrics out; give it after the collector.

    Args:
        path: the file, replaced as a whole each time.
        collector: what is written.
    """

    def __init__(self, path: Path, collector: Collector) -> None:
        self._path = path
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._next = 0.0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_SECONDS
            self.write()

    def write(self) -> None:
        """Write now.

        Raises:
            OSError: it cannot be written.
        """
        write_to_textfile(str(self._path), self._registry)


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
