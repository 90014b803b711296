"""Options of the commands that simulate."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turbospec.errors import UserError

if TYPE_CHECKING:
    from turbospec_sim.scenario import Scenario


MOST_SEEDS = 10_000
MOST_RATES = 1000
MOST_JOBS = 4 * (os.cpu_count() or 1)
"""More processes would only take memory."""
LOWEST_RATE, HIGHEST_RATE = 1e-6, 1e9

Jobs = Annotated[int, typer.Option(min=1, max=MOST_JOBS, help="Processes on this machine.")]
Policies = Annotated[
    list[str] | None,
    typer.Option(help="Name or file of a policy, or oracle or best_static; repeatable. Default: the scenario's."),
]
Rates = Annotated[list[str] | None, typer.Option(help="Requests/s, separated by commas. Default: the scenario's.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="field=value, used in place of the scenario's, as server.max_num_seqs=1024; repeatable."
    ),
]


def checked_policies(names: Sequence[str], scenarios: Sequence[tuple[str, Scenario]]) -> list[str]:
    """Each policy once; empty for the scenarios' own policies, which are checked too.

    Raises:
        UserError: there is no such policy, or its file is wrong.
    """
    from turbospec_sim.run import check_policy

    for name in names:
        check_policy(name)
    for scenario_name, scenario in scenarios if not names else ():
        try:
            check_policy(scenario.policy)
        except UserError as error:
            raise UserError(f"scenario `{scenario_name}`: {error}") from error
    return [*dict.fromkeys(names)]


def checked_rates(texts: Sequence[str], scenarios: Sequence[tuple[str, Scenario]]) -> list[float]:
    """Requests/s, from numbers separated by commas.

    Raises:
        UserError: a text is not a rate, or no scenario has rates.
    """
    rates: list[float] = []
    if ",".join(texts).count(",") >= MOST_RATES:
        raise UserError(f"--rates: more than {MOST_RATES} rates; give fewer")
    for text in ",".join(texts).split(",") if texts else ():
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise UserError(
                f"--rates {text[:40] or '(empty)'}: not a rate; give requests/s, above 0 (from {LOWEST_RATE:g} to "
                f"{HIGHEST_RATE:g})"
            )
        rates.append(rate)
    if rates and not any(scenario.workload.has_rates for _, scenario in scenarios):
        raise UserError("--rates: none of these scenarios has rates (closed loops and traces have none); leave it out")
    return [*dict.fromkeys(rates)]


def input_files(
    sources: Sequence[str], policies: Sequence[str], scenarios: Sequence[tuple[str, Scenario]]
) -> list[Path]:
    """All files that a simulation reads: of scenarios (by name or path), of policies, and what scenarios refer to."""
    from turbospec.policy import find_policy
    from turbospec_sim.run import BEST_STATIC, ORACLE
    from turbospec_sim.scenario_file import find_scenario

    named = {*policies, *(scenario.policy for _, scenario in scenarios)} - {BEST_STATIC, ORACLE}
    files = [path for _, scenario in scenarios for path in scenario.files]
    return [*map(find_scenario, sources), *map(find_policy, sorted(named)), *files]
