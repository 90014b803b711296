"""A vLLM server with one variant, under load by `vllm bench serve`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbospec.errors import UserError
from turbospec.hosts.vllm.shared.support import STARTED
from turbospec_bench.contender import Run
from turbospec_bench.text_quality import text_figures
from turbospec_bench.variant import Variant
from turbospec_bench.vllm.client_process import BenchClient
from turbospec_bench.vllm.figures import (
    OPTIONS,
    bench_figures,
    bench_record,
    host_share,
    is_planning,
    read_result,
)
from turbospec_bench.vllm.loads import Tokenizer, VllmLoad
from turbospec_bench.vllm.matrix import is_turbospec
from turbospec_bench.vllm.server import Server

IDLE_SECONDS = 1.2
"""Wait after a run: vLLM's workers busy-wait for a second after their last work (`SpinCondition`), and on CPUs the
workers of all servers are bound to the same core. TurboSpec's metrics then cover the whole run."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The client, and what it needs to put a server under load."""

    client: BenchClient
    model: str
    """The served model's name: the target's path."""
    tokenizer: Tokenizer
    scratch: Path
    """Folder for the result files of `vllm bench serve`."""

    def serve(self, server: Server, load: VllmLoad) -> dict[str, Any]:
        """Run `vllm bench serve`, wait until all servers are idle, and return its result file.

        Raises:
            UserError: the server ended, the run failed, its result is broken, or not all of its requests were served.
        """
        path = self.scratch / "result.json"
        path.unlink(missing_ok=True)
        arguments = ("--backend", "vllm", "--base-url", server.url, "--model", self.model, "--disable-tqdm")
        where = ("--result-dir", str(self.scratch), "--result-filename", path.name)
        self.client.run((*arguments, *load.arguments, *OPTIONS, *where), server.check)
        time.sleep(IDLE_SECONDS)
        document = read_result(path)
        if document["completed"] != load.requests:
            server.check()
            why = next(
                (error.strip().splitlines()[-1] for error in document["errors"] if error.strip()), "no error was given"
            )
            served = f"{document['completed']} of {load.requests} requests"
            raise UserError(f"vLLM ({server.name}) served {served}: {why}; its log is {server.log}")
        return document


@dataclass(frozen=True, slots=True)
class VllmContender:
    variant: Variant
    server: Server
    bench: Bench

    def serve(self, load: VllmLoad) -> Run:
        """Serve a load to its end.

        Raises:
            UserError: as for `Bench.serve`, or the server has to run TurboSpec and does not.
        """
        before = self.server.metrics() if is_turbospec(self.variant) else ""
        document = self.bench.serve(self.server, load)
        texts = [self.bench.tokenizer.encode(text, add_special_tokens=False) for text in document["generated_texts"]]
        figures = bench_figures(document) | text_figures(texts)
        if is_turbospec(self.variant):
            after = self.server.metrics()
            if not self._is_planning(after):
                raise UserError(
                    f"vLLM ({self.server.name}) drafts its own length, without TurboSpec; {self.server.log} says why. "
                    "TurboSpec must be installed in vLLM's environment"
                )
            figures |= host_share(before, after)
        return Run(figures, bench_record(document))

    def _is_planning(self, metrics: str) -> bool:
        """Whether TurboSpec plans, by the metrics or, where these are missing, by the log."""
        planning = is_planning(metrics)
        return STARTED in self.server.log.read_text(errors="replace") if planning is None else planning
