"""`turbospec bench vllm` from arguments to files, with a fake vLLM."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.turbospec_bench.vllm import fake_vllm
from turbospec import UserError
from turbospec.cli import vllm_runs
from turbospec.cli.bench import app
from turbospec.cli.signals import SignalsInterrupt
from turbospec_bench.vllm import client_process, contender
from turbospec_bench.vllm.contender import VllmContender
from turbospec_bench.vllm.server import Server

FAKE = (sys.executable, fake_vllm.__file__)
POLICIES = ("off", "static-1", "static-3", "static-5", "static-15", "vllm-table", "adaptive")


@pytest.fixture
def arguments(tiny: Path, alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a bench that keeps everything it writes in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client_process, "COMMAND", (*FAKE, "client"))
    monkeypatch.setattr(contender, "IDLE_SECONDS", 0.0)  # the fake's metrics are never late
    monkeypatch.setattr(vllm_runs, "packages_distributions", lambda: {"vllm": ["turbospec"]})
    folders = ["--models", str(tiny / "models"), "--workloads", str(tiny / "workloads")]
    return [*folders, "--vllm", " ".join(FAKE), "--json", "out.json"]


def invoke(*arguments: str, subcommand: tuple[str, ...] = ("vllm",)) -> Result:
    return CliRunner().invoke(app, [*subcommand, *arguments], catch_exceptions=False)


def document() -> dict[str, Any]:
    return json.loads(Path("out.json").read_text())


def test_rows_table_report_and_logs(arguments: list[str]) -> None:
    selection = ["--workload", "text", "--drafter", "good", "--concurrency", "1", "--concurrency", "8", "--rounds", "2"]

    done = invoke(*arguments, *selection)

    assert done.exit_code == 0
    rows = document()["rows"]
    assert [row["policy"] for row in rows] == [*POLICIES] * 2
    speeds = {row["policy"]: row["output_throughput"] for row in rows}
    assert speeds == dict(zip(POLICIES, (100, 110, 130, 150, 250, 170, 200), strict=True))
    assert {row["emit"] for row in rows} == {None}
    assert {row["rounds"] for row in rows} == {2}
    assert rows[6]["ratio_to_off"]["output_throughput"]["value"] == 2
    meta = document()["meta"]
    assert meta["vllm_tables"] == {"good": [[1, 2, 15], [3, 8, 15]]}
    shares = [row.get("controller_time_share") for row in rows if row["policy"] in ("vllm-table", "adaptive")]
    assert shares[:2] == [None, pytest.approx(0.005)]
    assert "[[1, 2, 15], [3, 8, 15]]" in done.stdout
    assert "adaptive: 0.800× the tokens/s of the best other, static-15" in done.stdout
    assert "against off: 100 % more tokens/s" in done.stdout
    assert not re.search("not judged|missed|target", done.stdout)
    judged = invoke("targets", "out.json", subcommand=())
    assert judged.exit_code == 0  # two rounds settle nothing
    assert [line[:10].strip() for line in judged.stdout.splitlines() if re.match("met|missed|not judged", line)] == [
        *("missed", "missed", "not judged", "not judged", "met")
    ]
    assert "text/good/c8" in Path("out.html").read_text()
    assert {path.stem for path in Path("out-logs").iterdir()} == {
        *("off", "client"),
        *(f"good-{name}" for name in POLICIES[1:]),
    }


def test_the_table_is_tuned_from_fixed_lengths_that_do_not_compete(arguments: list[str]) -> None:
    selection = ["--workload", "text", "--drafter", "weak", "--concurrency", "2", "--rounds", "1"]

    assert invoke(*arguments, *selection, "--policy", "vllm-table").exit_code == 0

    assert [row["policy"] for row in document()["rows"]] == ["off", "vllm-table"]
    assert document()["meta"]["vllm_tables"] == {"weak": [[1, 2, 15]]}


def test_an_end_from_outside_keeps_what_is_finished_and_resume_completes_it(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*arguments, "--workload", "text", "--drafter", "good", "--drafter", "n-gram", "--rounds", "1"]
    command += ["--concurrency", "2", "--policy", "vllm-table", "--policy", "adaptive"]
    serve = VllmContender.serve
    servers: list[Server] = []

    def ended(self: VllmContender, load: Any) -> Any:
        if self.server.name.startswith("n-gram"):
            os.kill(os.getpid(), signal.SIGTERM)
        servers.append(self.server)
        return serve(self, load)

    monkeypatch.setattr(VllmContender, "serve", ended)
    with SignalsInterrupt():
        stopped = invoke(*command)
    monkeypatch.setattr(VllmContender, "serve", serve)

    assert stopped.exit_code == 130
    assert "1 of 2 configurations are finished; --resume out.json completes the run" in stopped.stderr
    for server in servers:
        with pytest.raises(UserError, match="ended"):
            server.check()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    first = document()["rows"]
    assert {row["drafter"] for row in first} == {"good"}

    assert invoke(*command, "--resume", "out.json").exit_code == 0
    rows = document()["rows"]
    assert rows[:3] == first
    assert [row["drafter"] for row in rows] == ["good"] * 3 + ["n-gram"] * 3
    assert document()["meta"]["vllm_tables"].keys() == {"good", "n-gram"}


@pytest.mark.parametrize("added", [("--workload", "random"), ("--concurrency", "1")])
def test_a_table_is_not_used_where_it_was_not_tuned(arguments: list[str], added: tuple[str, str]) -> None:
    command = [*arguments, "--drafter", "good", "--workload", "text", "--concurrency", "2", "--policy", "vllm-table"]
    assert invoke(*command, "--rounds", "1").exit_code == 0

    with pytest.raises(UserError, match=r"out\.json: its vllm-table was not tuned on (random/good/c2|text/good/c1)"):
        invoke(*command, *added, "--resume", "out.json")
    assert invoke(*command, "--rounds", "2", "--resume", "out.json").exit_code == 0
    assert {row["rounds"] for row in document()["rows"]} == {2}


def test_requests_that_fail_end_the_run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = client_process.BenchClient.run

    def failing(self: Any, given: list[str], check: Any) -> None:
        run(self, given, check)
        path = Path(given[given.index("--result-dir") + 1], "result.json")
        saved = json.loads(path.read_text())
        path.write_text(json.dumps(saved | {"completed": 4, "errors": ["", "Traceback\nServerDisconnectedError"]}))

    monkeypatch.setattr(client_process.BenchClient, "run", failing)
    with pytest.raises(UserError, match=r"served 4 of 6 requests: ServerDisconnectedError; its log is out-logs"):
        invoke(*arguments, "--workload", "random", "--drafter", "good", "--concurrency", "2", "--policy", "adaptive")


@pytest.mark.parametrize("behaviour", ["lacks-turbospec", "turbospec-fails"])
def test_a_server_without_turbospec_is_not_measured_as_one_with_it(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setenv("FAKE_VLLM", behaviour)
    with pytest.raises(UserError, match=r"\(good-adaptive\) drafts its own length, without TurboSpec; out-logs/"):
        invoke(*arguments, "--workload", "random", "--drafter", "good", "--concurrency", "2", "--policy", "adaptive")


def test_without_turbospecs_metrics_only_its_share_is_unknown(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "lacks-metrics")
    selection = ["--workload", "random", "--drafter", "good", "--concurrency", "2", "--policy", "adaptive"]

    assert invoke(*arguments, *selection, "--rounds", "1").exit_code == 0
    assert document()["rows"][1]["controller_time_share"] is None


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--workload", "code"], "no workload 'code'; there are text, random, edit, records"),
        (["--drafter", "best"], "no drafter 'best'; there are good, weak, mismatched, eagle3"),
        (["--policy", "adaptiv"], "did you mean `adaptive`"),
        (["--vllm", "absent serve"], "--vllm absent serve: there is no such command"),
        (["--vllm", "vllm 'serve"], "--vllm vllm 'serve: not a command"),
        (["--vllm", ""], "there is no such command"),
        (["--vllm", f"{sys.executable} -c 1/0"], r"ended with status 1: ZeroDivisionError: .*out-logs/off\.log"),
        (["--resume", "absent.json"], "absent.json: no such results file"),
        (["--workloads", "absent"], "code.jsonl: no such workload file"),
        (["--models", "absent"], "no target checkpoint"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], extra: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        invoke(*arguments, *extra)

    assert "\n" not in str(refusal.value)


def test_vllm_is_needed_beside_us(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_runs, "packages_distributions", dict)
    with pytest.raises(UserError, match=r"vLLM is not installed for .*the Python that has it"):
        invoke(*arguments)


def test_a_client_that_lacks_something_says_what(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    says = """print('{"error": "cannot be imported (No module named pandas)"}')"""
    monkeypatch.setattr(client_process, "COMMAND", (sys.executable, "-c", says))
    with pytest.raises(UserError, match="No module named pandas"):
        invoke(*arguments)
    monkeypatch.setattr(client_process, "COMMAND", (sys.executable, "-c", "raise SystemExit('out of memory')"))
    with pytest.raises(UserError, match=r"ended: out of memory \(all of it in out-logs/client\.log"):
        invoke(*arguments)


def test_results_of_the_embedded_engine_are_not_resumed(arguments: list[str]) -> None:
    Path("other.json").write_text(json.dumps({"meta": {"seed": 0, "dtype": "bfloat16"}, "rows": []}))
    with pytest.raises(UserError, match="was measured with another vllm"):
        invoke(*arguments, "--resume", "other.json")
