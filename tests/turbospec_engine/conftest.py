"""Fixtures shared by the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.turbospec_engine.harness import Pair, Reference, build, byte_level_tokenizer, perturbed


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    made: dict[tuple[str, float], Pair] = {}

    def make(architecture: str, noise: float = 0.04) -> Pair:
        if (architecture, noise) not in made:
            folder = tmp_path_factory.mktemp(architecture)
            tokenizer = byte_level_tokenizer()
            model = build(architecture, len(tokenizer), seed=0)
            model.save_pretrained(folder / "target")
            perturbed(model, noise).save_pretrained(folder / "drafter")
            for role in ("target", "drafter"):
                tokenizer.save_pretrained(folder / role)
            made[architecture, noise] = Pair(folder / "target", folder / "drafter")
        return made[architecture, noise]

    return make


@pytest.fixture(scope="session")
def llama(make_pair: Callable[..., Pair]) -> Pair:
    return make_pair("llama")


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], Reference]:
    return cache(Reference)
