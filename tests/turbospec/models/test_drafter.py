"""Both acceptance models of a drafter over the same rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.models.drafter import MIN_CONFIDENCE_OBSERVATIONS, DrafterModels

CLASSES = np.zeros(4, np.int64)


def test_a_row_that_is_reassigned_is_reset_in_both_models() -> None:
    models = DrafterModels(3)
    view = make_view(4)
    rows, new = models.assign_rows(view.request_ids)
    assert new.tolist() == rows.tolist()
    outcome = make_outcome(view, 3, 0, confidence=np.full((4, 3), 0.9))
    for _ in range(5):
        models.learn(rows, CLASSES, outcome, 0)
    assert (models.acceptance.evidence(rows) > 0.0).all()
    assert (models.calibration.odds_ratios(rows) < 1.0).all()
    capacity = models.capacity
    others = np.arange(1000, 1000 + capacity)
    rows, new = models.assign_rows(others)
    assert len(new) == capacity
    assert (models.acceptance.evidence(rows) == 0.0).all()
    assert (models.calibration.odds_ratios(rows) == 1.0).all()


@pytest.mark.parametrize("with_confidence", [True, False])
def test_confidence_is_trusted_after_enough_observations(with_confidence: bool) -> None:
    models, view = DrafterModels(4), make_view(4)
    rows, _ = models.assign_rows(view.request_ids)
    outcome = make_outcome(view, 4, 4, confidence=np.full((4, 4), 0.9))
    if not with_confidence:
        outcome = replace(outcome, confidence=None)
    for step in range(MIN_CONFIDENCE_OBSERVATIONS // 16):
        assert not models.calibrated, step
        models.learn(rows, CLASSES, outcome, 0)
    assert models.calibrated == with_confidence


def test_a_token_dropped_by_a_gate_lowers_the_acceptance_of_its_position() -> None:
    view = make_view(4)
    confidence = np.full((4, 2), 0.9)
    confidence[:, 1] = 0.05
    second: list[float] = []
    for proposed in (1, 2):
        models = DrafterModels(2)
        rows, _ = models.assign_rows(view.request_ids)
        for _ in range(20):
            models.learn(
                rows, CLASSES, make_outcome(view, 1, 1, proposed=np.full(4, proposed), confidence=confidence), 0
            )
        second.append(float(models.acceptance.conditional(rows, CLASSES, np.full(4, 2))[0, 1]))
    not_proposed, dropped = second
    assert dropped < not_proposed - 0.2
