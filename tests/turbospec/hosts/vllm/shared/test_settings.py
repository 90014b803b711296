from __future__ import annotations

import os
from pathlib import Path

import pytest

from turbospec.errors import UserError
from turbospec.hosts.vllm.shared.settings import read_settings

OFF = "version: 1\npolicy: off\n"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLICY", "PROFILE", "TRACE", "LOOKUP"):
        monkeypatch.delenv(f"TURBOSPEC_{name}", raising=False)


@pytest.mark.parametrize("additional_config", [{}, {"other": 1}, object()])
def test_nobody_asked(additional_config: object) -> None:
    assert read_settings(additional_config) is None


def test_the_environment_names_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "adaptive")
    monkeypatch.setenv("TURBOSPEC_TRACE", "steps.jsonl")
    settings = read_settings({})
    assert settings is not None
    assert (settings.policy, settings.trace, settings.profile) == ("adaptive", Path("steps.jsonl"), None)


def test_the_configuration_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "adaptive")
    for given in ("static-3", {"policy": "static-3"}):
        settings = read_settings({"turbospec": given})
        assert settings is not None
        assert settings.policy == "static-3"


def test_a_look_up_is_named_in_either_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "adaptive")
    settings = read_settings({})
    assert settings is not None
    assert settings.lookup is None
    monkeypatch.setenv("TURBOSPEC_LOOKUP", "ngram")
    for given in ({}, {"turbospec": {"policy": "adaptive", "lookup": "ngram"}}):
        settings = read_settings(given)
        assert settings is not None
        assert settings.lookup == "ngram"
    monkeypatch.setenv("TURBOSPEC_LOOKUP", "suffix")
    with pytest.raises(UserError, match="TURBOSPEC_ variables: lookup: Input should be 'ngram'"):
        read_settings({})


@pytest.mark.parametrize("given", [{}, {"policy": "adaptive", "polcy": "off"}, "", 3])
def test_what_is_wrong_is_named(given: object) -> None:
    with pytest.raises(UserError, match="--additional-config's 'turbospec'"):
        read_settings({"turbospec": given})


def test_a_policy_that_is_not_there_is_named_before_the_server_starts(tmp_path: Path) -> None:
    settings = read_settings({"turbospec": str(tmp_path / "gone.yaml")})
    assert settings is not None
    with pytest.raises(UserError, match=r"gone\.yaml"):
        settings.check()


@pytest.mark.parametrize("trace", ["file/trace.jsonl", "", "fifo", "/dev/full", "file\0", "x" * 300, "policy.yaml"])
def test_a_trace_that_cannot_be_written_is_named_before_the_server_starts(trace: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    policy = tmp_path / "policy.yaml"
    policy.write_text(OFF)
    settings = read_settings({"turbospec": {"policy": str(policy), "trace": str(tmp_path / trace)}})
    assert settings is not None
    with pytest.raises(UserError, match=r"name another file|name a file"):
        settings.check()
    assert policy.read_text() == OFF


@pytest.mark.parametrize("variable", ["TURBOSPEC_POLICY", "TURBOSPEC_PROFILE"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"{", b"[" * 100_000, b"a: &a [*a]", b"policy: [\n"])
def test_a_file_that_is_none_is_named_before_the_server_starts(
    variable: str, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is a folder in the file's place."""
    path = tmp_path / "given"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    monkeypatch.setenv(variable, f"{path}{'/' if variable == 'TURBOSPEC_POLICY' and content is None else ''}")
    settings = read_settings({})
    assert settings is not None
    with pytest.raises(UserError, match="given"):
        settings.check()


@pytest.mark.parametrize("variable", ["TURBOSPEC_POLICY", "TURBOSPEC_PROFILE"])
@pytest.mark.parametrize("device", ["/dev/zero", "fifo"])
def test_a_device_or_a_pipe_does_not_hang_the_server(
    variable: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("TURBOSPEC_POLICY", "off")
    monkeypatch.setenv(variable, str(tmp_path / device))
    settings = read_settings({})
    assert settings is not None
    with pytest.raises(UserError, match="pipe, socket or device"):
        settings.check()


def test_the_controller_follows_its_file() -> None:
    settings = read_settings({"turbospec": "static-3"})
    assert settings is not None
    settings.check()
    assert type(settings.controller().policy).__name__ == "ReloadingPolicy"
