from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.drafter_orders import ORDERS_ATTRIBUTE, DrafterOrders
from turbospec.hosts.vllm.worker.late_drafts import install


class Runner:
    def __init__(self) -> None:
        self._draft_token_ids: Any = None
        self.calls: list[str] = []
        install(self)

    def propose_draft_token_ids(self, output: Any, *given: Any) -> tuple[Any, ...]:
        self.calls.append("draft")
        return given

    def _copy_draft_token_ids_to_cpu(self, output: Any) -> None:
        self.calls.append(f"copy of {output.step}")

    def take_draft_token_ids(self) -> Any:
        return self._draft_token_ids

    def step(self, step: int, orders: DrafterOrders | None) -> None:
        """As vLLM's."""
        output = SimpleNamespace(step=step, **{ORDERS_ATTRIBUTE: orders})
        self._draft_token_ids = self.propose_draft_token_ids(output, step, "more")
        self._copy_draft_token_ids_to_cpu(output)


def test_late_drafts_are_made_when_they_are_asked_for_and_once() -> None:
    runner = Runner()
    runner.step(7, DrafterOrders(0, 0, late=True))
    assert runner._draft_token_ids is None
    assert "draft" not in runner.calls
    assert runner.take_draft_token_ids() == (7, "more")
    assert runner.calls[-2:] == ["draft", "copy of 7"]
    assert runner.take_draft_token_ids() == (7, "more")
    assert runner.calls.count("draft") == 1


@pytest.mark.parametrize("orders", [None, DrafterOrders(0, 0)])
def test_other_drafts_are_made_at_once(orders: DrafterOrders | None) -> None:
    runner = Runner()
    runner.step(7, orders)
    assert runner.calls == ["draft", "copy of 7"]
    assert runner.take_draft_token_ids() == (7, "more")


def test_drafts_that_nobody_asked_for_are_not_made_for_another_step() -> None:
    runner = Runner()
    runner.step(7, DrafterOrders(0, 0, late=True))
    runner.step(8, None)
    assert runner.take_draft_token_ids() == (8, "more")
