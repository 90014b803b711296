"""The code of CONTRIBUTING's recipes runs as it is written there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
RECIPES = re.split(r"^## ", (REPOSITORY / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)


def printed(recipe: str) -> str:
    """Output of the Python code in a recipe, run in the repository's root."""
    (text,) = [part for part in RECIPES if part.startswith(f"{recipe}\n")]
    (code,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_host() -> None:
    found = re.fullmatch(r"mean K ([\d.]+)\n", printed("Add a host"))
    assert found
    assert 2.0 < float(found[1]) <= 5.0  # four of five draft tokens are right, and a pass is a tenth of a step


@pytest.mark.skipif(
    not (REPOSITORY / "models/target/model.safetensors").is_file(), reason="models/ holds no checkpoints"
)
def test_drafter() -> None:
    assert "cat" in printed("Add a drafter")


def test_paths_in_the_text_exist() -> None:
    names = re.findall(
        r"(?:`|\]\()((?:turbospec|engine|simulations|benchmarks|tests|policies|docs)/[^`)]*)", "".join(RECIPES)
    )
    assert len(names) > 20
    made_by_the_recipe = ("my_policy", "my-policy", "<engine>")
    missing = [
        name
        for name in names
        if not (REPOSITORY / name).exists() and not any(part in name for part in made_by_the_recipe)
    ]
    assert missing == []
