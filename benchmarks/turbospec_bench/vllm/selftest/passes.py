"""Counts the drafter's forward passes in a worker, step by step. Both functions are called in the worker.

The passes of a replayed CUDA graph are not seen: count them with `enforce_eager`.
"""

from __future__ import annotations

from typing import Any

from turbospec.hosts.vllm.shared.drafter_orders import orders_of


def count(worker: Any) -> None:
    """Start to count."""
    runner = worker.model_runner
    drafter: Any = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    steps: list[list[int]] = []
    """Of each step: its longest draft, whether the drafter has more to compute than one token for each request
    (verified drafts, a prompt, KV lag), and drafter passes."""
    execute = runner.execute_model

    def execute_model(scheduler_output: Any, *given: Any, **named: Any) -> Any:
        if scheduler_output.num_scheduled_tokens:
            orders = orders_of(scheduler_output)
            several = max(scheduler_output.num_scheduled_tokens.values()) > 1 or bool(orders and orders.catch_up)
            steps.append([scheduler_output.num_spec_tokens_to_schedule, int(several), 0])
        return execute(scheduler_output, *given, **named)

    def one_more(*_: Any) -> None:
        steps[-1][2] += 1

    runner.execute_model = execute_model
    if hasattr(drafter, "model"):
        drafter.model.register_forward_pre_hook(one_more)
    runner.steps_of_test = steps


def counted(worker: Any) -> list[list[int]]:
    """What was counted."""
    return worker.model_runner.steps_of_test
