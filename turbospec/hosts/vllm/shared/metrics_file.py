"""Carries metrics through a file from the engine core's process to the one that serves `/metrics`."""

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
"""Environment variable that tells the engine core's process the file; set by the plugin. Not a field of vLLM's
configuration: its hash is the key of vLLM's compilation cache, and the path differs at every start."""
EVERY_SECONDS = 1.0
"""Delay from a step to the file that contains it."""


class MetricsFileWriter:
    """A controller's listener that writes a collector's metrics in a thread, so that steps do not wait for the file.

    The process that reads the file removes its folder when it exits; then the thread ends silently. Where the folder is
    still there, a failed write ends it with one warning.

    Args:
        path: the file, replaced as a whole each time.
        collector: what is written.
    """

    def __init__(self, path: Path, collector: Collector) -> None:
        self._path = path
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._step_finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turbospec-metrics", daemon=True)
        self._thread.start()

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self._step_finished.set()

    def _run(self) -> None:
        while self._step_finished.wait():
            time.sleep(EVERY_SECONDS)
            self._step_finished.clear()
            try:
                write_to_textfile(str(self._path), self._registry)
            except OSError as error:
                if self._path.parent.is_dir():
                    log.warning(
                        "%s: cannot write TurboSpec's metrics (%s); they are no longer updated", self._path, error
                    )
                return


class MetricsFileReader(Collector):
    """A collector of the metrics that another process wrote last; none while there is no file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError:
            return
        yield from text_string_to_metric_families(text)

    def describe(self) -> list[Metric]:
        """No metrics before the first step. Without this method a registry calls `collect` when it is registered."""
        return []
