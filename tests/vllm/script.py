"""Runs the scripts of this folder as processes of their own, in which vLLM may do what it likes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
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
TIMEOUT_SECONDS = 900
LOG_CHARACTERS = 6000
"""Of the end of a log, shown where a script fails."""


def run_script(module: str, *arguments: str) -> tuple[Any, str]:
    """What a script wrote as JSON into the file that its first argument names, and what it printed.

    Args:
        module: of this folder.
        arguments: after the file's name.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.vllm.{module}", answer.name, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            timeout=TIMEOUT_SECONDS,
            env=os.environ | SETTINGS,
        )
        assert done.returncode == 0, done.stdout[-LOG_CHARACTERS:]
        return json.load(answer), done.stdout


class Generator:
    """A process of `tests.vllm.generate`, which serves job after job: to import vLLM takes most of the time of one.

    Args:
        variables: of its environment, besides ours.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = dict(variables)
        self._log = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.vllm.generate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | SETTINGS | self.variables,
            start_new_session=True,
        )

    @property
    def serves(self) -> bool:
        """Whether it takes another job."""
        return self._process.poll() is None

    def run(self, job: Mapping[str, Any]) -> tuple[Any, str]:
        """A job's result, and what was printed meanwhile."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begin = self._log.seek(0, os.SEEK_END)
        print(json.dumps(job), file=self._process.stdin, flush=True)
        answered, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_SECONDS)
        result = self._process.stdout.readline() if answered else ""
        self._log.seek(begin)
        printed = self._log.read()
        if not result:
            self.stop()
        assert result, printed[-LOG_CHARACTERS:]
        return json.loads(result), printed

    def stop(self) -> None:
        """End it, and the engine that it may have."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


_generators: list[Generator] = []
"""The one in use, if any."""


def generate_in_script(job: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[Any, str]:
    """The result of a job of `tests.vllm.generate`, and what was printed.

    Args:
        job: as there.
        variables: of the process. A process lives until one with other variables is needed.
    """
    if _generators and not (_generators[0].serves and _generators[0].variables == variables):
        last = _generators.pop()
        if last.serves:
            last.stop()
    if not _generators:
        _generators.append(Generator(variables))
    return _generators[0].run(job)
