"""What a benchmark is doing, on stderr."""

from __future__ import annotations

from rich.progress import Progress

from turbospec.cli.console import stderr
from turbospec_bench.configuration import Configuration
from turbospec_bench.variant import Variant


class BenchProgress:
    """Counts the runs of a benchmark, and names the work between them."""

    def __init__(self, bar: Progress, phase: str) -> None:
        self._bar = bar
        self._task = bar.add_task(phase, total=None)
        self._total = self._begun = 0
        self._configuration: Configuration | None = None

    def expect(self, runs: int, phase: str) -> None:
        """Begin to count runs; time is counted from here."""
        self._total = runs
        self._bar.reset(self._task, total=runs, description=phase)

    def phase(self, words: str) -> None:
        """Name the current work."""
        self._bar.update(self._task, description=words)

    def announce(self, words: str) -> None:
        """Name the current work, also in a line that stays."""
        self.phase(words)
        stderr.print(words, soft_wrap=True)

    def remark(self, words: str) -> None:
        """A line about the configuration that is being measured."""
        where = "" if self._configuration is None else f"{self._configuration.name}: "
        stderr.print(f"{where}{words}", soft_wrap=True)

    def on_run(self, configuration: Configuration, variant: Variant) -> None:
        """A run is about to begin; runs of repeated rounds raise the total."""
        self._configuration = configuration
        self._total = max(self._total, self._begun + 1)
        words = f"{configuration.name} {variant.name}"
        self._bar.update(self._task, description=words, completed=self._begun, total=self._total)
        self._begun += 1
