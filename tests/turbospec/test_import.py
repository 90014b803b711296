"""Who may import whom, and what may not be imported at all."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOTS = {
    "turbospec": REPOSITORY,
    "turbospec_engine": REPOSITORY / "engine",
    "turbospec_sim": REPOSITORY / "simulations",
    "turbospec_bench": REPOSITORY / "benchmarks",
}
HEAVY = ("torch", "transformers", "vllm", "turbospec_engine", "turbospec_sim", "matplotlib")
LAYERS = (
    {"errors", "interface", "interrupts"},
    {"runtime", "files"},
    {"models"},
    {"planning", "exploration"},
    {"controller", "policy"},
    {"observability", "doctor", "hosts"},
    {"cli"},
)
"""Rooms of `turbospec` from the lowest; imports go downwards or stay in a layer."""
MAY_IMPORT = {
    "turbospec": set(),
    "turbospec_engine": {"turbospec"},
    "turbospec_sim": {"turbospec"},
    "turbospec_bench": {"turbospec", "turbospec_engine", "turbospec_sim"},
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the four packages, with its file."""
    found: dict[str, Path] = {}
    for package, root in ROOTS.items():
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(tree: ast.AST, *, at_import: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements that run, of the whole module or only of those that run when it is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif not (at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from statements(node, at_import=at_import)


@cache
def imports(module: str, *, at_import: bool = False) -> frozenset[str]:
    """What a module imports: our modules by their whole names, others by their first."""
    found: set[str] = set()
    for node in statements(ast.parse(modules()[module].read_text()), at_import=at_import):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.module is not None
            assert node.level == 0, f"{module}: relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module for name in inner]
        found.update(name if name in modules() else name.partition(".")[0] for name in names)
    return frozenset(found - {module})


def layer(module: str) -> int:
    room = module.partition(".")[2].partition(".")[0]
    return next((place for place, rooms in enumerate(LAYERS) if room in rooms), 0)


@pytest.mark.parametrize("module", ["turbospec", "turbospec.policy", "turbospec.controller", "turbospec.cli.policy"])
def test_imports_no_engine(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_contract_needs_numpy_alone() -> None:
    unwanted = ("numba", "scipy", "pydantic", "yaml", "ruamel.yaml")
    code = f"import sys, turbospec; print([name for name in {unwanted!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_room_has_a_layer() -> None:
    rooms = {module.split(".")[1] for module in modules() if module.startswith("turbospec.")}
    assert rooms == set().union(*LAYERS)


@pytest.mark.parametrize("module", sorted(name for name in modules() if not name.startswith("turbospec.cli")))
def test_imports_go_downwards(module: str) -> None:
    package = module.partition(".")[0]
    for other in imports(module) & modules().keys():
        outside = other.partition(".")[0]
        assert outside == package or outside in MAY_IMPORT[package], f"{module} imports {other}"
        if outside == package == "turbospec":
            assert layer(other) <= layer(module), f"{module} imports {other}"
        assert not other.startswith("turbospec.cli"), f"{module} imports {other}"


def test_no_cycles() -> None:
    waiting = {module: set(imports(module) & modules().keys()) for module in modules()}
    # A package that only re-exports is passed through by `from package import name`.
    while ready := [module for module, others in waiting.items() if not others]:
        for module in ready:
            del waiting[module]
        for others in waiting.values():
            others.difference_update(ready)
    assert not waiting, "modules that are in, or import, a cycle"


def reachable(module: str) -> set[str]:
    """Everything that importing a module imports."""
    found: set[str] = set()
    todo = [module]
    while todo:
        for other in imports(todo.pop(), at_import=True) - found:
            found.add(other)
            if other in modules():
                # Importing a module runs the packages around it first.
                parts = other.split(".")
                todo += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return found


@pytest.mark.parametrize("module", sorted(name for name in modules() if name.startswith("turbospec.hosts.vllm.worker")))
def test_vllm_workers_import_no_numba(module: str) -> None:
    # vLLM's search for CPU kernels inspects every loaded module and fails on numba's.
    assert not reachable(module) & {"numba", "scipy", "pydantic"}


@pytest.mark.parametrize("module", sorted(name for name in modules() if name.startswith("turbospec_bench.vllm")))
def test_benchmarking_vllm_needs_no_embedded_engine(module: str) -> None:
    assert not [name for name in reachable(module) if name.startswith("turbospec_engine") or name == "torch"]


@pytest.mark.parametrize(
    "module", sorted(name for name in modules() if name.startswith(("turbospec.", "turbospec_sim", "turbospec_engine")))
)
def test_only_the_benchmark_package_draws(module: str) -> None:
    assert not {"matplotlib", "jinja2"} & imports(module)
