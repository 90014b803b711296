"""`vllm serve` with the repository's pair, as a user would start it: one variable names a policy's file."""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.vllm.script import REPOSITORY, SETTINGS
from turbospec_bench.vllm import server
from turbospec_bench.vllm.fleet import Fleet
from turbospec_bench.vllm.launch import Launch

TARGET, DRAFTER = (str(REPOSITORY / "models" / name) for name in ("target", "drafter"))
SPECULATION = {"method": "draft_model", "model": DRAFTER, "num_speculative_tokens": 5}
NAME = "vllm"


@dataclass(slots=True, frozen=True)
class Server:
    running: server.Server
    policy: Path
    """The file that it follows; `adaptive` at the start."""

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def log(self) -> Path:
        return self.running.log

    def set_policy(self, name: str | None) -> None:
        """Put a shipped policy into the file, or rubbish, as a whole: half a file would be one change more."""
        text = "policy: [" if name is None else (REPOSITORY / "policies" / f"{name}.yaml").read_text()
        written = self.policy.with_suffix(".new")
        written.write_text(text)
        written.replace(self.policy)

    def metrics(self) -> dict[str, float]:
        """Values by name, added up over their labels."""
        totals: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(self.running.metrics()):
            for sample in family.samples:
                totals[sample.name] += sample.value
        return totals


@contextmanager
def serve(folder: Path, arguments: Sequence[str] = (), *, turbospec: bool = True) -> Iterator[Server]:
    """A server that answers; its policy and its log are in the folder. Without TurboSpec the policy is not read."""
    policy = folder / "policy.yaml"
    shutil.copy(REPOSITORY / "policies" / "adaptive.yaml", policy)
    own = (TARGET, "--max-model-len", "256", "--enforce-eager", "--speculative-config", json.dumps(SPECULATION))
    environment = SETTINGS | ({"TURBOSPEC_POLICY": str(policy)} if turbospec else {})
    launch = Launch(NAME, (*own, *arguments), environment)
    with Fleet([sys.executable, "-m", "tests.vllm.command"], folder) as fleet:
        fleet.start([launch])
        yield Server(fleet[NAME], policy)
        fleet[NAME].check()
