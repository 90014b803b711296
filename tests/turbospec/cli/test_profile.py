from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from turbospec import UserError
from turbospec.cli.profile import Fit, profile
from turbospec.models.latency import LatencyModel
from turbospec.models.profile import LatencySample


@pytest.fixture(scope="module")
def fit() -> Fit:
    """A machine whose steps cost 5 ms, 40 µs a token, and 1 ms a draft pass, with 1 % of noise."""
    rng = np.random.default_rng(3)
    samples: list[LatencySample] = []
    for _ in range(300):
        requests, depth = int(rng.integers(1, 17)), int(rng.integers(0, 6))
        tokens = requests * (1 + depth)
        draft, verify = 1e-3 * depth, 5e-3 + 4e-5 * tokens
        noise = rng.normal(1, 0.01, 2)
        samples.append(
            LatencySample(
                draft_rows=(requests,) * depth,
                draft_context_tokens=0,
                catch_up_tokens=0,
                tokens_batched=tokens,
                prefill_tokens=0,
                context_tokens=0,
                draft_seconds=draft * noise[0],
                verify_seconds=verify * noise[1],
                step_seconds=draft * noise[0] + verify * noise[1],
            )
        )
    return Fit(LatencyModel.fit(samples), samples)


def test_a_good_fit_is_called_one(fit: Fit) -> None:
    assert fit.median_error < 0.02
    assert fit.r_squared > 0.98
    assert fit.document()["samples"] == 300


def test_coefficients_are_what_was_measured(fit: Fit) -> None:
    coefficients = fit.coefficients()
    assert coefficients["draft: pass"] == pytest.approx(1e-3, rel=0.05)
    assert coefficients["verify: any pass"] == pytest.approx(5e-3, rel=0.05)
    assert "verify: token 128 to 256" not in coefficients, "no step had so many tokens"


@pytest.mark.parametrize(("name", "begins"), [("fit.svg", b"<?xml"), ("deep/fit.png", b"\x89PNG")])
def test_the_plot_is_a_picture(fit: Fit, tmp_path: Path, name: str, begins: bytes) -> None:
    fit.plot(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_an_unknown_picture_format_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UserError, match=r"fit\.docx: unknown format"):
        profile(plot=Path("fit.docx"))


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("turbospec.cli.profile._measure", measure)
    for name in [name for name in sys.modules if name.startswith("turbospec_bench.reports.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="matplotlib"):
        profile(output=tmp_path / "p.json", plot=tmp_path / "fit.svg")
