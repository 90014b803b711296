"""Options of the commands that simulate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from turbospec.errors import UserError

if TYPE_CHECKING:
    from turbospec_sim.scenario import Scenario


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
    for text in ",".join(texts).split(",") if texts else ():
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        if not 0.0 < rate < math.inf:
            raise UserError(f"--rates {text}: not a rate; give requests/s, above 0")
        rates.append(rate)
    if rates and not any(scenario.workload.has_rates for _, scenario in scenarios):
        raise UserError("--rates: none of these scenarios has rates (closed loops and traces have none); leave it out")
    return [*dict.fromkeys(rates)]
