"""The `turbospec` command.

A user's mistake is one line on stderr and exit code 2, without a traceback (`turbospec.cli.boundary`). Only the
subcommand that is run is imported, so that `--help` is quick and `turbospec policy` needs no engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer
from typer.main import get_command

from turbospec.cli.boundary import guarded

__all__ = ["COMMANDS", "main"]

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

QUIET_LOADING = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Keeps the progress bars and messages of model loaders off the terminal; the user's environment overrides it."""


def main() -> None:
    """Run the command of `sys.argv` and exit with its status."""
    os.environ.update(QUIET_LOADING | os.environ)
    sys.exit(guarded(lambda: _run(sys.argv[1:] or ["--help"])))


def _run(arguments: Sequence[str]) -> int:
    command = get_command(_application(arguments))
    status = command.main(arguments, prog_name="turbospec", standalone_mode=False)
    return status if isinstance(status, int) else 0


def _application(arguments: Sequence[str]) -> typer.Typer:
    """The command line: the subcommand in `arguments` imported, all others by their line of help alone."""
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    application.callback()(_options)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, (where, summary) in COMMANDS.items():
        if name != wanted:
            application.command(name, help=summary)(lambda: None)
            continue
        module, _, attribute = where.partition(":")
        subcommand = getattr(import_module(module), attribute)
        if isinstance(subcommand, typer.Typer):
            application.add_typer(subcommand, name=name)
        else:
            application.command(name)(subcommand)
    return application


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"turbospec {version('turbospec')}")
        raise typer.Exit


def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """A closed-loop controller for speculative decoding: how many tokens to draft, every step, for every request."""
