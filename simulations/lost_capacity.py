"""Attribute the capacity difference of the two no-acceptance scenarios: drafter, batch slots, longer outputs, the rest.

    python simulations/lost_capacity.py --seeds 4 --jobs 2

The scenarios no-acceptance-eagle3 and no-acceptance-baseline differ in four parts. Each part is changed from the first
scenario's setting to the second's, alone and in all combinations. The capacities of these sixteen servers give the
Shapley value of each part.
"""

from __future__ import annotations

import argparse

from turbospec_sim.arguments import positive
from turbospec_sim.attribution import shapley, subsets
from turbospec_sim.capacity import capacities
from turbospec_sim.run import Run
from turbospec_sim.scenario_fields import number
from turbospec_sim.scenario_file import find_scenario, read_scenario

LOSER, WINNER = "no-acceptance-eagle3", "no-acceptance-baseline"


def parts() -> dict[str, list[str]]:
    """The settings that change the first scenario into the second, by part."""
    other = read_scenario(find_scenario(WINNER))
    server = other.server
    means = [f"workload.classes.{place}.output_tokens.mean" for place in range(len(other.workload.classes))]
    outputs = [f"{field}={number(other, field)}" for field in means]
    return {
        "drafter": [f"policy={other.policy}"],
        "batch slots": [f"server.max_num_seqs={server.max_num_seqs}"],
        "outputs": outputs,
        "rest": [f"server.{name}={getattr(server, name)}" for name in ("max_num_batched_tokens", "kv_cache_tokens")],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=positive, default=4, help="seeds of each search (default 4)")
    arguments.add_argument("--jobs", type=positive, default=1, help="processes (default 1)")
    arguments.add_argument(
        "--tolerance", type=float, default=0.01, help="relative width at which bisection ends (default 0.01)"
    )
    options = arguments.parse_args()
    settings, path = parts(), find_scenario(LOSER)
    ways = subsets(list(settings))
    runs: list[Run] = []
    for way in ways:
        scenario = read_scenario(path, [setting for part in settings if part in way for setting in settings[part]])
        runs.append(Run(LOSER, scenario, scenario.policy, None, scenario.seed))
    found = capacities(runs, seeds=options.seeds, jobs=options.jobs, tolerance=options.tolerance)
    values = dict(zip(ways, found, strict=True))
    print("set to the baseline's              req/s  (standard error)")
    for way, capacity in values.items():
        print(f"{' + '.join(sorted(way)) or 'nothing':32}  {capacity.mean:6.2f}  ({capacity.standard_error:.2f})")
    shares = shapley(list(settings), {way: capacity.mean for way, capacity in values.items()})
    whole = sum(shares.values())
    print(f"\ndifference: {whole:.2f} req/s, of which (Shapley values)")
    for part, share in shares.items():
        print(f"{part:12} {share:+.2f} req/s  {share / whole:6.1%}")


if __name__ == "__main__":
    main()
