"""Data parallelism with a dense model: each of vLLM's engine cores has a controller of its own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("vllm")

from vllm.ray.ray_env import get_env_vars_to_copy

from tests.vllm.serving import TARGET, Server, serve
from turbospec.hosts.vllm import plugin

ENGINES = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ("--data-parallel-size", str(ENGINES), "--api-server-count", "1")
    with serve(tmp_path_factory.mktemp("server"), arguments) as running:
        yield running


def complete(server: Server, number: int, **fields: object) -> str:
    body = {"model": TARGET, "prompt": f"def function_{number}(items):\n    ", "max_tokens": 48, "temperature": 0.0}
    data = json.dumps(body | {"ignore_eos": True} | fields).encode()
    asked = Request(f"{server.url}/v1/completions", data, {"Content-Type": "application/json"})
    with urlopen(asked, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def by_engine(server: Server, metric: str) -> dict[str, float]:
    found = re.findall(rf'^{metric}{{engine="(\d)".*}} (\S+)$', server.running.metrics(), re.MULTILINE)
    return {engine: float(value) for engine, value in found}


def test_engines_draft_on_their_own(server: Server) -> None:
    undrafted = {"vllm_xargs": {"turbospec_max_draft": 0}}
    server.set_policy("static-3")
    time.sleep(1.1)  # the file is looked at once a second
    with ThreadPoolExecutor(8) as clients:
        expected = list(clients.map(lambda number: complete(server, number, **undrafted), range(16)))
        assert list(clients.map(lambda number: complete(server, number), range(16))) == expected
        time.sleep(1.5)  # the engine cores write their metrics once a second
        list(clients.map(lambda number: complete(server, number, max_tokens=4), range(8)))
    log = Path(server.log).read_text()
    assert "TurboSpec is off" not in log
    assert "TurboSpec failed" not in log
    drafted, steps = (
        by_engine(server, "vllm:spec_decode_num_draft_tokens_total"),
        by_engine(server, "turbospec_steps_total"),
    )
    assert set(drafted) == set(steps) == {"0", "1"}
    assert min(drafted.values()) > 0
    assert min(steps.values()) > 0


def test_rays_engine_cores_get_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOSPEC_TRACE", "trace.jsonl")
    monkeypatch.setenv(plugin.RAY_PREFIXES, "")
    assert "TURBOSPEC_TRACE" not in get_env_vars_to_copy()
    plugin._pass_settings_to_ray()
    assert "TURBOSPEC_TRACE" in get_env_vars_to_copy()
