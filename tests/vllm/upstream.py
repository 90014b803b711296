"""A pytest plugin that runs vLLM's own scheduler tests with TurboSpec's schedulers.

In a checkout of vLLM, of the version that is installed, with this repository in `PYTHONPATH`:

    python -m pytest -p upstream --noconftest tests/v1/core tests/v1/spec_decode/test_dynamic_sd.py

`upstream` is this file; put its folder in `PYTHONPATH` too, because vLLM's tests are a package `tests` themselves.
`TURBOSPEC_UPSTREAM_POLICY` names a policy; by default every request drafts vLLM's own K.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import vllm.v1.core.sched.async_scheduler as vllm_async
import vllm.v1.core.sched.scheduler as vllm_sync

from turbospec.hosts.vllm.scheduler.schedulers import TurboSpecAsyncScheduler, TurboSpecScheduler

POLICIES = Path(tempfile.mkdtemp(prefix="turbospec-upstream-"))
built = {"with speculation": 0, "without": 0}


def prepare(config: Any) -> None:
    """What the plugin does to a server's configuration, and the policy."""
    speculation = config.speculative_config
    if speculation is None or not speculation.num_speculative_tokens:
        built["without"] += 1
        return
    built["with speculation"] += 1
    length = speculation.num_speculative_tokens
    if speculation.num_speculative_tokens_per_batch_size is None:
        speculation.num_speculative_tokens_per_batch_size = [(1, 1, length)]
    policy = POLICIES / f"static-{length}.yaml"
    policy.write_text(f"version: 1\npolicy: static\ndraft_length: {length}\n")
    config.additional_config = {"turbospec": os.environ.get("TURBOSPEC_UPSTREAM_POLICY") or str(policy)}


class SyncScheduler(TurboSpecScheduler):
    def __init__(self, vllm_config: Any, *given: Any, **named: Any) -> None:
        prepare(vllm_config)
        super().__init__(vllm_config, *given, **named)


class AsyncScheduler(TurboSpecAsyncScheduler):
    def __init__(self, vllm_config: Any, *given: Any, **named: Any) -> None:
        prepare(vllm_config)
        super().__init__(vllm_config, *given, **named)


vllm_sync.Scheduler = SyncScheduler
vllm_async.AsyncScheduler = AsyncScheduler


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"TurboSpec's schedulers: {built}")
