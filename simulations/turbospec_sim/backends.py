"""Backends that run the parts of a sweep: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from typing import Any, Literal, Protocol, TypeVar

from turbospec.errors import UserError
from turbospec_sim.processes import LocalProcesses

Backend = Literal["local", "ray"]
Part = TypeVar("Part")
Result = TypeVar("Result")


class Workers(Protocol):
    """Runs the parts of a sweep in parallel."""

    count: int
    """Parts that run in parallel."""

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Generator[tuple[int, Result]]:
        """Places and results of the parts, in the order in which they are finished.

        Exceptions of the function are raised unchanged. Where the iterator is closed early, work ends at once.
        """
        ...


def workers(backend: Backend, jobs: int | None) -> Workers:
    """The workers of a backend.

    Args:
        backend: this machine or a Ray cluster.
        jobs: number of workers; None for one on this machine and for all CPUs of a cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        UserError: no cluster answers, or `jobs` is given for one.
    """
    if backend == "local":
        return LocalProcesses(jobs or 1)
    if jobs is not None:
        raise UserError(
            "--jobs: the ray backend uses every CPU of its cluster; leave it out (`ray start --num-cpus` sets a limit)"
        )
    return RayCluster()


class RayCluster:
    """Tasks of a Ray cluster, which schedules them itself.

    The cluster is the one that `RAY_ADDRESS` names, else one that runs on this machine, else one that is started here
    and ends with this process.
    """

    def __init__(self) -> None:
        # An optional and slow import, which type checkers need not have.
        self._ray: Any = import_module("ray")
        ray = self._ray
        if not ray.is_initialized():
            try:
                ray.init(logging_level=logging.ERROR)
            except (ConnectionError, ValueError) as error:  # no cluster there, or not an address
                where = os.environ.get("RAY_ADDRESS", "this machine")
                raise UserError(
                    f"--backend ray: no cluster answers at {where}; start one, or correct RAY_ADDRESS"
                ) from error
        self.count = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Generator[tuple[int, Result]]:
        """As in `Workers`."""
        ray, task = self._ray, self._ray.remote(function)
        places = {task.remote(part): place for place, part in enumerate(parts)}
        try:
            while places:
                (done, *_), _ = ray.wait([*places], num_returns=1)
                yield places.pop(done), ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        finally:
            for unfinished in places:
                ray.cancel(unfinished, force=True)
