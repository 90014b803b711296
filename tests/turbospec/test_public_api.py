"""The public API: what each package exports. A name that is not here may change without notice."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import make_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

EXPORTS = {
    "turbospec": [
        "DraftGate",
        "DraftSelection",
        "DraftTrim",
        "LookupView",
        "Phase",
        "Policy",
        "Source",
        "StepOutcome",
        "StepPlan",
        "StepView",
        "UserError",
    ],
    "turbospec.policy": [
        "DraftLengths",
        "PolicyConfig",
        "find_policy",
        "json_schema",
        "load_controller",
        "load_policy",
        "read_policy",
        "shipped_policies",
    ],
    "turbospec.models": [
        "LatencyModel",
        "LatencySample",
        "MAX_CLASSES",
        "OnlineRegression",
        "Profile",
        "Regression",
        "VERIFY_KNOTS",
        "column",
        "draft_features",
        "host_features",
        "learn_online",
        "relative_weights",
        "step_features",
        "verify_features",
    ],
    "turbospec.planning": ["DraftPlan", "StepCosts", "TpotSlo", "plan_draft_lengths"],
    "turbospec.runtime": [
        "PACKAGE",
        "PlansInFlight",
        "RequestSlots",
        "RunningPlan",
        "compiled",
        "drop_stale_kernels",
        "plan_again",
        "unnamed",
    ],
    "turbospec.files": [
        "Settings",
        "YamlSource",
        "check_folder",
        "check_outputs",
        "find_file",
        "is_name",
        "nearest",
        "open_file",
        "parse_json",
        "read_bytes",
        "read_json",
        "read_lines",
        "read_text",
        "save",
        "shipped_files",
        "write_whole",
        "yaml_text",
    ],
    "turbospec.observability": [
        "DecisionTrace",
        "HostSeconds",
        "StepMetrics",
        "Summary",
        "TraceStep",
        "read_trace",
    ],
    "turbospec.doctor": [
        "BenchResult",
        "Diagnosis",
        "DraftCounts",
        "Finding",
        "StepCost",
        "compare",
        "diagnose",
        "read_bench",
        "read_metrics",
        "read_server",
    ],
    "turbospec.hosts": [],
    "turbospec_engine": [
        "Completion",
        "Engine",
        "EngineConfig",
        "Models",
        "NGRAM",
        "RequestOutput",
        "SUFFIX",
        "SamplingParams",
        "measure",
    ],
    "turbospec_sim": [
        "BEST_STATIC",
        "Calibration",
        "Capacity",
        "ORACLE",
        "Run",
        "Scenario",
        "Sweep",
        "calibrate",
        "capacities",
        "find_scenario",
        "read_scenario",
        "run_all",
        "shipped_scenarios",
        "simulate",
        "with_regret",
    ],
    "turbospec_bench": [
        "Configuration",
        "Contender",
        "DisturbanceCheck",
        "Finding",
        "Ratio",
        "Results",
        "Row",
        "Run",
        "Variant",
        "Verdict",
        "by_configuration",
        "findings",
        "geometric_mean",
        "judge",
        "paired_ratio",
        "play_rounds",
        "select_configurations",
        "variants_of",
    ],
}


def docstring(package: ModuleType, name: str) -> str:
    """What the author wrote of an exported name; of a constant, the string below its assignment."""
    value: Any = getattr(package, name)
    if isinstance(value, ModuleType) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    if inspect.isclass(value):
        written = vars(value).get("__doc__") or ""
        # A dataclass without a docstring is given its signature.
        return "" if written.startswith(f"{value.__name__}(") else written
    return constant_docstring(package, name)


def constant_docstring(module: ModuleType, name: str) -> str:
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):  # also below TYPE_CHECKING, where names are listed that are imported when they are used
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return constant_docstring(import_module(str(node.module)), name)
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = following.value if isinstance(following, ast.Expr) else None
            return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
    raise AssertionError(f"{module.__name__} does not define {name}")


@pytest.mark.parametrize("package", EXPORTS)
def test_exports_are_these_and_no_others(package: str) -> None:
    exported = getattr(import_module(package), "__all__", None)
    assert exported is not None, f"{package} has no __all__"
    assert len(exported) == len(set(exported))
    assert sorted(exported) == sorted(EXPORTS[package])


@pytest.mark.parametrize("package", EXPORTS)
def test_every_export_is_there_and_has_a_docstring(package: str) -> None:
    module = import_module(package)
    assert module.__doc__, f"{package} has no docstring"
    exported = getattr(module, "__all__", None)
    assert exported is not None, f"{package} has no __all__"
    undescribed = [name for name in exported if not re.search(r"\w", docstring(module, name))]
    assert undescribed == []


def test_docstrings_that_no_author_wrote_do_not_count() -> None:
    def bare() -> None: ...

    made = ModuleType("made")
    vars(made).update(bare=bare, Bare=make_dataclass("Bare", ["field"]))
    assert docstring(made, "Bare") == docstring(made, "bare") == ""
    config = import_module("turbospec_engine.config")
    assert constant_docstring(config, "NGRAM").startswith("The `drafter`")
    assert constant_docstring(config, "DTYPES") == ""
