"""Makes hostile cases: a command line that would work, changed in one or two ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.fuzz.case import Case, Content
from tests.fuzz.contents import MUTATORS, mutated_json, mutated_safetensors, without_tensors
from tests.fuzz.misleading import MISLEADING
from tests.fuzz.parameters import INPUTS, Parameter, parameters
from tests.fuzz.places import hostile_path
from tests.fuzz.sound import ABSURD, SOUND
from tests.fuzz.values import SEARCHES, SETTINGS, hostile_value

ENVIRONMENTS = (
    {"HOME": "{folder}/places/readonly"}, {"HOME": "/nonexistent"}, {"HOME": ""}, {"COLUMNS": "1"}, {"COLUMNS": "0"},
    {"COLUMNS": "-5"}, {"COLUMNS": "x"}, {"COLUMNS": "9" * 20}, {"LINES": "0"}, {"TERM": "dumb"}, {"TERM": ""},
    {"TERM": "[/red]"}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"}, {"LANG": "C", "LC_ALL": "C"},
    {"PYTHONUTF8": "0", "LC_ALL": "POSIX"}, {"TMPDIR": "{folder}/places/readonly"}, {"TMPDIR": "/nonexistent"},
    {"OMP_NUM_THREADS": "0"}, {"OMP_NUM_THREADS": "x"}, {"OMP_NUM_THREADS": "-1"}, {"TZ": "[/red]"},
    {"NUMBA_CACHE_DIR": "{folder}/places/readonly"}, {"NUMBA_NUM_THREADS": "0"},
    {"MPLCONFIGDIR": "{folder}/places/readonly"}, {"MPLBACKEND": "nonsense"}, {"HF_HOME": "{folder}/places/readonly"},
    {"RAY_ADDRESS": "127.0.0.1:1"}, {"http_proxy": "http://127.0.0.1:1"}, {"http_proxy": "::::"},
    {"PYTHONWARNINGS": "error"}, {"XDG_CACHE_HOME": "{folder}/places/null"},
    {"XDG_STATE_HOME": "{folder}/places/readonly"}, {"PAGER": "[bold"},
)  # fmt: skip
STREAMS = (
    {"stdout": "closed"}, {"stdout": "full"}, {"stdout": "pipe"}, {"stderr": "closed"}, {"stderr": "full"},
    {"stderr": "pipe"}, {"stdin": "closed"}, {"stdout": "closed", "stderr": "closed"},
    {"stdout": "full", "stderr": "full"}, {"stdin": "closed", "stdout": "closed", "stderr": "closed"},
)  # fmt: skip
URLS = (
    "", " ", "http://", "https://", "ftp://127.0.0.1/", "file:///etc/passwd", "http:///metrics", "http://127.0.0.1:1",
    "http://127.0.0.1:99999", "http://127.0.0.1:-1", "http://127.0.0.1:x", "http://127.0.0.1:1.5", "http://[::1",
    "http://[x]/", "http://user:hunter2secret@127.0.0.1:1", "http://user:hunter2secret@127.0.0.1:x/",
    "http://hunter2secret@127.0.0.1:1/metrics", "http://127.0.0.1:1/?token=hunter2secret",
    "user:hunter2secret@127.0.0.1:1", "http://a b/", "http://127.0.0.1:1/a b", "http://é/", "http://\udcff/",
    "http://a\nb/", "http://a\r\nX: y/", "http://\x00/", "http://" + "a" * 300 + "/", "http://" + "a." * 5000,
    "127.0.0.1:8000", "HTTP://127.0.0.1:1", "[/red]", "http://[/red]/", "{server}", "{server}/metrics",
    "{server}/metrics/", "{server}/file?x=1", "{server}/file#x", "{server}/ /x", "{server}/é",
    "{server}/" + "a" * 100_000, "http://0.0.0.0:1/", "-", "http://user:hunter2secret@{host}/status/401",
    "http://user:hunter2secret@{host}/file", "{server}/redirect/secret",
)  # fmt: skip
BEHAVIOURS = (
    "status/401", "status/404", "status/500", "status/503", "status/204", "status/301", "status/100", "status/999",
    "status/0", "status/x", "garbage", "empty", "close", "drip", "drip-header", "drip-body", "endless", "endless-line",
    "endless-headers", "many-headers", "long-header", "truncated", "chunked-garbage", "chunked-truncated",
    "chunked-huge", "chunked-negative", "length-negative", "length-huge", "length-x", "redirect/loop", "redirect/file",
    "redirect/ftp", "redirect/garbage", "gzip", "latin", "nul", "html", "json", "other", "idle", "http09",
    "two-answers", "markup", "restarted",
)  # fmt: skip
"""First parts of the hostile server's paths; `page/N` is a mutated page of metrics."""

SELECTION = {"--workload", "--drafter", "--concurrency", "--rounds"}
"""Options of `bench` that make it short."""


class Hostile:
    """Makes the cases of a seed; case `n` is the same whatever else is made.

    Args:
        stock: the folder of `make_stock`.
        seed: of all cases.
    """

    def __init__(self, stock: Path, seed: int) -> None:
        self._stock = stock
        self._seed = seed
        self._parameters = parameters()
        self._makers: list[tuple[Callable[[random.Random], Case], int]] = [
            (self._value, 20), (self._input_path, 12), (self._output_path, 14), (self._contents, 24),
            (self._checkpoint, 10), (self._url, 8), (self._set, 8), (self._absurd, 6), (self._environment, 8),
            (self._arguments, 6), (lambda rng: rng.choice(MISLEADING), 5),
        ]  # fmt: skip

    def case(self, number: int) -> Case:
        """Case `number` of the seed."""
        rng = random.Random(f"{self._seed} {number}")
        makers, weights = zip(*self._makers, strict=True)
        case = rng.choices(makers, weights)[0](rng)
        if rng.random() < 0.06:
            case = replace(case, **rng.choice(STREAMS))
        if rng.random() < 0.04:
            case = replace(case, environment=self._some_environment(rng))
        # A new interpreter measures as long as it is meant to.
        measures = case.arguments[:1] in (("bench",), ("profile",))
        return replace(case, real=(case.real or rng.random() < 0.01) and not measures)

    def _value(self, rng: random.Random) -> Case:
        one = rng.choice([each for each in self._parameters if each.kind is not bool])
        while too_long(one, value := hostile_value(one.kind, rng)):
            pass
        base = self._base(one.command, rng)
        return Case("option value", with_value(base, one, value, rng))

    def _input_path(self, rng: random.Random) -> Case:
        one = rng.choice([each for each in self._parameters if each.reads])
        path = hostile_path(rng)
        return Case("input path", with_value(self._base(one.command, rng), one, path, rng))

    def _output_path(self, rng: random.Random) -> Case:
        one = rng.choice([each for each in self._parameters if each.writes])
        base = self._base(one.command, rng)
        path = hostile_path(rng) if rng.random() < 0.8 else rng.choice(self._named(base) or ["policy.yaml"])
        arguments = with_value(base, one, path, rng)
        if "tune" in base and rng.random() < 0.5:
            arguments += ("--overwrite",)
        others = [each for each in self._parameters if each.writes and each.command == one.command and each != one]
        if others and rng.random() < 0.2:  # two outputs, often equal
            other = rng.choice(others)
            arguments = with_value(arguments, other, path if rng.random() < 0.6 else hostile_path(rng), rng)
        return Case("output path", arguments)

    def _contents(self, rng: random.Random) -> Case:
        one = rng.choice(
            [each for each in self._parameters if each.reads and each.reads not in ("checkpoint", "models")]
        )
        base = self._base(one.command, rng)
        if one.reads == "workloads":
            name = rng.choice(["workloads/code.jsonl", "workloads/prose.jsonl"])
            arguments = base
        else:
            name = rng.choice(INPUTS[one.reads])
            arguments = with_value(base, one, name, rng)
            if name in ("recorded.yaml", "profiled.yaml") and rng.random() < 0.6:
                name = rng.choice(["arrivals.csv", "accepted.jsonl"]) if name == "recorded.yaml" else "profile.json"
        if rng.random() < 0.1 and Path(name).suffix in (".json", ".jsonl", ".csv"):  # a valid file of another format
            other = rng.choice([each for each in INPUTS.values() if "/" not in each[0] and "." in each[0]])[0]
            return Case("contents", arguments, {name: (self._stock / other).read_bytes()})
        content = MUTATORS[Path(name).suffix]((self._stock / name).read_bytes(), rng)
        return Case("contents", arguments, {name: content})

    def _checkpoint(self, rng: random.Random) -> Case:
        """Files of a checkpoint changed, so that most of them cannot be loaded."""
        command = rng.choice(["generate", "generate", "generate", "profile", "bench"])
        arguments = rng.choice(SOUND[command])
        folder = rng.choice(["models/target", "models/drafter"])
        weights = f"{folder}/model.safetensors"
        content = (self._stock / weights).read_bytes()
        must_fail, files = "", dict[str, Content]()
        match rng.randrange(9):
            case 0:
                config = (self._stock / folder / "config.json").read_bytes()
                layers = 1 if folder == "models/drafter" else 2
                files[f"{folder}/config.json"] = config.replace(
                    f'"num_hidden_layers": {layers}'.encode(), f'"num_hidden_layers": {rng.choice([3, 4, 20])}'.encode()
                )
                must_fail = "the configuration has more layers than the weights"
            case 1:
                names = [
                    f"model.layers.0.{part}.weight" for part in ("mlp.up_proj", "self_attn.q_proj", "input_layernorm")
                ]
                files[weights] = without_tensors(content, names[: rng.randint(1, 3)])
                must_fail = "the weights lack tensors"
            case 2:
                length = int.from_bytes(content[:8], "little")
                files[weights] = content[: 8 + length] + b"\x00\x00\xc0\x7f" * ((len(content) - 8 - length) // 4)
                must_fail = "the weights are NaN"
            case 3 | 4:
                files[f"{folder}/config.json"] = mutated_json((self._stock / folder / "config.json").read_bytes(), rng)
            case 5:
                files[weights] = mutated_safetensors(content, rng)
            case 6:
                name = rng.choice(["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
                files[f"{folder}/{name}"] = mutated_json((self._stock / folder / name).read_bytes(), rng)
            case 7:
                name = rng.choice(["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
                place = rng.choice(
                    ["fifo", "zero", "loop", "dangling", "folder", "unreadable", "null", "socket", "random"]
                )
                files[f"{folder}/{name}"] = rng.choice([f"../../places/{place}", None])
            case _:
                kind = rng.choice(["bert", "gpt2", "t5", "vit", "nonsense", "", "whisper", "mamba", "llava"])
                config = (self._stock / folder / "config.json").read_bytes()
                files[f"{folder}/config.json"] = config.replace(
                    b'"model_type": "llama"', f'"model_type": "{kind}"'.encode()
                )
        made = Case("checkpoint", arguments, files, must_fail=must_fail)
        # Without --drafter's checkpoint in use, a broken one need not be noticed.
        uses_drafter = command != "generate" or "off" not in arguments
        return made if uses_drafter or folder == "models/target" else replace(made, must_fail="")

    def _url(self, rng: random.Random) -> Case:
        kind = rng.randrange(3)
        if kind == 0:
            url = rng.choice(URLS)
        else:
            url = "{server}/" + (rng.choice(BEHAVIOURS) if kind == 1 else f"page/{rng.randrange(10**6)}")
        arguments = ("doctor", "--url", url)
        if rng.random() < 0.3:
            arguments += rng.choice([("--json",), ("--seconds", "0.1"), ("--seconds", "0.1", "--json")])
        failing = url.removeprefix("{server}/").partition("/")[0] in ("status", "garbage", "empty", "close", "html")
        redirected = url.endswith("/301")  # to the root, which has metrics
        return Case("server", arguments, must_fail="no metrics came" if failing and not redirected else "")

    def _set(self, rng: random.Random) -> Case:
        command = rng.choice(["simulate", "simulate", "simulate", "capacity", "tune", "calibrate"])
        arguments = rng.choice(SOUND[command])
        if command == "tune" and rng.random() < 0.5:
            arguments += ("--search", rng.choice(SEARCHES))
        else:
            for setting in rng.sample(SETTINGS, rng.choice([1, 1, 2])):
                arguments += ("--set", setting.replace("\x00", ""))
        return Case("setting", arguments)

    def _absurd(self, rng: random.Random) -> Case:
        return Case("absurd size", rng.choice(ABSURD))

    def _environment(self, rng: random.Random) -> Case:
        arguments = rng.choice(SOUND[rng.choice([*SOUND])])
        made = Case("environment", arguments, environment=self._some_environment(rng))
        if rng.random() < 0.5:
            made = replace(made, environment={}, **rng.choice(STREAMS))
        if arguments[0] == "generate" and rng.random() < 0.3:
            stdin = rng.choice(
                [
                    "places/zero",
                    "places/random",
                    "profile.json",
                    "closed",
                    "places/file",
                    "models/target/model.safetensors",
                ]
            )
            made = replace(made, arguments=("generate", "-", *arguments[2:]), stdin=stdin)
        return replace(made, real=rng.random() < 0.15)

    def _arguments(self, rng: random.Random) -> Case:
        """Words missing, repeated, unknown or out of order."""
        words = list(rng.choice(SOUND[rng.choice([*SOUND])]))
        match rng.randrange(7):
            case 0:
                del words[rng.randrange(len(words))]
            case 1:
                words.insert(rng.randrange(len(words) + 1), hostile_value(str, rng))
            case 2:
                words = words[: rng.randrange(len(words))]
            case 3:
                words += [
                    rng.choice(
                        ["--nonsense", "--json", "--", "-h", "--version", "--help", "--policy", "--json=", "--seed=1=2"]
                    )
                ]
            case 4:
                rng.shuffle(words)
            case 5:
                words = [
                    rng.choice(
                        ["simulat", "", "[/red]", "\udcff", "-", "--", "help", "generate\n", "Bench", "policy check"]
                    )
                ]
            case _:
                words += words[1:]
        if words[:1] == ["bench"] and not {*words} >= SELECTION:  # the whole matrix takes hours
            words += ["--models", "places/missing"]
        return Case("arguments", tuple(words))

    def _base(self, command: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
        return rng.choice(SOUND[" ".join(command)])

    def _named(self, arguments: Sequence[str]) -> list[str]:
        """The files of the stock that a command line reads."""
        return [word for word in arguments if (self._stock / word).is_file()]

    def _some_environment(self, rng: random.Random) -> dict[str, str]:
        return dict(rng.choice(ENVIRONMENTS))


def with_value(arguments: tuple[str, ...], one: Parameter, value: str, rng: random.Random) -> tuple[str, ...]:
    """The command line with another value of an option or argument, in place of the one it has, if any."""
    words = list(arguments)
    start = len(one.command)
    if not one.is_option:
        ends = [place for place in range(start, len(words)) if words[place].startswith("--")]
        end = min(ends, default=len(words))
        return (*words[:start], *(["--"] if value.startswith("-") and not words[end:] else []), value, *words[end:])
    while one.name in words and rng.random() < 0.95:
        place = words.index(one.name)
        del words[place : place + 2]
    # After `=` it is a value, even if it begins with a dash.
    return (*words, f"{one.name}={value}") if rng.random() < 0.5 else (*words, one.name, value)


def too_long(one: Parameter, value: str) -> bool:
    """Whether a command would rightly take longer than a case may."""
    limits: dict[tuple[str, ...], tuple[float, float]] = {
        ("doctor", "--seconds"): (0.2, 3600.0),
        ("bench", "--request-rate"): (0.01, 20.0),
    }
    try:
        number = float(value)
    except ValueError:
        return False
    least, most = limits.get((*one.command, one.name), (0.0, -1.0))
    return least <= number <= most
