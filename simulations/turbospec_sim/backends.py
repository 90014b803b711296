"""Backends that run the parts of a sweep: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, Literal, Protocol, TypeVar, cast

from joblib import Parallel, delayed

from turbospec.errors import UserError

Backend = Literal["local", "ray"]
Part = TypeVar("Part")
Result = TypeVar("Result")


class Workers(Protocol):
    """Runs the parts of a sweep in parallel."""

    count: int
    """Parts that run in parallel."""

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """Results in the order of the parts, each yielded as soon as those before it are.

        Exceptions of the function are raised unchanged.
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


class LocalProcesses:
    """Processes of this machine, by joblib."""

    def __init__(self, count: int) -> None:
        self.count = count

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        parallel = Parallel(n_jobs=max(1, min(self.count, len(parts))), return_as="generator")
        yield from cast(Iterator[Result], parallel(delayed(function)(part) for part in parts))


class RayCluster:
    """Tasks of a Ray cluster, which schedules them itself.

    The cluster is the one that `RAY_ADDRESS` names, else one that runs on this machine, else one that is started here
    and ends with this process. Ray's own backend for joblib is not used, because it returns no result before all are
    done.
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

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        task = self._ray.remote(function)
        for result in [task.remote(part) for part in parts]:
            try:
                yield self._ray.get(result)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error
