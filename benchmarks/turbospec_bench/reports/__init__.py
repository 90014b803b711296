"""HTML reports and pictures, of benchmarks and of simulations. Needs the extra `bench`.

Functions are imported when they are first used: a benchmark's report needs no simulator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turbospec_bench.reports.benchmark import write_pictures, write_report
    from turbospec_bench.reports.profile_plot import write_fit_plot
    from turbospec_bench.reports.simulation import write_report as write_simulation_report

__all__ = ["write_fit_plot", "write_pictures", "write_report", "write_simulation_report"]

_FUNCTIONS = {
    "write_fit_plot": ("profile_plot", "write_fit_plot"),
    "write_pictures": ("benchmark", "write_pictures"),
    "write_report": ("benchmark", "write_report"),
    "write_simulation_report": ("simulation", "write_report"),
}


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, function = _FUNCTIONS[name]
    return getattr(import_module(f"{__name__}.{module}"), function)
