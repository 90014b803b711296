"""The offline simulator: the real controller drives a simulated engine with continuous batching.

    from turbospec_sim import Run, find_scenario, read_scenario, simulate

    scenario = read_scenario(find_scenario("healthy-eagle3"))
    row = simulate(Run("healthy-eagle3", scenario, "adaptive", rate=1.0, seed=0))

Public are the names in `__all__` here and in the subpackages `replay`, `tuning` and `workload`; all other modules are
private. A public name is imported when it is used first.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbospec.runtime.kernels import PACKAGE, drop_stale_kernels

if TYPE_CHECKING:
    from turbospec_sim.calibration import Calibration, calibrate
    from turbospec_sim.capacity import Capacity, capacities
    from turbospec_sim.run import BEST_STATIC, ORACLE, Run, simulate
    from turbospec_sim.scenario import Scenario
    from turbospec_sim.scenario_file import find_scenario, read_scenario, shipped_scenarios
    from turbospec_sim.sweep import Sweep, run_all, with_regret

__all__ = [
    "BEST_STATIC",
    "ORACLE",
    "Calibration",
    "Capacity",
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
]

_MODULES = {
    "calibration": ("Calibration", "calibrate"),
    "capacity": ("Capacity", "capacities"),
    "run": ("BEST_STATIC", "ORACLE", "Run", "simulate"),
    "scenario": ("Scenario",),
    "scenario_file": ("find_scenario", "read_scenario", "shipped_scenarios"),
    "sweep": ("Sweep", "run_all", "with_regret"),
}

drop_stale_kernels(Path(__file__).parent, PACKAGE)


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
