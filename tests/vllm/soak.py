"""A server under changing traffic for many minutes: does it fail, get stuck, or grow?

    python -m tests.vllm.soak --minutes 20

Requests come at random and at rates that change; their prompts, lengths, sampling and `vllm_xargs` are mixed, and some
clients leave in the middle of an answer. The policy's file is written anew all the while, sometimes with rubbish. The
exit status is 1 where a check failed; the summary holds them, and memory over time. With `--without-turbospec` the same
load meets vLLM alone, which drafts five tokens in every step: what its memory does by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from tests.vllm.serving import REPOSITORY, TARGET, Server, serve

RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Requests a second, the next drawn every `RATE_SECONDS`; the highest are more than two cores serve."""
RATE_SECONDS, POLICY_SECONDS, SAMPLE_SECONDS = 20.0, 30.0, 10.0
POLICIES = ("static-3", "off", None, "adaptive")
RUBBISH = "rubbish"
LEAVING, WITH_XARGS, SAMPLED = 0.15, 0.2, 0.2
"""Shares of requests."""
WARM_MINUTES = 5.0
MAX_OPEN = 200
"""Requests at a time; above it arrivals wait, as a proxy in front would have them."""


@dataclass(slots=True)
class Record:
    """What happened so far."""

    sent: int = 0
    finished: int = 0
    left: int = 0
    tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    policies: Counter[str] = field(default_factory=Counter[str])
    samples: list[dict[str, float]] = field(default_factory=list)


def prompts() -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    texts = [
        json.loads(line)["text"]
        for kind in ("code", "prose")
        for line in (REPOSITORY / "workloads" / f"{kind}.jsonl").read_text().splitlines()[:100]
    ]
    return tokenizer(texts)["input_ids"]


def draw(rng: random.Random, texts: list[list[int]]) -> dict[str, Any]:
    """A request's body."""
    prompt = rng.choice(texts)[: round(rng.triangular(4, 150, 30))]
    if rng.random() < 0.3:
        prompt = texts[0][:32] + prompt
    body: dict[str, Any] = {
        "model": TARGET,
        "prompt": prompt,
        "max_tokens": round(rng.triangular(1, 72, 24)),
        "temperature": 0.8 if rng.random() < SAMPLED else 0.0,
        "stream": True,
    }
    if rng.random() < WITH_XARGS:
        body["vllm_xargs"] = {"turbospec_max_draft": rng.randint(0, 5), "turbospec_class": rng.choice("abc")}
    return body


async def request(client: aiohttp.ClientSession, body: dict[str, Any], leave_after: int | None, record: Record) -> None:
    """One request from its start to its end, or until its client has seen enough."""
    chunks, last = 0, ""
    try:
        async with client.post("/v1/completions", json=body) as answer:
            if answer.status != 200:
                record.failures[f"status {answer.status}: {(await answer.text())[:200]}"] += 1
                return
            async for line in answer.content:
                text = line.decode().strip()
                if not text:
                    continue
                chunks, last = chunks + 1, text
                if text.startswith('data: {"error"'):
                    record.failures[text[:200]] += 1
                    return
                if chunks == leave_after:
                    record.left += 1
                    return
    except (aiohttp.ClientError, TimeoutError) as error:
        record.failures[f"{type(error).__name__}: {error}"] += 1
        return
    if last != "data: [DONE]":
        record.failures[f"ended with {last[:200]!r}"] += 1
        return
    record.finished += 1
    record.tokens += chunks - 1


async def send(client: aiohttp.ClientSession, rng: random.Random, until: float, record: Record) -> None:
    texts = prompts()
    rate, next_rate = RATES[1], time.monotonic() + RATE_SECONDS
    places = asyncio.Semaphore(MAX_OPEN)

    async def one(body: dict[str, Any], leave_after: int | None) -> None:
        async with places:
            await request(client, body, leave_after, record)

    async with asyncio.TaskGroup() as tasks:
        while time.monotonic() < until:
            if time.monotonic() >= next_rate:
                rate, next_rate = rng.choice(RATES), next_rate + RATE_SECONDS
            await asyncio.sleep(rng.expovariate(rate))
            record.sent += 1
            tasks.create_task(one(draw(rng, texts), rng.randint(1, 12) if rng.random() < LEAVING else None))


async def change_policy(server: Server, record: Record) -> None:
    while True:
        for policy in POLICIES:
            await asyncio.sleep(POLICY_SECONDS)
            server.set_policy(policy)
            record.policies[policy or RUBBISH] += 1


async def watch(server: Server, began: float, record: Record) -> None:
    while True:
        record.samples.append(await asyncio.to_thread(look, server, began))
        await asyncio.sleep(SAMPLE_SECONDS)


def look(server: Server, began: float) -> dict[str, float]:
    root = psutil.Process(server.running.pid)
    rss = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            rss += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    seen = server.metrics()
    return {
        "minute": round((time.monotonic() - began) / 60.0, 3),
        "rss_mb": round(rss / 2**20, 1),
        "running": seen["vllm:num_requests_running"],
        "waiting": seen["vllm:num_requests_waiting"],
        "cache_use": seen["vllm:kv_cache_usage_perc"],
        "guard_trips": seen["turbospec_guard_trips_total"],
        "drafted": seen["vllm:spec_decode_num_draft_tokens_total"],
        "accepted": seen["vllm:spec_decode_num_accepted_tokens_total"],
    }


def growth(samples: list[dict[str, float]]) -> dict[str, float] | None:
    """Memory over time, as a line through what was seen from minute 5; None where that is too short."""
    rows = [(each["minute"], each["rss_mb"]) for each in samples if each["minute"] >= WARM_MINUTES]
    if len(rows) < 6:
        return None
    minutes, rss = np.array(rows).T
    slope, start = np.polyfit(minutes, rss, 1)
    return {
        "mb_a_minute": round(float(slope), 3),
        "mb_at_minute_5": round(float(start + slope * WARM_MINUTES), 1),
        "scatter_mb": round(float(np.std(rss - (start + slope * minutes))), 2),
    }


def checks(record: Record, log: str, at_rest: dict[str, float]) -> dict[str, bool]:
    return {
        "no request failed": not record.failures,
        "every request ended": record.finished + record.left == record.sent,
        "TurboSpec did not fail": "TurboSpec failed" not in log,
        "no traceback in the log": "Traceback" not in log,
        "no guard trip": at_rest["guard_trips"] == 0,
        "every policy was taken up, and rubbish refused": (
            log.count("policy reloaded from") == sum(record.policies.values()) - record.policies[RUBBISH]
            and log.count("policy not reloaded") == record.policies[RUBBISH]
        ),
        "nothing runs or waits at the end": at_rest["running"] == at_rest["waiting"] == 0,
        "the cache is free at the end": at_rest["cache_use"] == 0,
    }


async def drive(server: Server, minutes: float, seed: int, policies: bool, record: Record) -> dict[str, float]:
    """Traffic, with other policies all the while if it has one, and then how the server is once it rests."""
    began = time.monotonic()
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=300)) as client:
        beside = [asyncio.create_task(watch(server, began, record))]
        if policies:
            beside.append(asyncio.create_task(change_policy(server, record)))
        await send(client, random.Random(seed), began + minutes * 60.0, record)
        for task in beside:
            task.cancel()
        # A last request: a policy that was written just now is taken up with a step.
        await asyncio.sleep(2.0)
        record.sent += 1
        await request(client, {"model": TARGET, "prompt": "def", "max_tokens": 16, "stream": True}, None, record)
    at_rest: dict[str, float] = {}
    for _ in range(30):
        at_rest = look(server, began)
        if at_rest["running"] == at_rest["waiting"] == at_rest["cache_use"] == 0:
            break
        await asyncio.sleep(1.0)
    return at_rest


def main() -> int:
    parser = argparse.ArgumentParser(description="vLLM with TurboSpec under changing traffic, for many minutes.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-turbospec", dest="turbospec", action="store_false")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "runs" / "soak.json")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = Record()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(Path(folder), ("--max-num-seqs", "32"), turbospec=options.turbospec) as server,
    ):
        try:
            at_rest = asyncio.run(drive(server, options.minutes, options.seed, options.turbospec, record))
        finally:
            shutil.copy(server.log, options.out.with_suffix(".log"))
        passed = checks(record, server.log.read_text(), at_rest)
    summary = {
        "minutes": options.minutes,
        "seed": options.seed,
        "checks": passed,
        "sent": record.sent,
        "finished": record.finished,
        "left": record.left,
        "tokens": record.tokens,
        "failures": record.failures,
        "policies": record.policies,
        "growth": growth(record.samples),
        "at_rest": at_rest,
        "samples": record.samples,
    }
    options.out.write_text(json.dumps(summary, indent=1))
    for name, good in passed.items():
        print("ok    " if good else "FAILED", name)
    print(f"{record.finished} finished, {record.left} left early, {dict(record.failures)}, memory {summary['growth']}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
