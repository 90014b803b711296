"""Write random scenarios, to search for servers on which a policy is worse than a fixed K.

    python simulations/random_scenarios.py random --number 70
    turbospec simulate random/*.yaml --policy adaptive --policy best_static --jobs 2 --json random.json

Each has a GPU-like server: a target's pass of 4 to 35 ms, with or without CUDA graphs, a sequential or parallel drafter
of up to 15 tokens, 1 to 400 requests in flight (or Poisson arrivals at 0.2 to 1.05 of the capacity without drafts,
roughly), prompts of 40 to 3,000 tokens and outputs of 40 to 700. With --few-blocks, 32 to 400 are in flight and
the KV cache has room for 30 to 70 % of them; the drafter may take a part of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from turbospec_sim.arguments import not_negative, positive
from turbospec_sim.scenario import Scenario

STEPS = 3000
"""Steps of a run, roughly, at one and a half tokens a step."""
MAX_TOKENS = 8192
"""Last point of the target's curve."""
GRAPH_SIZES = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]


class Draws:
    """Random numbers of one scenario."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def between(self, low: float, high: float) -> float:
        """Log-uniform."""
        return float(np.exp(self._rng.uniform(np.log(low), np.log(high))))

    def one_of(self, *values: Any) -> Any:
        return values[self._rng.integers(len(values))]

    def chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def uniform(self, low: float, high: float) -> float:
        return float(self._rng.uniform(low, high))


def random_scenario(seed: int, arrivals: str, *, few_blocks: bool = False) -> dict[str, Any]:
    """The fields of a scenario file.

    Args:
        seed: of all draws.
        arrivals: `closed` or `poisson`.
        few_blocks: whether KV blocks limit the requests that run.
    """
    draws = Draws(seed)
    max_draft, requests = draws.one_of(3, 5, 7, 10, 15), int(draws.between(32 if few_blocks else 1, 400))
    prompt, output = draws.between(40, 3000), draws.between(40, 700)
    latency = _latency(draws, max_draft)
    slots = max(requests, 16) if arrivals == "closed" else 256
    server = {
        "max_num_seqs": slots,
        "max_num_batched_tokens": draws.one_of(2048, 8192),
        "kv_cache_tokens": int(max(20_000, requests * (prompt + output) * draws.one_of(1.2, 4.0, 4.0))),
        "emit": draws.one_of("after_draft", "before_draft"),
    }
    classes = [
        _request_class(draws, f"class{i}", max_draft, prompt, output) for i in range(draws.one_of(1, 1, 1, 2, 3))
    ]
    workload = {
        "requests": min(max(40, int(STEPS * requests * 1.5 / output)), 12_000),
        "warmup_requests": min(max(requests * 2, 20), 2000),
        "arrivals": {"process": arrivals},
        "classes": classes,
    }
    scenario = {
        "version": 1,
        "policy": "adaptive",
        "server": server,
        "drafter": _drafter(draws, max_draft, requests),
        "latency": latency,
        "workload": workload,
    }
    if arrivals == "closed":
        workload["arrivals"]["concurrency"] = requests
    else:
        rate = _capacity(server, latency, prompt, output) * draws.one_of(0.2, 0.5, 0.8, 0.95, 1.05)
        scenario["rates"] = [round(rate, 4)]
        workload["requests"] = min(max(150, int(rate * 60)), 3000)
        workload["warmup_requests"] = min(200, workload["requests"] // 4)
    if few_blocks:
        server["max_num_seqs"] = 512
        server["kv_cache_tokens"] = int(max(15_000, requests * (prompt + output) * draws.uniform(0.3, 0.7)))
        scenario["drafter"] |= {
            "kv_share": draws.one_of(0.0, 0.05, 0.2, 0.5),
            "memory": draws.one_of("shared", "reserved"),
        }
        workload["warmup_requests"] = 0  # after a warm-up the server is idle, and the drafter can be tried
    Scenario.model_validate(scenario)
    return scenario


def _latency(draws: Draws, max_draft: int) -> dict[str, Any]:
    floor, knee = draws.between(0.004, 0.035), draws.between(64, 600)
    slope, end = floor / knee, MAX_TOKENS - knee
    if draws.chance(0.5):
        curve = [[0, 0.9 * floor], [int(knee / 2), floor], [int(knee), 1.25 * floor]]
    else:
        curve = [[0, floor], [int(knee), 1.02 * floor]]
    latency: dict[str, Any] = {
        "source": "coefficients",
        "verify_curve": [*curve, [MAX_TOKENS, curve[-1][1] + slope * end]],
        "host_seconds": draws.between(2e-4, 2e-3),
        "host_request_seconds": draws.between(1e-6, 2e-5),
        "kv_token_seconds": draws.between(1e-9, 3e-8),
        "draft_start_seconds": floor * draws.between(0.005, 0.08),
        "draft_pass_seconds": floor * draws.between(0.01, 0.3),
        "draft_row_seconds": draws.between(5e-7, 1e-5),
        "catch_up_token_seconds": slope * draws.between(0.02, 0.3),
        "noise": draws.one_of(0.02, 0.05, 0.1),
    }
    if draws.chance(0.6):
        latency |= {
            "graph_sizes": GRAPH_SIZES,
            "ungraphed_seconds": draws.one_of(0.0, 0.001, 0.004, 0.01),
            "prompt_seconds": draws.one_of(0.0, 0.001, 0.003),
            "catch_up_seconds": draws.one_of(0.0, 0.001),
        }
        if draws.chance(0.5):
            lengths = {length for length in (0, 1, 2, 3, 5, 8) if length < max_draft} | {max_draft}
            latency |= {"graph_lengths": sorted(lengths), "piecewise_seconds": draws.between(3e-4, 6e-3)}
    return latency


def _drafter(draws: Draws, max_draft: int, requests: int) -> dict[str, Any]:
    drafter: dict[str, Any] = {"max_draft": max_draft, "kind": "parallel" if draws.chance(0.2) else "sequential"}
    drafter["batch"] = draws.chance(0.7)
    if draws.chance(0.15):
        drafter["first_pass_every_step"] = True
    elif requests < 64 and draws.chance(0.4):
        drafter["kept_tokens"] = draws.one_of(8192, 65_536)
    return drafter


def _request_class(draws: Draws, name: str, max_draft: int, prompt: float, output: float) -> dict[str, Any]:
    rate = draws.uniform(0.05, 0.95) if draws.chance(0.5) else draws.uniform(0.4, 0.9)
    acceptance: dict[str, Any] = {"process": "iid", "rate": round(rate, 3)}
    if draws.chance(0.5):
        rates = [min(max(rate + draws.uniform(-0.02, 0.01) * place, 0.02), 0.98) for place in range(max_draft)]
        acceptance = {"process": "by_position", "rates": [round(each, 3) for each in rates]}
    lengths = {
        kind: {
            "distribution": "lognormal",
            "mean": int(mean * draws.between(0.6, 1.6)),
            "sigma": draws.one_of(0.2, 0.6),
            "high": high,
        }
        for kind, mean, high in (("prompt_tokens", prompt, 8000), ("output_tokens", output, 3000))
    }
    share, hidden = draws.uniform(0.2, 1.0), draws.chance(0.5)
    return {"name": name, "share": share, "hidden": hidden, **lengths, "acceptance": acceptance}


def _capacity(server: dict[str, Any], latency: dict[str, Any], prompt: float, output: float) -> float:
    """Requests/s without drafts, roughly."""
    running = min(server["max_num_seqs"], server["kv_cache_tokens"] / (prompt + output))
    budget, tokens = server["max_num_batched_tokens"], running * (1.0 + prompt / output)
    at, seconds = zip(*latency["verify_curve"], strict=True)
    step = float(np.interp(min(tokens, budget), at, seconds)) + latency["host_seconds"]
    step += latency["host_request_seconds"] * running
    step += latency["kv_token_seconds"] * running * (prompt + output / 2)
    return running / output / (step * max(tokens / budget, 1.0))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path, help="where to write them")
    arguments.add_argument("--number", type=positive, default=70, help="scenarios (default 70)")
    arguments.add_argument(
        "--seed", type=not_negative, default=0, help="of the first; the others count up from it (default 0)"
    )
    arguments.add_argument("--arrivals", choices=("closed", "poisson"), default="closed", help="(default closed)")
    arguments.add_argument("--few-blocks", action="store_true", help="KV blocks limit the requests that run")
    options = arguments.parse_args()
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        arguments.error(f"cannot make the folder {options.folder}: {error.strerror}")
    for seed in range(options.seed, options.seed + options.number):
        file = options.folder / f"{options.arrivals}-{seed:04d}.yaml"
        scenario = random_scenario(seed, options.arrivals, few_blocks=options.few_blocks)
        file.write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
