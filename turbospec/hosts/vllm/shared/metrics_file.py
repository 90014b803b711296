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

from turbospec.files.reading import MEBIBYTE, read_text
from turbospec.interface import StepOutcome, StepPlan, StepView

log = logging.getLogger("turbospec")

METRICS_FILE_VARIABLE = "TURBOSPEC_METRICS_FILE"
"""Environment variable that tells the engine core's process the file; set by the plugin. Not a field of vLLM's
configuration: its hash is the key of vLLM's compilation cache, and the path differs at every start."""
EVERY_SECONDS = 1.0
"""Delay from a step to the file that contains it."""
MAX_BYTES = 4 * MEBIBYTE
"""Largest file that is read."""


def file_of_engine(path: Path, engine: int) -> Path:
    """The file of one of several engine cores, as with data parallelism; the first has the path itself."""
    return path.with_stem(f"{path.stem}-{engine}") if engine else path


class MetricsFileWriter:
    """A controller's listener that writes a collector's metrics in a thread, so that steps do not wait for the file.

    The process that reads the file removes its folder when it exits; then the thread ends silently. Other errors, such
    as a full disk, are logged once; the file is written again after the next step.

    Args:
        path: the file, replaced as a whole each time.
        collector: what is written.
    """

    def __init__(self, path: Path, collector: Collector) -> None:
        self._path = path
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turbospec-metrics", daemon=True)
        self._thread.start()

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.wake()

    def wake(self) -> None:
        """Have the file written soon. A step that fails has no outcome, and its fault must be shown too."""
        self._changed.set()

    def _run(self) -> None:
        complained = False
        while self._changed.wait():
            time.sleep(EVERY_SECONDS)
            self._changed.clear()
            try:
                write_to_textfile(str(self._path), self._registry)  # beside the file, then moved there
            except Exception as error:
                if not self._path.parent.is_dir():
                    return
                if not complained:
                    log.warning("%s: cannot write TurboSpec's metrics (%s); trying again", self._path, error)
                complained = True


class MetricsFileReader(Collector):
    """A collector of the metrics that other processes wrote last; none while there is no file.

    It raises nothing, because the process's other metrics would be lost too: a file that cannot be read is left out,
    with one warning.

    Args:
        path: the first engine core's file; the others' are its `file_of_engine`.
        model: name under which the server serves the model.
        engines: number of engine cores. Every metric has the labels `model_name` and `engine`, as vLLM's own.
    """

    def __init__(self, path: Path, model: str, engines: int = 1) -> None:
        self._path = path
        self._model = model
        self._engines = engines
        self._complained = False

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for engine in range(self._engines):
            for family in self._read(file_of_engine(self._path, engine)):
                added = {"model_name": self._model, "engine": str(engine)}
                samples = [each._replace(labels=each.labels | added) for each in family.samples]
                known = families.setdefault(family.name, family)
                known.samples = samples if known is family else known.samples + samples
        yield from families.values()

    def _read(self, path: Path) -> list[Metric]:
        try:
            if not path.exists():
                return []
            return list(text_string_to_metric_families(read_text(path, "metrics file", limit=MAX_BYTES)))
        except Exception as error:  # the parser raises errors of several types
            if not self._complained:
                self._complained = True
                log.warning("%s: TurboSpec's metrics cannot be read and are left out (%s)", path, str(error)[:200])
            return []

    def describe(self) -> list[Metric]:
        """No metrics before there is a file. Without this method a registry calls `collect` when it is registered."""
        return []
