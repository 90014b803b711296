"""`turbospec selftest vllm` with a real vLLM: the checks, and `adaptive` alone of what it measures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tests.vllm.script import REPOSITORY, SETTINGS
from turbospec.cli import main
from turbospec_bench.vllm.selftest import session
from turbospec_bench.vllm.selftest.contenders import ADAPTIVE, contenders


def test_all_checks_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(session, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(session, "TIMED_SECONDS", 0.0)
    monkeypatch.setattr(
        session, "contenders", lambda *given, **named: [e for e in contenders(*given, **named) if e.name == ADAPTIVE]
    )
    path = tmp_path / "selftest.json"
    arguments = ("--quick", "--prompts", "8", "--max-tokens", "24", "--json", str(path))
    monkeypatch.setattr(sys, "argv", ["turbospec", "selftest", "vllm", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    report = json.loads(path.read_text())
    assert report["complete"]
    assert [check["verdict"] for check in report["checks"]] == ["passed"] * 5
    assert report["versions"]["vllm"]
    assert report["figures"][0]["accepted_length"] > 1.0
