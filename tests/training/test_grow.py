"""Grown models compute what the small ones compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.turbospec_engine.harness import FixedPlans
from training.grow import Size, grow
from turbospec import UserError
from turbospec_engine import Engine, EngineConfig, SamplingParams

MODELS = Path(__file__).resolve().parents[2] / "models"
# Widths 4 times the small ones: norms are scaled by 2, which bfloat16 does not round.
TARGET, DRAFTER = Size(1024, 1024, 9, 8), Size(768, 800, 2, 6)


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.randint(0, 3072, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        return model(input_ids=tokens).logits


@pytest.mark.parametrize(("name", "size"), [("target", TARGET), ("drafter", DRAFTER)])
def test_logits_stay(name: str, size: Size, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = grow(MODELS / name, tmp_path / name, size, "cpu")
    small = AutoModelForCausalLM.from_pretrained(MODELS / name)
    assert weights > 2 * sum(weight.numel() for weight in small.parameters())
    torch.testing.assert_close(logits(tmp_path / name), logits(MODELS / name), atol=1e-4, rtol=0.0)


def test_a_head_drafts_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for name, size in (("target", TARGET), ("eagle3", replace(TARGET, layers=1))):
        grow(MODELS / name, tmp_path / name, size, "cpu")
    counts: list[tuple[list[int], int]] = []
    for models in (MODELS, tmp_path):
        config = EngineConfig(models / "target", drafter=models / "eagle3", dtype="float32", max_model_len=128)
        engine = Engine(config, plans := FixedPlans(longest=3))
        (output,) = engine.generate([[5, 6, 7, 8] * 4], SamplingParams(max_tokens=40, ignore_eos=True))
        counts.append((list(output.token_ids), sum(int(outcome.accepted.sum()) for outcome in plans.outcomes)))
    assert counts[0] == counts[1]
    assert counts[0][1] > 0


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (Size(128, 1024, 10, 8), "hidden 128 is less"),
        (Size(1024, 1024, 7, 8), "layers 7 is less"),
        (Size(1024, 1024, 10, 6), "no multiple of the checkpoint's 4"),
    ],
)
def test_sizes_that_do_not_fit(size: Size, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why):
        grow(MODELS / "target", tmp_path, size, "cpu")


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        grow(tmp_path, tmp_path / "out", TARGET, "cpu")
