"""simulations/compare_with_vidur.py, as a user starts it; the comparison itself needs Vidur."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "simulations" / "compare_with_vidur.py"


@pytest.mark.skipif(find_spec("vidur") is not None, reason="Vidur is installed")
@pytest.mark.parametrize(
    ("arguments", "told"), [([], "`pip install vidur`"), (["--rounds", "0"], "--rounds 0: at least one is needed")]
)
def test_mistakes_are_told_in_one_line(arguments: list[str], told: str) -> None:
    run = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)
    assert run.returncode == 2
    assert told in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
