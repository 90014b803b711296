"""What the tests of drafters with one pass share: a record of what they propose, and checkpoints to break."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.turbospec_engine.harness import Pair, RandomPlans, random_prompts
from turbospec import UserError
from turbospec_engine import Engine, Models, SamplingParams
from turbospec_engine.draft import Draft
from turbospec_engine.drafter.one_pass import OnePassDrafter
from turbospec_engine.request import Request

MAX_TOKENS = 40
LONGEST = 6
TIGHT = {"num_blocks": 20, "block_size": 8, "max_num_batched_tokens": 16}
"""Prefill in chunks, and too few KV blocks for all requests, so that some are preempted."""


@dataclass
class Drafted:
    """What a request was drafted from, and its draft."""

    tokens: list[int]
    draft: list[int]


class Recorded:
    """Keeps what the drafter of an engine proposes."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        drafter = engine.drafter
        assert isinstance(drafter, OnePassDrafter)
        self.drafts: list[Draft] = []
        self.rows: list[Drafted] = []
        self.read: list[np.ndarray] = []
        """(tokens,) positions of the target's states that each pass read."""
        propose, read = drafter.propose, drafter.hidden_states.read

        def recorded_propose(requests: list[Request], *rest: Any) -> Draft:
            draft = propose(requests, *rest)
            self.drafts.append(draft)
            self.rows += [
                Drafted(request.tokens[: request.num_tokens].tolist(), draft.tokens[row, : draft.drafted[row]].tolist())
                for row, request in enumerate(requests)
                if draft.drafted[row]
            ]
            return draft

        def recorded_read(batch: Any, tables: np.ndarray) -> torch.Tensor:
            self.read.append(batch.positions)
            return read(batch, tables)

        monkeypatch.setattr(drafter, "propose", recorded_propose)
        monkeypatch.setattr(drafter.hidden_states, "read", recorded_read)


def check_drafts(
    pair: Pair, settings: Any, whole: Callable[[Drafted], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that drafts are the most likely tokens of whole sequences, as training computes them.

    Drafted after chunked prefill, preemption, steps without drafts, and drafts accepted in part.

    Args:
        pair: target and head.
        settings: of the engine.
        whole: (draft tokens, vocabulary) logits of a draft.
    """
    plans = RandomPlans(longest=LONGEST)
    engine = Engine(pair.config(**settings), plans)
    recorded = Recorded(engine, monkeypatch)
    prompts = random_prompts(6, longest=60, seed=1)
    engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True))

    assert bool(engine.scheduler.num_preemptions) == bool(settings)
    assert any(outcome.catch_up_tokens for outcome in plans.outcomes)
    assert {len(row.draft) for row in recorded.rows} == set(range(1, LONGEST + 1))
    for row in recorded.rows:
        logits = whole(row)
        short_by = logits.amax(-1) - logits[torch.arange(len(row.draft)), torch.tensor(row.draft)]
        assert short_by.max() < 1e-3


def change_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def check_refused(pair: Pair, words: str) -> None:
    """Check that the head of a pair is refused in one line with these words."""
    with pytest.raises(UserError, match=words) as refusal:
        Models.load(pair.config())
    message = str(refusal.value)
    assert str(pair.drafter) in message
    assert ";" in message
    assert "\n" not in message
