"""`vllm serve` with the repository's pair, as a user would start it: one variable names a policy's file."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

REPOSITORY = Path(__file__).parents[2]
TARGET, DRAFTER = (str(REPOSITORY / "models" / name) for name in ("target", "drafter"))
SPECULATION = {"method": "draft_model", "model": DRAFTER, "num_speculative_tokens": 5}
START_SECONDS = 300


@dataclass(slots=True, frozen=True)
class Server:
    url: str
    policy: Path
    """The file that it follows; `adaptive` at the start."""
    log: Path
    process: subprocess.Popen[bytes]

    def set_policy(self, name: str | None) -> None:
        """Put a shipped policy into the file, or rubbish, as a whole: half a file would be one change more."""
        text = "policy: [" if name is None else (REPOSITORY / "policies" / f"{name}.yaml").read_text()
        written = self.policy.with_suffix(".new")
        written.write_text(text)
        written.replace(self.policy)

    def metrics(self) -> dict[str, float]:
        """Values by name, added up over their labels."""
        totals: dict[str, float] = defaultdict(float)
        with urlopen(f"{self.url}/metrics", timeout=10) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples:
                    totals[sample.name] += sample.value
        return totals


@contextmanager
def serve(folder: Path, arguments: Sequence[str] = ()) -> Iterator[Server]:
    """A server that answers; its policy and its log are in the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    policy, log = folder / "policy.yaml", folder / "log"
    shutil.copy(REPOSITORY / "policies" / "adaptive.yaml", policy)
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),
        "TURBOSPEC_POLICY": str(policy),
    }
    with log.open("w") as output:
        running = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.vllm.command", "serve", TARGET, "--host", "127.0.0.1"),
                *("--port", str(port), "--max-model-len", "256", "--enforce-eager", *arguments),
                *("--speculative-config", json.dumps(SPECULATION)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=REPOSITORY,
            env=os.environ | settings,
        )
        server = Server(f"http://127.0.0.1:{port}", policy, log, running)
        try:
            for _ in range(START_SECONDS):
                assert running.poll() is None, log.read_text()[-3000:]
                try:
                    with urlopen(f"{server.url}/health", timeout=5):
                        break
                except URLError:
                    time.sleep(1)
            yield server
            assert running.poll() is None, log.read_text()[-3000:]
        finally:
            running.terminate()
            running.wait(60)
