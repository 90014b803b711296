"""CONTRIBUTING's recipe for a policy in this repository: the example's code under a built-in name."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path

import pytest

from tests.turbospec.factories import make_view
from turbospec import UserError
from turbospec.policy import load_policy, read_policy
from turbospec.policy.kinds import BUILT_IN

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy_package"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Carries the recipe out, and returns the path of the policy file."""
    module, path = tmp_path / "my_policy.py", tmp_path / "my-policy.yaml"
    for made, example in ((module, EXAMPLE / "my_package.py"), (path, EXAMPLE / "my-policy.yaml")):
        made.write_text(example.read_text().replace("my_package.my_policy", "my_policy"))
    specification = util.spec_from_file_location("my_policy", module)
    loaded = util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "my_policy", loaded)
    specification.loader.exec_module(loaded)
    monkeypatch.setitem(BUILT_IN, "my_policy", loaded.MyPolicyConfig)
    return path


def test_its_file_builds_the_policy(file):
    policy = load_policy(file)
    assert type(policy).__name__ == "MyPolicy"
    assert policy.plan(make_view(2)).draft_lengths.tolist() == [2, 2]  # 1 accepted at the start, and 1.5


def test_it_is_among_the_known_ones(file):
    file.write_text("version: 1\npolicy: my_polcy\n")
    with pytest.raises(UserError, match=r"did you mean `my_policy`\?"):
        read_policy(file)
