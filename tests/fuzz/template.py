"""Prepares the process that is forked for every case: heavy modules imported, kernels loaded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib import import_module

MODULES = (
    "transformers.models.llama.modeling_llama", "turbospec.policy", "turbospec.models.profile", "turbospec.doctor",
    "turbospec_sim.sweep", "turbospec_sim.calibration", "turbospec_sim.capacity", "turbospec_sim.replay.replay",
    "turbospec_sim.tuning.search", "turbospec_bench.reports.benchmark", "turbospec_bench.reports.simulation",
    "turbospec_bench.other_processes", "turbospec_bench.rounds", "turbospec_bench.vllm.targets", "typer.main",
    "rich.progress", "rich.table", "rich.live", "prometheus_client.parser", "urllib.request",
    "matplotlib.pyplot",
)  # fmt: skip
"""None is of `turbospec.cli`, whose modules look at the streams as they are imported, nor of `turbospec_engine`, which
starts OpenMP: a process with OpenMP cannot be forked."""
WITH_ENGINE = ("generate", "profile", "bench")
MEASURING_SECONDS = 0.3


def prepare() -> None:
    """Import."""
    for name in MODULES:
        import_module(name)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert not others, f"a process with threads cannot be forked: {others}"


def after_fork(arguments: Sequence[str]) -> None:
    """In a forked process: prepare what cannot be shared, and shorten what would rightly take long."""
    import torch

    # Makes a new pool of threads, once and before several threads ask for it.
    torch.set_num_threads(torch.get_num_threads())
    if arguments and arguments[0] in WITH_ENGINE:
        _shorten()


def _shorten() -> None:
    from turbospec_bench import other_processes
    from turbospec_bench.embedded import profiles
    from turbospec_bench.texts import Shape
    from turbospec_engine import profiling

    Shape.of = classmethod(lambda cls, configuration: Shape(3, 4))  # pyright: ignore[reportAttributeAccessIssue]
    profiles.MAX_SECONDS = MEASURING_SECONDS
    profiling.REPEATS, profiling.REQUESTS, profiling.CONTEXTS = 1, (1, 2), (32,)
    profiling.DRAFT_LENGTHS = (0, 1, 3)
    other_processes.START_WINDOW_SECONDS = 0.0
    other_processes.CpuWatch.other_cores = lambda self: None  # pyright: ignore[reportAttributeAccessIssue]
