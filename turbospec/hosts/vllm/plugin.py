# pyright: basic, reportMissingImports=false
"""The entry point `vllm.general_plugins`: makes `vllm serve --speculative-config …` adaptive where a policy is given.

vLLM loads it in every process before it parses arguments. It wraps two methods of `EngineArgs`: one gives the
speculative configuration the K schedule that vLLM needs for a draft length that changes, the other sets the scheduler.
In a worker it wraps `init_device`: the drafter then runs on demand, and its drafts are sent with the step's tokens or
made after these were sent. For dense models it keeps vLLM from dropping the table under data parallelism. Without a
policy the wrapped methods behave as before.

vLLM catches no error of a plugin. A wrong setting ends the start of a server, and so does a worker that cannot be
wrapped, because its scheduler would rely on it. Anything else that fails leaves TurboSpec idle, with one warning.

Everything is imported where it is used, and numba never in a worker: vLLM's search for CPU kernels inspects every
loaded module and fails on numba's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

log = logging.getLogger("turbospec")

SCHEDULE = "num_speculative_tokens_per_batch_size"
MARK = "_turbospec_registered"
RAY_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
"""vLLM's variable for what engine cores under Ray get of the environment: they are no children of this process."""

_shown: list = []
"""The `MetricsFileReader` of the last engine that this process has started, if any."""


def register() -> None:
    """Wrap methods of vLLM; a second call in the same process does nothing.

    In a version of vLLM without one of these methods nothing is wrapped.
    """
    log.parent = logging.getLogger("vllm")  # vLLM shows only its own loggers
    try:
        from vllm.config import VllmConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        if hasattr(EngineArgs, MARK):
            return
        wrapped = {
            (EngineArgs, "create_speculative_config"): _with_schedule,
            (EngineArgs, "create_engine_config"): _with_scheduler,
            (WorkerWrapperBase, "init_device"): _with_runner_wrapped,
            (VllmConfig, "_maybe_disable_dynamic_sd_for_data_parallel"): _with_table_kept,
        }
        methods = {place: wrap(getattr(*place)) for place, wrap in wrapped.items()}
    except (ImportError, AttributeError) as error:
        level = logging.WARNING if os.environ.get("TURBOSPEC_POLICY") else logging.INFO
        log.log(level, "TurboSpec is off: this version of vLLM is not supported (%s)", error)
        return
    setattr(EngineArgs, MARK, True)
    for (owner, name), method in methods.items():
        setattr(owner, name, method)


def _with_schedule(create):
    from turbospec.hosts.vllm.shared.graph_lengths import graph_schedule

    @functools.wraps(create)
    def create_speculative_config(args, *positional, **named):
        config = create(args, *positional, **named)
        if config is None or config.num_speculative_tokens_per_batch_size is not None:
            return config
        settings = _settings(args)
        if settings is not None and _reason(args, config, settings) is None:
            config.num_speculative_tokens_per_batch_size = graph_schedule(config.num_speculative_tokens)
        return config

    return create_speculative_config


def _with_scheduler(create):
    from vllm.usage.usage_lib import UsageContext

    from turbospec.errors import UserError

    @functools.wraps(create)
    def create_engine_config(args, usage_context=None, *others, **named):
        try:
            settings = _settings(args)
            if settings is not None:
                settings.check()
        except UserError as error:
            if usage_context not in (UsageContext.OPENAI_API_SERVER, UsageContext.OPENAI_BATCH_RUNNER):
                raise
            print("turbospec:", *str(error).split(), file=sys.stderr)  # one line, whatever a path has in it
            raise SystemExit(2) from None
        config = create(args, usage_context, *others, **named)
        if settings is None:
            return config
        speculation, scheduler = config.speculative_config, config.scheduler_config
        reason = _reason(args, speculation, settings, config)
        if reason is not None:
            log.warning("TurboSpec is off, vLLM keeps its own draft length: %s", reason)
            given = SCHEDULE in (args.speculative_config or {}) and config.parallel_config.data_parallel_size == 1
            if speculation is not None and not given:
                speculation.num_speculative_tokens_per_batch_size = None
            return config
        from turbospec.hosts.vllm.shared.support import ASYNC_SCHEDULER, STARTED, SYNC_SCHEDULER

        scheduler.scheduler_cls = ASYNC_SCHEDULER if scheduler.async_scheduling else SYNC_SCHEDULER
        _share_metrics(config.model_config.served_model_name, config.parallel_config.data_parallel_size)
        if getattr(config.parallel_config, "data_parallel_backend", None) == "ray":
            _pass_settings_to_ray()
        log.info("%s by policy %s", STARTED, settings.policy)
        return config

    return create_engine_config


def _with_table_kept(disable):
    """Keep the table of draft lengths for dense models, whose engines of data parallelism have nothing in common.

    vLLM drops the table for them too, although it starts them as engines without data parallelism.
    """

    @functools.wraps(disable)
    def maybe_disable(config):
        from turbospec.hosts.vllm.shared.support import is_asked_for

        dense = config.model_config is not None and not config.model_config.is_moe
        if not (dense and is_asked_for(config.additional_config)):
            disable(config)

    return maybe_disable


def _with_runner_wrapped(init):
    @functools.wraps(init)
    def init_device(wrapper):
        init(wrapper)
        config = wrapper.vllm_config
        from turbospec.hosts.vllm.shared.support import may_be_scheduled_by_us

        if may_be_scheduled_by_us(config) and _has_drafter(runner := wrapper.worker.model_runner):
            try:
                (_install_on_v2 if config.use_v2_model_runner else _install_on_v1)(runner, config)
            except Exception as error:
                raise RuntimeError(
                    f"TurboSpec does not fit this vLLM's model runner ({type(error).__name__}: {error}); start the "
                    "server without a policy of TurboSpec"
                ) from error

    return init_device


def _has_drafter(runner) -> bool:
    """Whether a worker drafts; with pipeline parallelism only those of the last stage do."""
    return getattr(runner, "drafter", None) is not None or getattr(runner, "speculator", None) is not None


def _install_on_v1(runner, config) -> None:
    from turbospec.hosts.vllm.shared.support import drafts_late, kept_tokens
    from turbospec.hosts.vllm.worker import (
        drafter_on_demand,
        drafts_in_output,
        full_drafts,
        late_drafts,
        lookup_on_v1,
        step_clock,
    )

    full_drafts.install(runner)
    step_clock.install(runner, runner, "propose_draft_token_ids")
    if kept_tokens(config):
        drafter_on_demand.install(runner)
    if drafts_late(config):
        late_drafts.install(runner)
    if not config.scheduler_config.async_scheduling:
        drafts_in_output.install(runner)
    lookup_on_v1.install(runner)


def _install_on_v2(runner, config) -> None:
    from turbospec.hosts.vllm.shared.support import LOOK_UP_METHODS, kept_tokens
    from turbospec.hosts.vllm.worker import lookup_on_v2, speculator_on_demand, step_clock

    if kept_tokens(config):
        speculator_on_demand.install(runner)
    elif config.speculative_config.method in LOOK_UP_METHODS:
        speculator_on_demand.install_without_cache(runner)
    elif config.speculative_config.method == "draft_model":
        speculator_on_demand.install_passes(runner)
    lookup_on_v2.install(runner)
    step_clock.install(runner, runner.speculator, "propose")


def _settings(args):
    from turbospec.hosts.vllm.shared.settings import read_settings

    return read_settings(args.additional_config)


def _reason(args, speculation, settings, config=None) -> str | None:
    """Why TurboSpec cannot control this server; None where it can, as far as is known without its configuration."""
    try:
        return _unsupported(args, speculation, settings, config)
    except Exception as error:
        return f"its configuration cannot be read ({type(error).__name__}: {error})"


def _unsupported(args, speculation, settings, config) -> str | None:
    from vllm.version import __version_tuple__

    from turbospec.hosts.vllm.shared.support import SetUp, unsupported

    if args.scheduler_cls is not None:
        return f"--scheduler-cls is set to {args.scheduler_cls}; leave it out"
    if config is not None and (scheduler_cls := config.scheduler_config.scheduler_cls) is not None:
        return f"vLLM uses the scheduler {scheduler_cls} for this model or platform"
    parallel = args if config is None else config.parallel_config
    return unsupported(
        SetUp(
            version=__version_tuple__,
            method=None if speculation is None else speculation.method,
            draft_tokens=0 if speculation is None else speculation.num_speculative_tokens or 0,
            adaptive_verification=bool(getattr(speculation, "enable_adaptive_verification", False)),
            data_parallel_size=parallel.data_parallel_size,
            experts=speculation is not None and speculation.target_model_config.is_moe,
            pipeline_parallel_size=parallel.pipeline_parallel_size,
            scheduler_per_rank=_has_scheduler_per_rank(parallel),
            model_runner_v2=config is not None and config.use_v2_model_runner,
            lookup=settings.lookup is not None,
            watermarks_drafts=_watermarks_drafts(args),
            target_mla=speculation is not None and bool(speculation.target_model_config.use_mla),
            attention_backend=_attention_backend(config),
            async_scheduling=config is not None and bool(config.scheduler_config.async_scheduling),
        )
    )


def _attention_backend(config) -> str:
    """Name of the attention backend that the user chose; empty where vLLM chooses, or before that is known."""
    chosen = getattr(getattr(config, "attention_config", None), "backend", None)
    return getattr(chosen, "name", "")


def _has_scheduler_per_rank(parallel) -> bool:
    ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
    ranks *= getattr(parallel, "prefill_context_parallel_size", 1)  # not in all supported versions
    return parallel.distributed_executor_backend == "external_launcher" and ranks > 1


def _watermarks_drafts(args) -> bool:
    create = getattr(args, "create_watermark_config", lambda: None)  # not in all supported versions
    return (watermarking := create()) is not None and not watermarking.allow_target_only_watermarking


def _pass_settings_to_ray() -> None:
    from turbospec.hosts.vllm.shared.support import ENVIRONMENT

    prefixes = [each for each in os.environ.get(RAY_PREFIXES, "").split(",") if each]
    if ENVIRONMENT not in prefixes:
        os.environ[RAY_PREFIXES] = ",".join([*prefixes, ENVIRONMENT])


def _share_metrics(model: str, engines: int) -> None:
    """Show the metrics of the engine cores, which are other processes, on this process's `/metrics`."""
    from prometheus_client import REGISTRY

    from turbospec.hosts.vllm.shared.metrics_file import METRICS_FILE_VARIABLE, MetricsFileReader

    try:
        folder = tempfile.mkdtemp(prefix="turbospec-")  # for this user only
    except OSError as error:
        os.environ.pop(METRICS_FILE_VARIABLE, None)
        log.warning("/metrics has nothing of TurboSpec: there is no place for temporary files (%s)", error)
        return
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "metrics.prom"
    os.environ[METRICS_FILE_VARIABLE] = str(path)
    # One engine at a time, the last one, as with vLLM's own metrics: two would give every series twice.
    while _shown:
        with contextlib.suppress(KeyError):  # unregistered by others
            REGISTRY.unregister(_shown.pop())
    _shown.append(MetricsFileReader(path, model, engines))
    REGISTRY.register(_shown[0])
