"""The command line as a user runs it, on the repository's pair of models."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.turbospec.command import assert_one_line
from turbospec import cli

REPOSITORY = Path(__file__).parents[2]
TURBOSPEC = Path(sys.executable).with_name("turbospec")
PROMPT = "def add(a, b):\n"

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "models/target/model.safetensors").is_file(), reason="models/ holds no checkpoints"
)


def turbospec(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TURBOSPEC, *map(str, arguments)],
        cwd=REPOSITORY,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The line that a bad input gets. Runs in this process, so that torch is imported once for all of them."""

    def run(*arguments: object, stdin: str | bytes = "") -> str:
        monkeypatch.chdir(REPOSITORY)
        monkeypatch.setattr(sys, "argv", ["turbospec", *map(str, arguments)])
        content = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        assert end.value.code == 2
        assert_refused(shown.out, shown.err)
        return shown.err

    return run


def assert_refused(out: str, err: str) -> None:
    assert out == ""
    assert_one_line(err)


@pytest.fixture
def other_tokenizer(tmp_path: Path) -> Path:
    """The drafter, with the ids of two tokens exchanged."""
    folder = tmp_path / "drafter"
    shutil.copytree(REPOSITORY / "models/drafter", folder)
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(document), encoding="utf-8")
    return folder


def test_generate_streams_text_and_says_what_speculation_did() -> None:
    done = turbospec("generate", PROMPT, "--max-tokens", 24)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    summary = done.stderr.splitlines()[-1]
    for figure in ("24 tokens", "TTFT", "TPOT", "mean K", "accepted length", "policy adaptive"):
        assert figure in summary


def test_generate_reads_stdin_and_the_policy_does_not_change_the_text(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    common = ("--max-tokens", 24, "--dtype", "float32", "--json")
    off = turbospec("generate", "-", *common, "--policy", "off", stdin=PROMPT)
    static = turbospec("generate", "-", *common, "--policy", "static-3", "--trace", trace, stdin=PROMPT)
    plain, drafted = json.loads(off.stdout), json.loads(static.stdout)
    assert plain["text"] == drafted["text"]
    assert (plain["mean_draft_length"], plain["accepted_length"]) == (0, 1)
    assert drafted["output_tokens"] == 24
    assert drafted["mean_draft_length"] > 1
    assert len(drafted["acceptance"]) == 3
    assert 0 < drafted["tpot_ms"] < drafted["e2el_ms"]

    summary = turbospec("trace", trace, "--json")
    figures = json.loads(summary.stdout)
    assert figures["emitted_tokens"] == 24
    assert figures["acceptance"] == drafted["acceptance"]


@pytest.fixture(scope="module")
def text() -> str:
    """What the target generates for `PROMPT` by itself."""
    done = turbospec("generate", PROMPT, "--max-tokens", 24, "--dtype", "float32", "--json", "--policy", "off")
    return json.loads(done.stdout)["text"]


@pytest.mark.parametrize("head", ["models/eagle3", "models/peagle", "models/dflash"])
def test_a_head_drafts_and_does_not_change_the_text(head: str, text: str) -> None:
    common = ("--max-tokens", 24, "--dtype", "float32", "--json")
    drafted = json.loads(turbospec("generate", PROMPT, *common, "--drafter", head, "--policy", "static-3").stdout)
    assert drafted["text"] == text
    assert drafted["accepted_length"] > 1.5


def test_a_look_up_beside_the_drafter_does_not_change_the_text(tmp_path: Path) -> None:
    common = ("--max-tokens", 24, "--dtype", "float32", "--json")
    prompt = "items = [first, second, third]\nother = [first, second, third]\nitems = [first,"
    plain = json.loads(turbospec("generate", prompt, *common, "--policy", "off").stdout)
    drafted = turbospec(
        "generate", prompt, *common, "--policy", "lookup-first", "--lookup", "ngram", "--trace", tmp_path / "t"
    )
    document = json.loads(drafted.stdout)
    assert document["text"] == plain["text"]
    assert document["sources"]["lookup"]["accepted_tokens"] > 2
    summary = json.loads(turbospec("trace", tmp_path / "t", "--json").stdout)
    assert summary["sources"] == document["sources"]


def test_a_prompt_lookup_drafter_needs_no_checkpoint() -> None:
    done = turbospec("generate", "a b c d a b c d a b c", "--drafter", "ngram", "--max-tokens", 8, "--json")
    assert json.loads(done.stdout)["output_tokens"] == 8


def test_bad_input_ends_with_code_2_and_without_a_traceback() -> None:
    done = turbospec("generate", PROMPT, "--target", "models/none")
    assert done.returncode == 2
    assert_refused(done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--target", "models/none"], ("models/none", "target", "config.json"), id="no target"),
        pytest.param(["--drafter", "models/none"], ("models/none", "drafter", "config.json"), id="no drafter"),
        pytest.param(["--policy", "adaptve"], ("adaptve", "did you mean `adaptive`"), id="no such policy"),
        pytest.param(["--policy", "none.yaml"], ("none.yaml",), id="no such policy file"),
        pytest.param(["--max-draft", "100000"], ("max_draft", "at most 128"), id="absurd K"),
        pytest.param(["--policy", "static-8", "--max-draft", "4"], ("static-8", "8", "4"), id="K beyond the maximum"),
        pytest.param(["--temperature", "-1"], ("temperature",), id="negative temperature"),
        pytest.param(["--dtype", "int3"], ("int3", "bfloat16"), id="no such type"),
        pytest.param(["--profile", "none.json"], ("none.json", "turbospec profile"), id="no profile"),
        pytest.param(["--trace", "."], ("this is a folder",), id="trace onto a folder"),
        pytest.param(["--device", "abacus"], ("abacus", "cpu"), id="no such device"),
        pytest.param(["--target", "models/eagle3"], ("models/eagle3", "EAGLE"), id="an EAGLE head"),
        pytest.param(["--target", "models/dflash"], ("models/dflash", "a DFlash head"), id="a DFlash head"),
        pytest.param(
            ["--target", "models/drafter", "--drafter", "models/eagle3"],
            ("models/eagle3", "width 256, not 192"),
            id="an EAGLE head of another target",
        ),
        pytest.param(["--lookup", "tree"], ("'tree'", "'ngram' or 'suffix'"), id="no such look-up"),
        pytest.param(["--drafter", "ngram", "--lookup", "ngram"], ("second source",), id="two look-ups"),
        pytest.param(["--seed", "-1"], ("seed",), id="negative seed"),
        pytest.param(["--seed", "1" + "0" * 20], ("seed",), id="huge seed"),
        pytest.param(["--top-k", "-1"], ("top_k",), id="negative top-k"),
        pytest.param(["--top-p", "nan"], ("top_p",), id="no number"),
        pytest.param(["--stop", ""], ("stop",), id="empty stop string"),
        pytest.param(["--max-tokens", "0"], ("max_tokens",), id="no tokens"),
        pytest.param(["--trace", "models/target/config.json/t"], ("cannot be",), id="trace below a file"),
    ],
)
def test_a_bad_option_is_refused_in_a_line(refused: Refused, arguments: list[str], words: tuple[str, ...]) -> None:
    line = refused("generate", PROMPT, *arguments)
    for word in words:
        assert word in line


def test_wrong_models_are_refused_before_the_policy_compiles_its_kernels(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_for_a_minute(*_: object, **__: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr("turbospec.policy.load_controller", compile_for_a_minute)
    for option in ("--target", "--drafter"):
        assert "models/none" in refused("generate", PROMPT, option, "models/none")


def test_an_empty_prompt_is_refused(refused: Refused) -> None:
    assert "the prompt is empty" in refused("generate", "-", stdin=" \n")


@pytest.mark.parametrize(
    ("stdin", "words"), [(b"\xff\xfe", "not UTF-8"), (b"a" * (16 * 2**20 + 1), "larger than 16 MiB")]
)
def test_what_is_no_prompt_on_stdin_is_refused(refused: Refused, stdin: bytes, words: str) -> None:
    assert words in refused("generate", "-", stdin=stdin)


def test_a_trace_is_kept_where_the_models_cannot_be_loaded(refused: Refused, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("before\n")
    refused("generate", PROMPT, "--trace", trace, "--target", "models/none")
    refused("generate", "word " * 5_000, "--trace", trace)
    assert trace.read_text() == "before\n"
    assert [*tmp_path.iterdir()] == [trace]


def test_a_profile_is_measured_only_for_a_place_that_takes_it(refused: Refused, tmp_path: Path) -> None:
    assert "this is a folder" in refused("profile", "--output", tmp_path)
    assert "given for two outputs" in refused("profile", "--output", tmp_path / "a.svg", "--plot", tmp_path / "a.svg")
    assert "end the name in .svg" in refused("profile", "--plot", tmp_path / "a.docx")


def test_a_prompt_longer_than_the_cache_is_refused(refused: Refused) -> None:
    assert "hold 1024 of prompt and output" in refused("generate", "-", stdin="word " * 5_000)


def test_a_drafter_of_another_vocabulary_is_refused(refused: Refused, other_tokenizer: Path) -> None:
    line = refused("generate", PROMPT, "--drafter", other_tokenizer)
    assert "vocabulary differs" in line
    assert str(other_tokenizer) in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("policy: [static\n", (":2",), id="broken YAML"),
        pytest.param("version: 1\npolicy: static\ndraft_length: many\n", (":3", "draft_length"), id="wrong type"),
        pytest.param(
            "version: 1\npolicy: static\ndraft_length: 3\ncolour: red\n", (":4", "colour"), id="unknown field"
        ),
    ],
)
def test_a_broken_policy_file_is_named_with_its_line(
    refused: Refused, tmp_path: Path, content: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    line = refused("generate", PROMPT, "--policy", path)
    for word in ("mine.yaml", *words):
        assert word in line


def test_ctrl_c_ends_in_a_line() -> None:
    command = [TURBOSPEC, "generate", PROMPT, "--max-tokens", "200", "--policy", "off"]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, remarks = process.communicate(timeout=60)
    assert process.returncode == 130
    # Where another environment has compiled the kernels, the notice that they are compiled comes first.
    assert [line for line in remarks.splitlines() if not line.startswith("compiling kernels")] == ["interrupted"]
