"""Runs the scripts of this folder as processes of their own, in which vLLM may do what it likes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(REPOSITORY),
    # Two engines run at once, and each would bind its threads to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # to count the drafter's passes in the workers
}
V2 = {"PYTHONPATH": f"{REPOSITORY / 'tests' / 'vllm' / 'v2_on_cpu'}:{REPOSITORY}"}
"""Settings for model runner V2."""


def run_script(
    module: str, *arguments: str, job: object = None, variables: Mapping[str, str] | None = None
) -> tuple[Any, str]:
    """What a script wrote as JSON into the file that its first argument names, and what it printed.

    Args:
        module: of this folder.
        arguments: after the file's name.
        job: given as JSON on stdin.
        variables: of its environment, besides ours.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.vllm.{module}", answer.name, *arguments],
            input=json.dumps(job),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            timeout=900,
            env=os.environ | SETTINGS | dict(variables or {}),
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return json.load(answer), done.stdout
