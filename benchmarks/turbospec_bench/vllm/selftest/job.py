"""A job for a vLLM in a process of its own, and how it is run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turbospec.files.reading import read_json
from turbospec.hosts.vllm.shared.support import POLICY_VARIABLE
from turbospec_bench.vllm.watched_process import start

WORKER = "turbospec_bench.vllm.selftest.worker"
STOP_SECONDS = 15.0
"""After which a vLLM that was asked to end is killed."""
ENVIRONMENT = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Of every vLLM; the first lets the drafter's passes be counted in the workers."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one vLLM is to do."""

    engine: Mapping[str, Any]
    """Arguments of `vllm.LLM`."""
    prompts: list[str]
    max_tokens: int
    concurrency: int
    """Prompts given to vLLM at once."""
    policy: str | None = None
    """TurboSpec's, as a user sets it; None for vLLM alone or a scheduler in `engine`."""
    asynchronous: bool | None = None
    """Async scheduling on or off; None for vLLM's default."""
    warm_up_seconds: float = 0.0
    """Time in which the prompts are run before anything is timed, and a policy learns."""
    timed_seconds: float = 0.0
    """Least time to run the prompts for; they run at least once."""
    logprobs: int = 0
    """Most likely tokens to report with each output token."""
    count_passes: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A vLLM that ended with an error."""

    why: str
    """The last line of its log that names an error."""
    log: Path


@dataclass
class Vllms:
    """Runs jobs, one vLLM at a time, because one takes all of a GPU's memory.

    Args:
        logs: folder for the logs, one file per job.
    """

    logs: Path

    def run(self, name: str, job: Job) -> dict[str, Any] | Failed:
        """The job's result, as `worker` describes it. Whatever happens, its vLLM has ended.

        Args:
            name: of the log file.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if key != POLICY_VARIABLE} | ENVIRONMENT
        if job.policy is not None:
            environment[POLICY_VARIABLE] = job.policy
        with tempfile.TemporaryDirectory(prefix="turbospec-selftest-") as folder, log.open("wb") as out:
            order, answer = Path(folder) / "job.json", Path(folder) / "result.json"
            order.write_text(json.dumps(asdict(job)), encoding="utf-8")
            process = start([sys.executable, "-m", WORKER, str(order), str(answer)], out, environment)
            try:
                process.wait()
            finally:
                _end(process)
            if process.returncode == 0 and answer.exists():
                return read_json(answer, "result of a vLLM")
        return Failed(_last_error(log), log)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a vLLM and the processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _last_error(log: Path) -> str:
    """The most telling line of a log: the last that names an error, else the last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # pydantic names the field first, and what is wrong with it in the next line.
    values = [line.partition("Value error, ")[2].partition(" [type=")[0] for line in lines if "Value error, " in line]
    if values:
        return values[-1]
    errors = [line for line in lines if "Error: " in line or "error: " in line]
    # vLLM's parent process ends with a line that only points to the error of its engine core.
    telling = [line for line in errors if "Engine core initialization failed" not in line]
    last = (telling or errors or lines or ["it printed nothing"])[-1]
    return last.partition("] ")[2] or last if last.startswith("(") else last
