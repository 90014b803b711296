"""Lets vLLM's model runner V2 run on a CPU: every process of a test that has this folder in its PYTHONPATH loads it.

V2 needs Triton with a CPU backend, which no package index has. Triton's interpreter runs the same kernels, once vLLM
believes in the backend.
"""

from __future__ import annotations

import os
import types

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
# With tensor parallelism vLLM compiles a function of its embedding, and the compiler asks for Triton's backend.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

from triton.backends import backends

backends["cpu"] = types.SimpleNamespace(compiler=None, driver=types.SimpleNamespace(is_active=lambda: True))

from triton.runtime.interpreter import InterpreterBuilder  # noqa: E402

_load = InterpreterBuilder.create_masked_load


def _load_with_bool_mask(builder, ptrs, mask, *others):  # type: ignore[no-untyped-def]
    """The interpreter combines comparisons into an integer mask, and then refuses it (n-gram's finalize kernel)."""
    mask.data = mask.data.astype(bool)
    return _load(builder, ptrs, mask, *others)


InterpreterBuilder.create_masked_load = _load_with_bool_mask
