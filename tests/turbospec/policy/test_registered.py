"""Policies of other packages: CONTRIBUTING's example, installed by pip, and registrations that are faulty."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.turbospec.factories import make_outcome, make_view
from tests.turbospec_sim.scenarios import document
from turbospec import UserError
from turbospec.cli.policy import app
from turbospec.policy import json_schema, load_controller, load_policy, read_policy
from turbospec.policy.static import StaticConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy_package"
NAMES = (f"other_{number}" for number in itertools.count())
CONFIG = """
from collections.abc import Callable
from typing import Literal
from turbospec.policy import PolicyConfig
from turbospec.policy.static import StaticPolicy

class OtherConfig(PolicyConfig):
    policy: Literal["{kind}"]

    def build(self, profile, seed):
        return StaticPolicy(2)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder that the example is installed in."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    return target


@pytest.fixture
def example(site, monkeypatch):
    """The example, installed for this process."""
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("my_package", None)


@pytest.fixture
def register(tmp_path, monkeypatch):
    """Installs a package of one module that registers a policy; returns the entry point's name and its module's."""

    def install(source=CONFIG, name="{module}.mine", value="{module}:OtherConfig", package=None):
        module = next(NAMES)
        name, value = name.format(module=module), value.format(module=module)
        folder = tmp_path / module
        information = folder / f"{module}-1.dist-info"
        information.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source.replace("{kind}", name))
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package or module}\nVersion: 1\n")
        (information / "entry_points.txt").write_text(f"[turbospec.policies]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(folder)
        return name, module

    return install


@pytest.fixture
def file(tmp_path):
    """Writes policy.yaml and returns its path."""

    def write(kind, settings=""):
        path = tmp_path / "policy.yaml"
        path.write_text(f"version: 1\npolicy: {kind}\n{settings}")
        return path

    return write


def error_of(path):
    with pytest.raises(UserError) as error:
        read_policy(path)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{path}:")


def turbospec(site, *arguments):
    """The command line in a process of its own, with the example installed."""
    paths = [str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return subprocess.run(
        [sys.executable, "-c", "from turbospec.cli import main; main()", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def test_commands_know_an_installed_package(site, tmp_path):
    good, bad = EXAMPLE / "my-policy.yaml", tmp_path / "bad.yaml"
    bad.write_text(good.read_text().replace("margin", "margim"))
    checked = turbospec(site, "policy", "check", good, bad)
    assert (checked.returncode, checked.stdout) == (2, f"{good}: valid (my_package.my_policy)\n")
    assert checked.stderr == f"{bad}:4: margim: unknown field; did you mean `margin`?\n"

    shown = turbospec(site, "policy", "show", good, "--json")
    assert {**json.loads(shown.stdout), "guard": None} == {
        "version": 1,
        "description": "",
        "guard": None,
        "policy": "my_package.my_policy",
        "margin": 1.5,
        "weight": 0.2,
    }

    schema = json.loads(turbospec(site, "policy", "schema").stdout)
    assert schema["discriminator"]["mapping"]["my_package.my_policy"] == "#/$defs/MyPolicyConfig"
    assert schema["$defs"]["MyPolicyConfig"]["properties"]["margin"]["minimum"] == 0


def test_simulations_run_in_processes_that_know_the_package(site, tmp_path):
    scenario, results = tmp_path / "scenario.yaml", tmp_path / "results.json"
    scenario.write_text(json.dumps(document(workload__requests=12)))
    policy = EXAMPLE / "my-policy.yaml"
    run = turbospec(site, "simulate", scenario, "--policy", policy, "--seeds", 2, "--jobs", 2, "--json", results)
    assert run.returncode == 0, run.stderr
    rows = json.loads(results.read_text())["rows"]
    assert [row["policy"] for row in rows] == [str(policy)] * 2
    assert all(row["mean_draft_length"] > 1.5 for row in rows)


@pytest.mark.usefixtures("example")
def test_the_example_follows_the_accepted_length():
    policy = load_controller(EXAMPLE / "my-policy.yaml")
    for step in range(60):
        view = make_view(2, step=step, draft_limits=np.array([0, 6]))
        drafted = policy.plan(view).draft_lengths
        policy.observe(make_outcome(view, drafted, drafted))
    assert drafted.tolist() == [0, 6]
    for step in range(60, 90):
        view = make_view(3, step=step)
        policy.observe(make_outcome(view, policy.plan(view).draft_lengths, 0))
    assert policy.plan(make_view(1, step=90)).draft_lengths.tolist() == [2]  # the margin of 1.5
    assert policy.stats.last_fault == ""


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("margin: -1\n", "3: margin: input should be greater than or equal to 0 (got -1)"),
        ('margin: "2"\n', '3: margin: input should be a valid number (got "2")'),
        ("wieght: 0.1\n", "3: wieght: unknown field; did you mean `weight`?"),
        ("guard: {cooldown: 1}\n", "3: guard.cooldown: unknown field; did you mean `cooldown_steps`?"),
    ],
)
def test_its_files_get_the_same_error_lines(file, settings, message):
    assert error_of(file("my_package.my_policy", settings)) == message


@pytest.mark.usefixtures("example")
def test_the_package_is_imported_only_for_its_own_files(file):
    read_policy(file("off"))
    error = error_of(file("my_package.my_polcy"))
    assert error == (
        "2: policy: unknown policy `my_package.my_polcy`, registered by no installed package; "
        "did you mean `my_package.my_policy`?"
    )
    assert "my_package.my_policy" in error_of(file("nothing_like_it"))  # among the known ones
    assert "my_package" not in sys.modules
    read_policy(file("my_package.my_policy"))
    assert "my_package" in sys.modules


@pytest.mark.usefixtures("example")
def test_a_controller_follows_a_file_to_the_package_and_back(file, caplog):
    path = file("static", "draft_length: 5\n")
    controller = load_controller(path, reload=True)
    assert controller.plan(make_view(1, now=0.0)).draft_lengths.tolist() == [5]
    file("my_package.my_policy", "margin: 2\n")
    assert controller.plan(make_view(1, step=1, now=2.0)).draft_lengths.tolist() == [3]
    file("my_package.mine")
    assert controller.plan(make_view(1, step=2, now=4.0)).draft_lengths.tolist() == [3]
    assert "unknown policy `my_package.mine`" in caplog.text


def test_a_reloaded_file_whose_policy_cannot_be_built_is_refused(register, file, caplog):
    name, _ = register(CONFIG.replace("return StaticPolicy(2)", 'raise OSError("no weights")'))
    controller = load_controller(file("static", "draft_length: 5\n"), reload=True)
    file(name, "description: longer, so that the change is seen\n")
    assert controller.plan(make_view(1)).draft_lengths.tolist() == [5]
    assert controller.stats.guard_trips == 0
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "policy not reloaded" in record.getMessage()
    assert "no weights" in caplog.text


UNSPEAKABLE = "class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError\n"
VALIDATED = CONFIG.replace(
    "    def build",
    "    def model_post_init(self, context):\n        raise {error}\n\n    def build",
)
BUILT = CONFIG.replace("return StaticPolicy(2)", "raise {error}")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ('OSError("no\\nweights")', "OSError: no weights"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("Odd()", "Odd"),
    ],
)
@pytest.mark.parametrize(
    ("source", "does"), [(VALIDATED, "fails on these settings"), (BUILT, "cannot be built")], ids=["validated", "built"]
)
def test_whatever_another_package_raises_is_one_line_that_names_it(register, file, source, does, error, words):
    name, module = register(UNSPEAKABLE + source.replace("{error}", error))
    with pytest.raises(UserError) as refused:
        load_policy(file(name))
    line = " ".join(str(refused.value).split())
    assert line.endswith(f"policy `OtherConfig` of package `{module}` {does} ({words}); fix that package")


def test_a_fault_of_a_built_in_policy_is_ours(file, monkeypatch):
    def fail(self, profile, seed):
        raise ZeroDivisionError

    monkeypatch.setattr(StaticConfig, "build", fail)
    with pytest.raises(ZeroDivisionError):
        load_policy(file("static", "draft_length: 1\n"))


@pytest.mark.parametrize("content", ["[turbospec.policies]\nno equals sign\n", "[turbospec.policies]\n\xff = a:b\n"])
def test_a_broken_list_of_entry_points_hurts_no_built_in_policy(tmp_path, monkeypatch, file, content):
    information = tmp_path / "broken-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (information / "entry_points.txt").write_bytes(content.encode("latin-1"))
    monkeypatch.syspath_prepend(tmp_path)
    assert read_policy(file("off")).model_dump()["policy"] == "off"
    with pytest.raises(UserError, match="entry points of an installed package cannot be read"):
        read_policy(file("no.such"))


def test_a_package_without_a_name_is_still_told(register, file, tmp_path):
    name, module = register("OtherConfig = 3")
    (tmp_path / module / f"{module}-1.dist-info" / "METADATA").unlink()
    assert f"entry point `{name}` of package `" in error_of(file(name))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"source": "raise SystemExit(4)"}, "does not load (SystemExit: 4); fix `{module}:OtherConfig`"),
        ({"source": UNSPEAKABLE + "raise Odd"}, "does not load (Odd); fix `{module}:OtherConfig`"),
        ({"value": "no module"}, "does not load ("),
        (
            {"value": "no_such_module:Config"},
            "does not load (ModuleNotFoundError: No module named 'no_such_module'); fix `no_such_module:Config`",
        ),
        ({"source": 'raise ValueError("two\\nlines")'}, "does not load (ValueError: two lines); fix `{module}:"),
        ({"value": "{module}:Other"}, "does not load (AttributeError: module '{module}' has no attribute 'Other')"),
        (
            {"source": "OtherConfig = 3"},
            "must be a subclass of turbospec.policy.PolicyConfig; `{module}:OtherConfig` is not",
        ),
        (
            {"source": "class OtherConfig: pass"},
            "must be a subclass of turbospec.policy.PolicyConfig; `{module}:OtherConfig` is not",
        ),
        ({"source": CONFIG.replace("def build", "def make")}, "cannot be built; add `build` to OtherConfig"),
        (
            {"source": CONFIG.replace("{kind}", "other.name")},
            'has another name in its class; declare `policy: Literal["{name}"]` in OtherConfig',
        ),
        (
            {"source": CONFIG.replace('Literal["{kind}"]', "str")},
            'has another name in its class; declare `policy: Literal["{name}"]` in OtherConfig',
        ),
        (
            {"source": CONFIG.replace('"{kind}"', '"{kind}", "other"')},
            'has another name in its class; declare `policy: Literal["{name}"]` in OtherConfig',
        ),
        (
            {"source": CONFIG.replace("    policy: ", "    policy: int\n    kind: ")},
            'has another name in its class; declare `policy: Literal["{name}"]` in OtherConfig',
        ),
        (
            {"source": CONFIG.replace("\n    def", "\n    what: Callable[[], int] | None = None\n    def")},
            "has a field that a YAML file cannot hold (",
        ),
        (
            {"name": "mine_{module}"},
            "must be called `<package>.{name}`; names without a dot are reserved for built-in policies",
        ),
    ],
)
def test_a_faulty_registration_is_one_line_and_hurts_no_other_policy(register, file, caplog, changes, fault):
    good, _ = register()
    name, module = register(**changes)
    expected = f"entry point `{name}` of package `{module}` {fault.replace('{name}', name).replace('{module}', module)}"
    assert error_of(file(name)).startswith(f"2: policy: {expected}")
    assert load_policy(file(good)).plan(make_view(1)).draft_lengths.tolist() == [2]
    assert read_policy(file("off")).model_dump()["policy"] == "off"
    kinds = json_schema()["discriminator"]["mapping"]
    assert {good, "off"} < kinds.keys()
    assert name not in kinds
    (left_out,) = [message for message in caplog.messages if module in message]
    assert left_out.startswith(f"policy left out: {expected}")


def test_a_built_in_policy_cannot_be_replaced(register, file):
    _, module = register(name="static", package="my-package")
    path = file("static", "draft_length: 7\n")
    assert load_policy(path).plan(make_view(1)).draft_lengths.tolist() == [7]
    assert json_schema()["discriminator"]["mapping"]["static"] == "#/$defs/StaticConfig"
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert (checked.exit_code, checked.stdout) == (0, f"{path}: valid (static)\n")
    assert checked.stderr == (
        "entry point `static` of package `my-package` must be called `<package>.static`; "
        "names without a dot are reserved for built-in policies\n"
    )
    assert module not in sys.modules


def test_a_name_that_two_packages_register(register, file):
    for package in ("one", "two"):
        register(name="shared.policy", package=package)
    assert error_of(file("shared.policy")) in {
        f"2: policy: entry point `shared.policy` of package `{first}` is registered by package `{second}` too; "
        "uninstall one of the two"
        for first, second in (("one", "two"), ("two", "one"))
    }


def test_errors_inside_an_optional_block(register, file):
    source = CONFIG.replace(
        "class OtherConfig",
        "from turbospec.files.settings import Settings\n\nclass Block(Settings):\n    size: int\n\nclass OtherConfig",
    ).replace("\n    def", "\n    block: Block | None = None\n    table: dict[str, int | str] = {}\n    def")
    name, _ = register(source)
    assert error_of(file(name, "block:\n  syze: 1\n")) == "4: block.syze: unknown field; did you mean `size`?"
    assert error_of(file(name, "block: {}\n")) == "3: block.size: missing; add `size: <integer>`"
    assert error_of(file(name, "table:\n  a: [1]\n")).startswith("4: table.a")
