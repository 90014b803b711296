"""The offline simulator: the real controller in front of a simulated engine with continuous batching."""

from pathlib import Path

from turbospec.runtime.kernels import PACKAGE, drop_stale_kernels

drop_stale_kernels(Path(__file__).parent, PACKAGE)
