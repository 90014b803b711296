"""`turbospec selftest vllm` from the command line, with a worker that has no vLLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from turbospec.cli import main

SPECULATION = '{"method": "eagle3", "model": "drafter", "num_speculative_tokens": 5}'
WORKER = "tests.turbospec_bench.vllm.selftest.fake_worker"


class Run:
    def __init__(self, status: int, out: str, error: str, report: dict[str, Any] | None) -> None:
        self.status, self.out, self.error, self.report = status, out, error, report

    def verdict(self, name: str) -> str:
        assert self.report is not None
        return next(check["verdict"] for check in self.report["checks"] if check["name"].startswith(name))


@pytest.fixture
def selftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr("turbospec_bench.vllm.selftest.job.WORKER", WORKER)
    monkeypatch.setattr("turbospec.cli.selftest.installed_vllm", lambda: "0.32.0")

    def run(behave: str = "", *options: str, json_path: Path = tmp_path / "out.json") -> Run:
        engine = json.dumps({"behave": behave})
        named = ("--model", "target", "--speculative-config", SPECULATION, "--engine-args", engine)
        arguments = ("--prompts", "4", "--concurrency", "2", "--json", str(json_path), *(options or named))
        monkeypatch.setattr(sys, "argv", ["turbospec", "selftest", "vllm", "--quick", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        report = json.loads(json_path.read_text()) if json_path.is_file() else None
        return Run(int(ended.value.code or 0), shown.out, shown.err, report)

    return run


def test_all_is_well(selftest: Any) -> None:
    run = selftest()
    assert run.status == 0, run.error
    assert run.report["complete"]
    assert {check["verdict"] for check in run.report["checks"]} == {"passed"}
    assert [each["name"] for each in run.report["figures"]] == ["off", "fixed-3", "fixed-5", "table", "adaptive"]
    assert run.report["figures"][0]["median"] == 6.0
    assert run.report["figures"][4]["accepted_length"] == pytest.approx(1.5)
    assert "needs model runner V2" in run.report["skipped"]["adaptive-verification"]
    assert "adaptive reaches 1.00 of the best fixed draft length" in run.out


def test_results_go_to_a_file_and_an_earlier_one_is_kept(selftest: Any, tmp_path: Path) -> None:
    for folder in (tmp_path, Path(".")):
        run = selftest(json_path=folder)
        assert (run.status, run.out) == (2, "")
        assert run.error == f"error: {folder}: this is a folder; name a file in it\n"
    (tmp_path / "out.json").write_text("mine")
    assert selftest().status == 0
    assert (tmp_path / "out.json.bak").read_text() == "mine"


@pytest.mark.parametrize(
    ("behave", "check"), [("loses a token", "outputs of adaptive"), ("drafts too much", "drafter passes, sync")]
)
def test_a_failed_check_is_status_1_and_all_else_is_measured(selftest: Any, behave: str, check: str) -> None:
    run = selftest(behave)
    assert run.status == 1
    assert run.verdict(check) == "FAILED"
    assert run.report["complete"]


def test_a_token_that_differs_is_named(selftest: Any) -> None:
    assert "prompt 1 has token 9 for token 2 at position 2" in selftest("loses a token").out


def test_what_vllm_refuses_is_skipped_with_its_reason(selftest: Any) -> None:
    run = selftest("refuses async")
    assert run.status == 0
    assert run.verdict("outputs with random draft lengths, async") == "skipped"
    assert "async scheduling is not for you" in run.out


def test_a_model_that_vllm_cannot_run_is_one_line(selftest: Any) -> None:
    run = selftest("fails")
    assert run.status == 2
    assert run.error.splitlines()[-1].startswith("error: vLLM cannot run target: ValueError: async scheduling is not")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--model", "x"), "belong together"),
        (("--speculative-config", SPECULATION), "belong together"),
        (("--model", "x", "--speculative-config", "{"), "is not JSON"),
        (("--model", "x", "--speculative-config", "[]"), "must be a JSON object"),
        (("--model", "x", "--speculative-config", "{}"), "needs num_speculative_tokens"),
        (("--model", "x", "--speculative-config", SPECULATION, "--engine-args", "3"), "must be a JSON object"),
        (("--rounds", "0"), "rounds"),
    ],
)
def test_a_mistake_is_one_line(selftest: Any, options: tuple[str, ...], line: str) -> None:
    run = selftest("", *options)
    assert run.status == 2
    assert line in run.error
    assert run.error.count("\n") == 1
    assert run.report is None


def test_a_results_file_that_cannot_be_written_is_said_before_anything_runs(selftest: Any, tmp_path: Path) -> None:
    run = selftest(json_path=tmp_path)
    assert run.status == 2
    assert "this is a folder; name a file in it" in run.error
    assert run.error.count("\n") == 1


def test_without_models_here_one_line_says_what_to_name(
    selftest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = selftest("", "--max-tokens", "3")
    assert run.status == 2
    assert "name a model with --model" in run.error


def test_ctrl_c_ends_vllm_and_leaves_what_was_finished(selftest: Any, tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    log = tmp_path / "out-logs" / "random-sync.log"

    def interrupt() -> None:
        while not (log.exists() and "hangs" in log.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    run = selftest("hangs")
    assert run.status == 130
    assert not run.report["complete"]
    assert "reference" in run.report["resolved"]
    assert "what was finished is in" in run.error
    assert subprocess.run(["pgrep", "-f", WORKER], capture_output=True, text=True).stdout == ""
