"""The benchmark in vLLM: policies in servers of their own, under load by `vllm bench serve`.

Names are imported when they are first used: the client process, which is a module of this package, needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turbospec_bench.vllm.client_process import BenchClient
    from turbospec_bench.vllm.contender import Bench, VllmContender
    from turbospec_bench.vllm.fleet import Fleet
    from turbospec_bench.vllm.launch import Launch, Launches
    from turbospec_bench.vllm.loads import LoadSource, VllmLoad
    from turbospec_bench.vllm.session import VllmSession
    from turbospec_bench.vllm.targets import judge

__all__ = [
    "Bench",
    "BenchClient",
    "Fleet",
    "Launch",
    "Launches",
    "LoadSource",
    "VllmContender",
    "VllmLoad",
    "VllmSession",
    "judge",
]

_MODULES = {
    "Bench": "contender",
    "BenchClient": "client_process",
    "Fleet": "fleet",
    "Launch": "launch",
    "Launches": "launch",
    "LoadSource": "loads",
    "VllmContender": "contender",
    "VllmLoad": "loads",
    "VllmSession": "session",
    "judge": "targets",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
