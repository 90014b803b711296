from __future__ import annotations

import pytest
from rich.progress import Progress

from turbospec.cli.bench_progress import BenchProgress
from turbospec_bench import Configuration, Variant

ONE = Configuration("code", "good", 1)


def test_a_run_counts_when_it_is_over_and_repeats_raise_the_total() -> None:
    bar = Progress(disable=True)
    shown = BenchProgress(bar, "loading the models")
    assert (bar.tasks[0].description, bar.tasks[0].total) == ("loading the models", None)
    shown.expect(2, "starting")
    seen: list[tuple[str, float, float | None]] = []
    for name in ("off", "static-3", "off"):
        shown.on_run(ONE, Variant(name))
        seen.append((bar.tasks[0].description, bar.tasks[0].completed, bar.tasks[0].total))
    assert seen == [("code/good/c1 off", 0, 2), ("code/good/c1 static-3", 1, 2), ("code/good/c1 off", 2, 3)]


def test_remarks_name_the_configuration_that_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    shown = BenchProgress(Progress(disable=True), "loading")
    shown.remark("the machine is busy")
    shown.on_run(ONE, Variant("off"))
    shown.remark("measured again")
    shown.announce("measuring step times")
    assert capsys.readouterr().err == "the machine is busy\ncode/good/c1: measured again\nmeasuring step times\n"
