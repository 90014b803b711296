# pyright: basic, reportMissingImports=false
"""The entry point `vllm.general_plugins`: makes `vllm serve --speculative-config …` adaptive where a policy is given.

vLLM loads it in every process before it reads its arguments. Two methods of `EngineArgs` are wrapped: one gives the
speculative configuration the schedule that vLLM's own way to a changing draft length asks for, the other names the
scheduler. Where no policy is given, both do what they did before.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import tempfile
from pathlib import Path

log = logging.getLogger("turbospec")

SYNC_SCHEDULER = "turbospec.hosts.vllm.scheduler.TurboSpecScheduler"
ASYNC_SCHEDULER = "turbospec.hosts.vllm.scheduler.TurboSpecAsyncScheduler"


def register() -> None:
    """Wrap `EngineArgs`; a second call in the same process does nothing."""
    from vllm.engine.arg_utils import EngineArgs

    if hasattr(EngineArgs.create_engine_config, "__wrapped__"):
        return
    _share_log()
    EngineArgs.create_speculative_config = _with_schedule(EngineArgs.create_speculative_config)
    EngineArgs.create_engine_config = _with_scheduler(EngineArgs.create_engine_config)


def _with_schedule(create):
    @functools.wraps(create)
    def create_speculative_config(args, *positional, **named):
        config = create(args, *positional, **named)
        if config is None or config.num_speculative_tokens_per_batch_size is not None:
            return config
        if _settings(args) is not None and _unsupported(args, config) is None:
            # Any schedule will do: it marks the draft length as one that changes.
            config.num_speculative_tokens_per_batch_size = [(1, 1, config.num_speculative_tokens)]
        return config

    return create_speculative_config


def _with_scheduler(create):
    @functools.wraps(create)
    def create_engine_config(args, *positional, **named):
        settings = _settings(args)
        if settings is not None:
            settings.check()
        config = create(args, *positional, **named)
        if settings is None:
            return config
        reason = _unsupported(args, config.speculative_config)
        scheduler = config.scheduler_config
        if reason is None and scheduler.scheduler_cls is not None:
            reason = f"--scheduler-cls names {scheduler.scheduler_cls}; leave it out"
        if reason is not None:
            log.warning("TurboSpec is idle, speculation stays as vLLM has it: %s", reason)
            return config
        scheduler.scheduler_cls = ASYNC_SCHEDULER if scheduler.async_scheduling else SYNC_SCHEDULER
        _share_metrics()
        log.info("TurboSpec chooses draft lengths by policy %s", settings.policy)
        return config

    return create_engine_config


def _share_metrics() -> None:
    """Show the metrics of the engine core, a process still to be started, on this process's `/metrics`."""
    from prometheus_client import REGISTRY

    from turbospec.hosts.vllm.metrics_file import METRICS_FILE, MetricsFileReader

    if METRICS_FILE in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="turbospec-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[METRICS_FILE] = str(Path(folder) / "metrics.prom")
    REGISTRY.register(MetricsFileReader(Path(os.environ[METRICS_FILE])))


def _share_log() -> None:
    """Speak through vLLM's log, whenever vLLM sets it up: it shows nothing of loggers that are not its own."""
    log.parent = logging.getLogger("vllm")


def _settings(args):
    from turbospec.hosts.vllm.settings import read_settings

    return read_settings(args.additional_config)


def _unsupported(args, speculative_config) -> str | None:
    from vllm.version import __version_tuple__

    from turbospec.hosts.vllm.support import unsupported

    method = None if speculative_config is None else speculative_config.method
    return unsupported(__version_tuple__, method, args.data_parallel_size)
