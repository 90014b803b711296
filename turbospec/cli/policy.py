"""`turbospec policy`: check, show and describe policy files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from turbospec.cli.console import print_json, printable, stderr, stdout, table
from turbospec.errors import UserError
from turbospec.policy import find_policy, json_schema, read_policy
from turbospec.policy.registered import registration_faults

app = typer.Typer(help="Check, show and describe policy files.")


@app.command()
def check(files: Annotated[list[Path], typer.Argument(help="Policy files.", metavar="FILE...")]) -> None:
    """Check policy files; exit with 2 if one is invalid."""
    for fault in registration_faults():
        stderr.print(printable(fault), style="yellow", soft_wrap=True)
    invalid = False
    for file in files:
        try:
            config = read_policy(file)
        except UserError as error:
            invalid = True
            stderr.print(printable(str(error)), style="red", soft_wrap=True)
        else:
            kind = config.model_dump()["policy"]
            stdout.print(printable(f"{file}: valid ({kind})"), style="green", soft_wrap=True)
    if invalid:
        raise typer.Exit(2)


@app.command()
def show(
    policy: Annotated[str, typer.Argument(help="A policy file, or the name of a shipped policy.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print a policy's settings, defaults included."""
    path = find_policy(policy)
    settings = read_policy(path).model_dump(mode="json")
    if as_json:
        print_json(settings, digits=None)
        return
    rows = table(printable(str(path)), "field", "value")
    for field, value in _flat(settings):
        rows.add_row(printable(field), printable(str(value)))
    stdout.print(rows)


@app.command()
def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    print_json(json_schema(), digits=None)


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of everything in nested settings."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value
