"""`vllm serve` as a user would start it, with one variable set; its metrics, and the doctor on them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("vllm")

REPOSITORY = Path(__file__).parents[2]
TARGET, DRAFTER = (str(REPOSITORY / "models" / name) for name in ("target", "drafter"))
SPECULATION = {"method": "draft_model", "model": DRAFTER, "num_speculative_tokens": 5}
PROMPT = "def quicksort(items):\n    "
START_SECONDS = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TURBOSPEC_POLICY": "adaptive"}
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "256", "--enforce-eager"]
    with log.open("w") as output:
        running = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.vllm.command", "serve", TARGET, *arguments),
                *("--speculative-config", json.dumps(SPECULATION)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=REPOSITORY,
            env=os.environ | settings,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(START_SECONDS):
                assert running.poll() is None, log.read_text()[-3000:]
                try:
                    with urlopen(f"{url}/health", timeout=5):
                        break
                except URLError:
                    time.sleep(1)
            yield url
            assert running.poll() is None, log.read_text()[-3000:]
        finally:
            running.terminate()
            running.wait(60)


def complete(url: str, **fields: object) -> str:
    body = {"model": TARGET, "prompt": PROMPT, "max_tokens": 64, "temperature": 0.0, "ignore_eos": True} | fields
    request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def metrics(url: str) -> dict[str, float]:
    """Values by name, added up over their labels."""
    totals: dict[str, float] = defaultdict(float)
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                totals[sample.name] += sample.value
    return totals


def test_a_request_may_refuse_drafts_over_http(server: str) -> None:
    """Of all requests so far none drafts, the metrics of the engine core say so, and the text is the same."""
    never = complete(server, vllm_xargs={"turbospec_max_draft": 0})
    time.sleep(2.5)  # the engine core writes its metrics once a second
    complete(server, vllm_xargs={"turbospec_max_draft": 0}, max_tokens=8)
    before = metrics(server)
    assert before["turbospec_steps_total"] > 0
    assert before["turbospec_drafted_per_position_total"] == 0
    assert complete(server) == never


def test_metrics_and_doctor(server: str) -> None:
    for _ in range(6):
        complete(server)
    time.sleep(1.5)
    complete(server, max_tokens=8)
    seen = metrics(server)
    assert seen["turbospec_emitted_tokens_total"] > 300
    assert seen["turbospec_guard_trips_total"] == 0
    assert seen["turbospec_decision_seconds_total"] < 0.2 * seen["turbospec_step_seconds_total"]
    turbospec = Path(sys.executable).with_name("turbospec")
    said = subprocess.run([turbospec, "doctor", "--url", server, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(said.stdout)
    assert document["acceptance"][0] > 0.3
    assert any("first draft tokens are accepted" in finding["text"] for finding in document["findings"])
