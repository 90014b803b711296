from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from torch import nn

from training.heads import origin
from training.loop import DECAY_SHARE, Budget, Progressed, Run, rate_factor
from training.train import with_generated
from turbospec import UserError
from turbospec.errors import exit_on_user_error


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("layer", nn.Linear(4, 4))
    model.add_module("lm_head", nn.Linear(4, 3, bias=False))
    return model


def trained(model: nn.Module, tokens: int, state: Path, origin: str = "") -> list[float]:
    """The loss of each step, on a batch of 10 tokens that goes by the step's number."""
    run = Run(model, "lm_head", 0.01, Budget(tokens), 10, state, origin)
    losses: list[float] = []
    for step in run.steps():
        inputs = torch.randn(10, 4, generator=torch.Generator().manual_seed(step))
        loss = (model(inputs) - inputs[:, :3]).square().mean()
        run.learn(loss)
        losses.append(loss.item())
    return losses


def test_a_run_learns_and_ends_with_its_tokens(tmp_path: Path) -> None:
    losses = trained(a_model(), 2000, tmp_path / "state.pt")
    assert len(losses) == 200
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """In its weights, its optimisers and its data; only the learning rate goes by the new budget."""
    state = tmp_path / "state.pt"
    first = trained(a_model(), 100, state)
    model = a_model()
    before = [each.clone() for each in model.parameters()]
    assert trained(model, 100, state) == []
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    more = trained(a_model(), 300, state)
    assert (len(first), len(more)) == (10, 20)
    assert sum(more) / 20 < sum(first) / 10
    assert not state.with_suffix(".tmp").exists()


def test_a_state_of_another_target_or_seed_is_refused(tmp_path: Path) -> None:
    state, weights = tmp_path / "state.pt", tmp_path / "model.safetensors"
    weights.write_bytes(b"1")
    first, other = origin(tmp_path, seed=7), origin(tmp_path, seed=8)
    trained(a_model(), 100, state, first)
    assert trained(a_model(), 100, state, first) == []
    weights.write_bytes(b"2")
    for changed in (other, origin(tmp_path, seed=7)):
        with pytest.raises(UserError, match=r"is of a run with target .*, and this one has target .*; move it away"):
            trained(a_model(), 100, state, changed)


def test_generated_text_that_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(generated: Path) -> None:
        with_generated([np.arange(4)], generated)

    monkeypatch.setattr("sys.argv", ["train", str(tmp_path)])
    with pytest.raises(SystemExit) as end, exit_on_user_error():
        typer.run(command)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: --generated {tmp_path}: no tokens in it; write them with")


def test_learning_rate_warms_up_holds_and_decays() -> None:
    assert rate_factor(0, 0.0) < 0.05
    assert rate_factor(500, 0.3) == 1.0
    assert rate_factor(500, 1.0 - DECAY_SHARE / 2) == pytest.approx(0.5)
    assert rate_factor(500, 1.0) == 0.02


def test_a_budget_is_spent_by_tokens_or_by_time() -> None:
    done = Progressed(step=3, tokens=30, seconds=90.0)
    assert Budget(100).share(done) == pytest.approx(0.3)
    assert Budget(100, 100.0).share(done) == pytest.approx(0.9)
