"""Where a sweep's processes are: on this machine, or on a Ray cluster. Both are backends of joblib."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from joblib import parallel_config

from turbospec.errors import UserError

Backend = Literal["local", "ray"]


@contextmanager
def on_backend(backend: Backend) -> Iterator[None]:
    """Let joblib's `Parallel` work there.

    Ray goes by its own rules where it is: the cluster that `RAY_ADDRESS` names, else one that runs on this machine,
    else one of its own that ends with this process.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        UserError: no cluster answers.
    """
    if backend == "local":
        yield
        return
    # Heavy, and an extra of its own.
    import ray
    from ray.util.joblib import register_ray

    if not ray.is_initialized():
        try:
            ray.init(logging_level=logging.ERROR)
        except ConnectionError as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise UserError(f"--backend ray: no cluster answers at {where}; start it, or mend RAY_ADDRESS") from error
    register_ray()
    with parallel_config(backend="ray"):
        yield
