from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import turbospec_sim


@pytest.mark.parametrize(
    "package", ["turbospec_sim", *(f"turbospec_sim.{name}" for name in ("replay", "tuning", "workload"))]
)
def test_every_public_name_exists_and_is_no_module(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == sorted(module.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in module.__all__:
        assert not isinstance(getattr(module, name), type(sys))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        turbospec_sim.simulat  # pyright: ignore # noqa: B018


def test_the_package_imports_its_modules_when_they_are_used() -> None:
    later = ("scipy.optimize", "pydantic")
    code = f"import sys, turbospec_sim; print([name for name in {later!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_script_needs_public_names_only() -> None:
    path = turbospec_sim.find_scenario("ttft-k15")
    scenario = turbospec_sim.read_scenario(path, ["workload.requests=3"])
    row = turbospec_sim.simulate(turbospec_sim.Run("ttft-k15", scenario, "off", rate=None, seed=0))
    assert row["completed"] == 3
