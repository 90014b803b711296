"""Throughput with the drafter's KV blocks given back, as a ratio to that with reserved ones, in the shipped scenarios.

    python simulations/memory_given_back.py --seeds 3 --kv-share 0.25 --cache 1 --cache 0.25

Both servers serve the same requests and texts. `--cache 0.25` leaves a quarter of each scenario's KV cache, so that it
limits servers that it does not limit as shipped. Scenarios in which the drafter's memory is always reserved, and those
without a drafter, are left out. The last column is the lowest ratio of any seed.
"""

from __future__ import annotations

import argparse

import numpy as np

from turbospec.errors import exit_on_user_error
from turbospec_sim.arguments import positive
from turbospec_sim.run import Run, simulate
from turbospec_sim.scenario_file import find_scenario, read_scenario, shipped_scenarios


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--policy", default="adaptive", help="policy of both servers (default adaptive)")
    arguments.add_argument("--seeds", type=positive, default=3, help="seeds of each scenario (default 3)")
    arguments.add_argument("--kv-share", type=float, default=0.25, help="memory of a token in the drafter's KV cache")
    arguments.add_argument("--cache", type=float, action="append", help="share of the KV cache; repeat for several")
    arguments.add_argument("--scenario", action="append", help="only this one; repeat for several")
    options = arguments.parse_args()
    with exit_on_user_error():
        play(options)


def play(options: argparse.Namespace) -> None:
    """Print a row for each scenario and share of the cache."""
    print(f"{'scenario':28} {'cache':>6} {'reserved':>9} {'shared':>9} {'ratio':>7} {'lowest':>7} {'preemptions':>13}")
    for name in options.scenario or shipped_scenarios():
        for cache in options.cache or [1.0]:
            compare(name, cache, options)


def compare(name: str, cache: float, options: argparse.Namespace) -> None:
    """Print the row of one scenario."""
    path = find_scenario(name)
    as_shipped = read_scenario(path)
    engine = as_shipped.engine(0)
    if not as_shipped.drafter.max_draft or not engine["gives_back"][0]:
        return
    settings = [
        f"drafter.kv_share={as_shipped.drafter.kv_share or options.kv_share}",
        f"server.kv_cache_tokens={round(as_shipped.server.kv_cache_tokens * cache)}",
    ]
    rate = as_shipped.rates[0] if as_shipped.rates else None
    throughputs: dict[str, list[float]] = {"reserved": [], "shared": []}
    preemptions: dict[str, int] = {"reserved": 0, "shared": 0}
    for memory, found in throughputs.items():
        scenario = read_scenario(path, [*settings, f"drafter.memory={memory}"])
        for seed in range(scenario.seed, scenario.seed + options.seeds):
            row = simulate(Run(name, scenario, options.policy, rate, seed))
            found.append(row["output_throughput"])
            preemptions[memory] += row["preemptions"]
    ratios = np.array(throughputs["shared"]) / np.array(throughputs["reserved"])
    reserved, shared = (float(np.mean(found)) for found in throughputs.values())
    print(
        f"{name:28} {cache:6.2f} {reserved:9.0f} {shared:9.0f} {ratios.mean():7.3f} {ratios.min():7.3f} "
        f"{preemptions['reserved']:6} {preemptions['shared']:6}",
        flush=True,
    )


if __name__ == "__main__":
    main()
