"""`vllm serve` as a user would start it: its metrics and the doctor on them, clients that leave, and a policy's file
that changes while the server runs."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("vllm")

from tests.vllm.script import REPOSITORY, SETTINGS
from tests.vllm.serving import TARGET, Server, serve

PROMPT = "def quicksort(items):\n    "
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
RUNNING, CACHE_USE = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


def ask(server: Server, **fields: object) -> Request:
    body = {"model": TARGET, "prompt": PROMPT, "max_tokens": 64, "temperature": 0.0, "ignore_eos": True} | fields
    return Request(f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})


def complete(server: Server, **fields: object) -> str:
    with urlopen(ask(server, **fields), timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def leave_early(server: Server) -> None:
    """Asks for a long answer and closes the connection at its beginning."""
    with urlopen(ask(server, max_tokens=220, stream=True), timeout=120) as answer:
        assert isinstance(answer, http.client.HTTPResponse)
        for _ in range(6):
            assert answer.readline() != b""


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_request_may_refuse_drafts_over_http(server: Server) -> None:
    """Of all requests so far none drafts, the metrics of the engine core say so, and the text is the same."""
    never = complete(server, vllm_xargs={"turbospec_max_draft": 0})
    time.sleep(2.5)  # the engine core writes its metrics once a second
    complete(server, vllm_xargs={"turbospec_max_draft": 0}, max_tokens=8)
    before = server.metrics()
    assert before["turbospec_steps_total"] > 0
    assert before["turbospec_drafted_per_position_total"] == 0
    assert complete(server) == never


def test_metrics_and_doctor(server: Server) -> None:
    for _ in range(6):
        complete(server)
    time.sleep(1.5)
    complete(server, max_tokens=8)
    seen = server.metrics()
    assert seen["turbospec_emitted_tokens_total"] > 300
    assert seen["turbospec_guard_trips_total"] == 0
    assert seen["turbospec_decision_seconds_total"] < 0.2 * seen["turbospec_step_seconds_total"]
    turbospec = Path(sys.executable).with_name("turbospec")
    said = subprocess.run(
        [turbospec, "doctor", "--url", server.url, "--json"], capture_output=True, text=True, check=True
    )
    document = json.loads(said.stdout)
    assert document["acceptance"][0] > 0.3
    assert any("first draft tokens are accepted" in finding["text"] for finding in document["findings"])


def test_clients_that_leave_hold_nothing(server: Server) -> None:
    text = complete(server)
    with ThreadPoolExecutor(9) as clients:
        stays = clients.submit(complete, server)
        for each in [clients.submit(leave_early, server) for _ in range(8)]:
            each.result()
        assert stays.result() == text

    def idle() -> bool:
        seen = server.metrics()
        return seen[RUNNING] == 0 and seen[CACHE_USE] == 0

    wait_for(idle)
    assert complete(server) == text


def test_a_policy_file_that_breaks_and_is_mended(server: Server) -> None:
    """One warning and no change while it is wrong; in force with the first step after it is right."""
    text = complete(server)

    def drafted(policy: str | None) -> float:
        """Draft tokens of one completion under a policy; None writes rubbish."""
        server.set_policy(policy)
        time.sleep(1.1)  # the file is looked at once a second
        complete(server, max_tokens=8)
        before = server.metrics()[DRAFTED]
        assert complete(server) == text
        return server.metrics()[DRAFTED] - before

    assert drafted("static-3") > 0
    assert drafted(None) > 0
    assert server.log.read_text().count("policy not reloaded, the previous one stays") == 1
    assert drafted("off") == 0
    assert drafted("static-1") > 0
    log = server.log.read_text()
    assert log.count("policy reloaded from") == 3
    assert "Traceback" not in log


def test_a_wrong_policy_is_one_line(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "tests.vllm.command", "serve", TARGET, "--speculative-config", "{}"]
    environment = os.environ | SETTINGS | {"TURBOSPEC_POLICY": str(tmp_path / "missing.yaml")}
    done = subprocess.run(asked, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert re.search(r"turbospec: .*missing\.yaml: no such policy file$", done.stderr)  # older ones put a process first
