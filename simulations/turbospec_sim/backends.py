"""Who runs a sweep's parts: processes of this machine, or a Ray cluster."""

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
    """What runs parts independently of one another."""

    count: int
    """How many parts run at once."""

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        """Results in the order of the parts, each as soon as those before it are there.

        What the function raises is raised as it is.
        """
        ...


def workers(backend: Backend, jobs: int | None) -> Workers:
    """Those of a backend.

    Args:
        backend: where they are.
        jobs: how many; None for one on this machine and all of a cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        UserError: no cluster answers, or it was told how many.
    """
    if backend == "local":
        return LocalProcesses(jobs or 1)
    if jobs is not None:
        raise UserError(
            "--jobs: Ray runs one for each CPU of its cluster; leave it out (`ray start --num-cpus` limits it)"
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

    It is the cluster that `RAY_ADDRESS` names, else one that runs on this machine, else one that is started here and
    ends with this process. Ray has a backend for joblib too; that one gives nothing back before all is done.
    """

    def __init__(self) -> None:
        # Heavy, and an extra of its own, which type checkers need not have.
        self._ray: Any = import_module("ray")
        ray = self._ray
        if not ray.is_initialized():
            try:
                ray.init(logging_level=logging.ERROR)
            except (ConnectionError, ValueError) as error:  # nobody there, or no address
                where = os.environ.get("RAY_ADDRESS", "this machine")
                raise UserError(
                    f"--backend ray: no cluster answers at {where}; start it, or mend RAY_ADDRESS"
                ) from error
        self.count = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
        task = self._ray.remote(function)
        for result in [task.remote(part) for part in parts]:
            try:
                yield self._ray.get(result)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error
