"""`turbospec bench` from arguments to files, on tiny models."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from tests.turbospec_bench.tiny import write_workloads
from turbospec import UserError
from turbospec.cli import bench, bench_output
from turbospec.cli.bench import app
from turbospec.models.profile import Profile
from turbospec.observability.trace import read_trace
from turbospec_bench import stats, targets
from turbospec_bench.configuration import Configuration
from turbospec_bench.embedded import profiles
from turbospec_bench.embedded.contender import EngineContender
from turbospec_bench.other_processes import CpuWatch
from turbospec_bench.recorder import StepTotals
from turbospec_bench.results import Results
from turbospec_bench.targets import Verdict
from turbospec_bench.texts import Shape
from turbospec_bench.trace_folder import TraceFolder

ONE = ("--workload", "code", "--drafter", "good", "--concurrency", "2", "--rounds", "2")
"""A selection of one configuration."""

FIELDS = {
    *("workload", "drafter", "policy", "concurrency", "request_rate", "emit", "rounds"),
    *("output_throughput", "request_throughput", "total_output_tokens", "completed", "failed", "duration"),
    *(
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "p50", "p95", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    ),
    *("mean_accepted_length", "mean_draft_length", "draft_time_share", "controller_time_share"),
    *("distinct_2", "distinct_4", "loop_share"),
}


@pytest.fixture
def arguments(tiny: Path, alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a small bench that keeps everything it writes in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Shape, "of", classmethod(lambda cls, configuration: Shape(6, 8)))
    monkeypatch.setattr(profiles, "MAX_SECONDS", 0.5)
    return ["--models", str(tiny / "models"), "--workloads", str(tiny / "workloads"), "--threads", "1"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_rows_report_and_pictures(arguments: list[str], tmp_path: Path) -> None:
    selection = ["--workload", "mixed", "--drafter", "good", "--concurrency", "4", "--rounds", "2"]
    policies = ["--policy", "static-2", "--policy", "adaptive", "--policy", "static-3:after_draft"]

    done = invoke(*arguments, *selection, *policies, "--json", "out.json", "--pictures", "pictures")

    assert done.exit_code == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert document.keys() == {"meta", "rows"}
    assert [(row["policy"], row["emit"]) for row in document["rows"]] == [
        ("off", "before_draft"),
        ("static-2", "before_draft"),
        ("adaptive", "before_draft"),
        ("static-3", "after_draft"),
    ]
    for row in document["rows"]:
        assert row.keys() >= FIELDS
        assert (row["completed"], row["failed"], row["rounds"]) == (6, 0, 2)
    assert len({row["total_output_tokens"] for row in document["rows"]}) == 1
    assert document["rows"][1]["mean_draft_length"] > 1
    assert (tmp_path / "pictures/latency-mixed-good-c4.svg").is_file()
    assert len(list((tmp_path / ".cache/turbospec").glob("profile-good-*.json"))) == 1
    assert "mixed/good/c4" in done.stdout
    assert "out.html" in done.stdout


def test_what_a_policy_is_stands_in_its_file_not_in_its_name(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "off-hours.yaml").write_text("version: 1\npolicy: adaptive\n")
    (tmp_path / "static-mine.yaml").write_text("version: 1\npolicy: static\ndraft_length: 2\n")
    command = [*arguments, "--workload", "code", "--drafter", "n-gram", "--concurrency", "2", "--rounds", "2"]

    assert invoke(*command, "--policy", "static-mine.yaml", "--json", "fixed.json").exit_code == 0
    assert not (tmp_path / ".cache/turbospec").exists()  # no step times for a policy that never predicts
    assert invoke(*command, "--policy", "off-hours.yaml", "--json", "varying.json").exit_code == 0
    assert len(list((tmp_path / ".cache/turbospec").glob("profile-*.json"))) == 1
    rows = json.loads((tmp_path / "varying.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["off", "off-hours"]


def test_traces_of_counted_runs_and_the_step_times_that_go_with_them(arguments: list[str], tmp_path: Path) -> None:
    selection = ["--workload", "code", "--drafter", "good", "--concurrency", "2", "--rounds", "2"]

    done = invoke(*arguments, *selection, "--policy", "static-2", "--traces", "kept", "--json", "out.json")

    assert done.exit_code == 0
    folder = TraceFolder(tmp_path / "kept")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    for row in rows:
        for index in range(2):
            steps = list(read_trace(folder.trace(Configuration.of(row), row["policy"], row["emit"], index + 1)))
            emitted = sum(sum(step.emitted) for step in steps)
            assert emitted == row["round_figures"]["total_output_tokens"][index]
    assert len(list((tmp_path / "kept").rglob("*.jsonl"))) == 2 * len(rows)  # the warm-up has none
    measured = Profile.load(folder.profile("good"))
    assert measured.samples
    assert (measured.meta["temperature"], measured.meta["top_p"]) == (0.8, 0.95)  # as the load is
    assert not (tmp_path / ".cache").exists()


def test_poisson_arrivals_with_the_ngram_drafter(arguments: list[str], tmp_path: Path) -> None:
    selection = ["--workload", "code", "--drafter", "n-gram", "--request-rate", "200", "--rounds", "1"]

    assert invoke(*arguments, *selection, "--policy", "static-3", "--json", "out.json").exit_code == 0

    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert {row["request_rate"] for row in rows} == {200}
    assert {row["concurrency"] for row in rows} == {None}


def test_a_workload_with_answers(arguments: list[str], tmp_path: Path) -> None:
    write_workloads(tmp_path / "texts")
    repeated = " ".join(f"name{number} = {number}" for number in range(30))
    (tmp_path / "texts" / "edit.jsonl").write_text(json.dumps({"text": repeated[:250], "answer": repeated[:100]}))
    selection = ["--workload", "edit", "--concurrency", "1", "--rounds", "1", "--workloads", "texts"]

    assert invoke(*arguments, *selection, "--policy", "static-3", "--json", "out.json").exit_code == 0

    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["drafter"], row["policy"]) for row in rows] == [
        (drafter, policy) for drafter in ("good", "n-gram") for policy in ("off", "static-3")
    ]
    assert rows[-1]["acceptance_rate"] > 0.6  # of look-ups, as the answer is in the prompt


def test_a_look_up_beside_each_drafter_that_is_a_model(arguments: list[str], tmp_path: Path) -> None:
    write_workloads(tmp_path / "texts")
    repeated = " ".join(f"name{number} = {number}" for number in range(30))
    (tmp_path / "texts" / "edit.jsonl").write_text(json.dumps({"text": repeated[:250], "answer": repeated[:100]}))
    selection = ["--workload", "edit", "--concurrency", "1", "--rounds", "1", "--workloads", "texts"]
    command = [*arguments, *selection, "--lookup", "ngram", "--policy", "lookup-first"]

    assert invoke(*command, "--json", "out.json").exit_code == 0

    document = json.loads((tmp_path / "out.json").read_text())
    assert document["meta"]["lookup"] == "ngram"
    off, beside, _, alone = document["rows"]
    assert beside["lookup_accepted_length"] > 2
    assert 0 < beside["drafter_draft_length"] < beside["mean_draft_length"]
    assert off["lookup_draft_length"] == 0
    assert "lookup_draft_length" not in alone
    with pytest.raises(UserError, match="was measured with another lookup"):
        invoke(*command[:-4], "--policy", "lookup-first", "--resume", "out.json")


def test_a_policy_that_has_changed_is_not_resumed(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("version: 1\npolicy: static\ndraft_length: 1\n")
    command = [*arguments, *ONE, "--rounds", "1", "--policy", "own.yaml"]
    assert invoke(*command, "--json", "out.json").exit_code == 0
    assert invoke(*command, "--resume", "out.json").exit_code == 0
    (tmp_path / "own.yaml").write_text("version: 1\npolicy: static\ndraft_length: 2\n")
    with pytest.raises(UserError, match=r"out\.json: own\.yaml has changed since; start a new one"):
        invoke(*command, "--resume", "out.json")


@pytest.mark.parametrize(
    ("surrounding", "words"),
    [
        ("processor", "processor"),
        ("source_digest", "source digest"),
        ("gpu", "gpu"),
    ],
)
def test_rounds_of_other_code_or_another_processor_are_not_mixed(
    surrounding: str, words: str, arguments: list[str], tmp_path: Path
) -> None:
    command = [*arguments, *ONE, "--rounds", "1", "--policy", "static-1"]
    assert invoke(*command, "--json", "out.json").exit_code == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["meta"]["command"].startswith("turbospec")
    document["meta"][surrounding] = "another"
    (tmp_path / "out.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=f"was measured with another {words}; start a new one"):
        invoke(*command, "--resume", "out.json")
    del document["meta"][surrounding]  # of results that are older
    (tmp_path / "out.json").write_text(json.dumps(document))
    assert invoke(*command, "--resume", "out.json").exit_code == 0


@pytest.mark.parametrize("package", ["python", "torch", "numpy", "numba"])
def test_rounds_of_another_version_are_not_mixed(package: str, tmp_path: Path) -> None:
    outputs = bench_output.Outputs(tmp_path / "out.json", tmp_path / "out.html", None)
    earlier = Results(outputs.results, bench_output.surroundings() | {package: "another"})
    with pytest.raises(UserError, match=f"was measured with another {package}; start a new one"):
        outputs.open_results(earlier, {"rounds": 1}, (), {})


def test_results_that_are_there_are_kept(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("results of hours")
    assert invoke(*arguments, *ONE, "--rounds", "1", "--policy", "static-1", "--json", "out.json").exit_code == 0
    assert (tmp_path / "out.json.bak").read_text() == "results of hours"
    assert json.loads((tmp_path / "out.json").read_text())["rows"]


@pytest.mark.parametrize(
    "changed", ["models/drafter/model.safetensors", "models/target/config.json", "workloads/code.jsonl"]
)
def test_other_files_are_not_resumed(changed: str, arguments: list[str], tiny: Path, tmp_path: Path) -> None:
    """Rounds of other weights, texts or step times cannot be paired with those before."""
    for folder in ("models", "workloads"):
        shutil.copytree(tiny / folder, tmp_path / folder)
    command = ["--threads", "1", *ONE, "--rounds", "1", "--policy", "static-1"]
    assert invoke(*command, "--json", "out.json").exit_code == 0
    with (tmp_path / changed).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(UserError, match=r"has changed since; start a new one"):
        invoke(*command, "--resume", "out.json")


def test_an_unknown_look_up_is_refused_before_anything_is_loaded(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="use 'ngram' or 'suffix'"):
        invoke(*arguments, *ONE, "--lookup", "tree", "--models", "nowhere")


def test_an_interruption_keeps_what_is_finished_and_resume_completes_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*arguments, "--workload", "code", "--drafter", "weak", "--policy", "static-1", "--rounds", "1"]
    command += ["--concurrency", "1", "--concurrency", "2"]
    serve, served = EngineContender.serve, []

    def interrupted(self: EngineContender, load: object) -> object:
        served.append(load)
        if len(served) == 6:  # in the second configuration, after its warm-up round
            raise KeyboardInterrupt
        return serve(self, load)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(EngineContender, "serve", interrupted)
    stopped = invoke(*command, "--json", "out.json")
    monkeypatch.setattr(EngineContender, "serve", serve)

    assert stopped.exit_code == 130
    assert "1 of 2 configurations are finished; --resume out.json completes the run" in stopped.stderr
    first = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert {row["concurrency"] for row in first} == {1}

    assert invoke(*command, "--resume", "out.json").exit_code == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert rows[:2] == first
    assert [row["concurrency"] for row in rows] == [1, 1, 2, 2]


def test_only_the_rounds_that_are_missing_are_played(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*arguments, "--workload", "code", "--drafter", "weak", "--policy", "static-1", "--rounds", "3"]
    command += ["--concurrency", "2"]
    serve, served = EngineContender.serve, []

    def interrupted(self: EngineContender, load: object) -> object:
        served.append(load)
        if len(served) == 7:  # in the third counted round of two policies
            raise KeyboardInterrupt
        return serve(self, load)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(EngineContender, "serve", interrupted)
    assert invoke(*command, "--json", "out.json").exit_code == 130
    before = Results.load(tmp_path / "out.json").rows
    assert {row["rounds"] for row in before} == {2}
    kept = (tmp_path / "out.json").read_bytes()

    done = invoke(*command, "--resume", "out.json", "--json", "whole.json")

    assert done.exit_code == 0
    assert "1 configuration, 4 runs, 24 requests" in done.stderr
    assert len(served) == 7 + 2 * 2  # a round to warm up, and the third
    assert served[-1] == served[6]  # of which the load is the one that was interrupted
    rows = Results.load(tmp_path / "whole.json").rows
    assert {row["rounds"] for row in rows} == {3}
    for row, old in zip(rows, before, strict=True):
        assert row["round_figures"]["output_throughput"][:2] == old["round_figures"]["output_throughput"]
    assert (tmp_path / "out.json").read_bytes() == kept
    whole = (tmp_path / "whole.json").read_bytes()
    with pytest.raises(UserError, match="another selection of policies"):
        invoke(*command, "--rounds", "4", "--policy", "adaptive", "--resume", "whole.json")
    assert (tmp_path / "whole.json").read_bytes() == whole


def test_an_interruption_before_the_first_round_promises_no_resume(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: EngineContender, load: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineContender, "serve", interrupted)
    (tmp_path / "other.json").write_text("of another run")
    for name in ("out.json", "other.json"):
        stopped = invoke(*arguments, *ONE, "--policy", "static-1", "--json", name)
        assert stopped.exit_code == 130
        assert "no round is finished" in stopped.stderr
        assert f"resume {name}" not in stopped.stderr
    assert not (tmp_path / "out.json").exists()
    assert (tmp_path / "other.json").read_text() == "of another run"


def test_what_the_run_shows_is_said_and_targets_are_not(arguments: list[str], tmp_path: Path) -> None:
    done = invoke(*arguments, *ONE, "--policy", "static-1", "--policy", "adaptive", "--json", "out.json")

    said = done.stdout + (tmp_path / "out.html").read_text()
    assert done.exit_code == 0
    assert "against off: " in done.stdout
    assert "against off</dt>" in said
    assert not re.search(r"not judged|MISSED|missed:|target", done.stdout)
    assert "targets" not in json.loads((tmp_path / "out.json").read_text())["meta"]


@pytest.mark.parametrize(("share", "status", "word"), [(0.0, 0, "met"), (1.0, 1, "missed")])
def test_targets_are_judged_where_one_asks(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, status: int, word: str
) -> None:
    figures = StepTotals.figures
    monkeypatch.setattr(StepTotals, "figures", lambda self: figures(self) | {"controller_time_share": share})
    monkeypatch.setattr(stats, "HONEST_ROUNDS", 1)
    monkeypatch.setattr(targets, "BEST_FIXED", 0.0)
    monkeypatch.setattr(targets, "FIRST_TOKEN_LIMIT", math.inf)
    # Against `off` alone, of which no more is asked than its controller's share.
    monkeypatch.setattr(targets, "_every_fixed_overall", lambda rows: Verdict("overall", None, "left out"))

    done = invoke(*arguments, *ONE, "--policy", "adaptive", "--json", "out.json", "--check-targets")
    again = invoke("targets", str(tmp_path / "out.json"))

    assert (done.exit_code, again.exit_code) == (status, status)
    assert re.search(rf"^{word} +controller's share of step time", again.stdout, re.MULTILINE)
    assert "not judged" in again.stdout
    assert done.stdout.endswith(again.stdout)


def test_threads_are_those_that_other_processes_leave(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "other_cores_now", lambda: 1.3)
    monkeypatch.setattr(bench, "cores", lambda: 4)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    given = [argument for argument in arguments if argument not in ("--threads", "1")]
    before = torch.get_num_threads()
    try:
        done = invoke(*given, *ONE, "--policy", "static-1", "--json", "out.json")
    finally:
        torch.set_num_threads(before)

    assert "other processes use 1.3 of 4 cores" in done.stderr
    meta = json.loads((tmp_path / "out.json").read_text())["meta"]
    assert (meta["threads"], meta["omp_wait_policy"]) == (2, "passive")
    assert os.environ.pop("OMP_WAIT_POLICY") == "passive"
    # A run that is completed keeps its number, whatever the machine does now.
    monkeypatch.setattr(bench, "other_cores_now", lambda: 3.0)
    try:
        assert invoke(*given, *ONE, "--policy", "static-1", "--resume", "out.json").exit_code == 0
    finally:
        torch.set_num_threads(before)


def test_torch_is_not_loaded_before_its_threads_are_chosen() -> None:
    script = (
        "import sys\n"
        "from turbospec import cli\n"
        "from turbospec_bench import other_processes\n"
        "def measured(): raise SystemExit('torch' in sys.modules)\n"
        "other_processes.other_cores_now = measured\n"
        "sys.argv = ['turbospec', 'bench', '--quick']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--workload", "poetry"], "no workload 'poetry'"),
        (["--policy", "adaptiv"], "did you mean `adaptive`"),
        (["--policy", "adaptive", "--policy", "mine/adaptive.yaml"], "both be called 'adaptive'"),
        (["--policy", "absent.yaml"], "absent.yaml: no such policy file"),
        (["--quick", "--workload", "code"], "--quick has configurations of its own"),
        (["--resume", "absent.json"], "absent.json: no such results file"),
        (["--workloads", "absent"], "code.jsonl: no such workload file"),
        (["--workload", "edit"], "edit.jsonl: no such workload file"),
        (["--models", "absent"], "no target checkpoint"),
        (["--traces", "taken"], "taken: no file can be written there"),
        (["--json", "folder"], "folder: this is a folder"),
        (["--json", "taken/out.json"], r"taken/out\.json: .*; name another file"),
        (["--json", "/dev/null"], "/dev/null: this is a pipe, socket or device"),
        (["--json", "same", "--report", "same"], "same: given for two outputs"),
        (["--report", "folder"], "folder: this is a folder"),
        (["--report", "x" * 300], "name another file"),
        (["--traces", "both", "--json", "both"], "both: this is a folder"),
        (["--pictures", "taken"], "taken: no file can be written there"),
        (["--pictures", "taken/pictures"], "no file can be written there"),
        (["--policy", "mine.yaml", "--json", "mine.yaml"], "mine.yaml: is read by this command"),
        (["--resume", "taken"], "taken: not a results file"),
        (["--profile", "taken"], "taken: not a profile"),
        (["--rounds", "1000"], "which is too much; lower"),
        (["--request-rate", "1e308"], "request rate 1e\\+308 is out of range"),
        (["--request-rate", "nan"], "request rate nan is out of range"),
        (["--concurrency", "1000000000"], "concurrency 1000000000 is out of range"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--concurrency", "8", "--request-rate", "2"], "two kinds of load; leave one out"),
        (["--policy", "transformers-magic"], "no schedule of transformers is called 'transformers-magic'"),
        (["--concurrency", "8", "--policy", "transformers-heuristic"], "takes part in no configuration"),
        (["--rounds", "8", "controller"], "before controller does nothing; leave it out"),
        (["--dtype", "int3"], "dtype='int3' is unknown"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], tmp_path: Path, extra: list[str], words: str) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine.yaml").write_text("version: 1\npolicy: static\ndraft_length: 2\n")
    with pytest.raises(UserError, match=words) as refusal:
        invoke(*arguments, *extra)

    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    "options",
    [
        ("--requests", "1000000000"),
        ("--steps", "1000000000000"),
        ("--max-draft", "1000000000"),
        ("--requests", "10000", "--steps", "1000000", "--max-draft", "128"),
        ("--requests", "0"),
    ],
)
def test_an_absurd_controller_benchmark_is_refused_before_it_begins(options: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(app, ["controller", *options])
    assert refused.exit_code == 2 or isinstance(refused.exception, UserError)


def test_a_profile_is_of_one_drafter(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "load", lambda path: Profile([]))
    with pytest.raises(UserError, match="--profile has the step times of one drafter; choose it with --drafter"):
        invoke(*arguments, "--drafter", "good", "--drafter", "n-gram", "--profile", "mine.json")


def test_a_cache_that_cannot_be_used_costs_a_measurement_and_no_result(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / ".cache").write_text("no folder")
    done = invoke(*arguments, *ONE, "--policy", "adaptive", "--json", "out.json")
    assert done.exit_code == 0
    assert "the profile is not cached: " in done.stderr
    assert len(Results.load(tmp_path / "out.json").rows) == 2


def test_step_times_beside_other_processes_are_not_cached(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies would predict with them in every later benchmark."""
    monkeypatch.setattr(CpuWatch, "other_cores", lambda self: 9.0)
    done = invoke(*arguments, *ONE, "--rounds", "1", "--policy", "adaptive", "--json", "out.json")
    assert done.exit_code == 0
    assert "the step times are not cached: other processes used 9.0 cores" in done.stderr
    assert not list((tmp_path / ".cache").rglob("profile-*.json"))


def test_the_controllers_own_cost() -> None:
    done = invoke("controller", "--policy", "static-3", "--policy", "adaptive", "--requests", "32", "--steps", "20")

    assert done.exit_code == 0
    assert "adaptive" in done.stdout
