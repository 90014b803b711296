"""The command line of all subcommands, of which the one that is run is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer
from typer.main import get_command

COMMANDS = {
    "generate": ("turbospec.cli.generate:generate", "Stream one prompt and watch the controller choose."),
    "bench": ("turbospec.cli.bench:app", "Compare policies on the same requests, side by side."),
    "profile": ("turbospec.cli.profile:profile", "Measure step times and fit the latency model."),
    "simulate": ("turbospec.cli.simulate:simulate", "Run policies on simulated servers and traffic."),
    "capacity": ("turbospec.cli.capacity:capacity", "Find the highest load that simulated servers serve within SLO."),
    "replay": ("turbospec.cli.replay:replay", "Estimate a recorded run's results under other policies."),
    "tune": ("turbospec.cli.tune:tune", "Search the best settings of a policy on simulated servers."),
    "calibrate": ("turbospec.cli.calibrate:calibrate", "Fit simulated servers to measured ones."),
    "repeats": ("turbospec.cli.repeats:repeats", "Fit what a look-up finds in recorded text, for simulations."),
    "policy": ("turbospec.cli.policy:app", "Check, show and describe policy files."),
    "selftest": ("turbospec.cli.selftest:app", "Test TurboSpec in your vLLM: outputs, drafter passes, speed."),
    "doctor": ("turbospec.cli.doctor:doctor", "Show what drafts are worth on a vLLM server."),
    "trace": ("turbospec.cli.trace:trace", "Summarise a decision trace."),
}


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    command = get_command(application(arguments))
    status = command.main(arguments, prog_name="turbospec", standalone_mode=False)
    return status if isinstance(status, int) else 0


def application(arguments: Sequence[str]) -> typer.Typer:
    """The command line: the subcommand in `arguments` imported, all others by their line of help alone."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.callback()(_options)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, (where, summary) in COMMANDS.items():
        if name != wanted:
            app.command(name, help=summary)(lambda: None)
            continue
        module, _, attribute = where.partition(":")
        subcommand = getattr(import_module(module), attribute)
        if isinstance(subcommand, typer.Typer):
            app.add_typer(subcommand, name=name)
        else:
            app.command(name)(subcommand)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"turbospec {version('turbospec')}")
        raise typer.Exit


def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """A closed-loop controller for speculative decoding: how many tokens to draft, every step, for every request."""
