"""Reads and replaces numbers of a scenario by their dotted names, as in `--set`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from turbospec.errors import UserError
from turbospec.files.suggestions import nearest
from turbospec_sim.scenario import Scenario

DERIVED = "latency."
"""Prefix of fields that may be left out, because the source of the latency derives them."""
BEYOND = 1e15
"""A number above the upper limit of every field."""


def number(scenario: Scenario, field: str) -> float:
    """Value of a field, given or derived by the source of the latency.

    Raises:
        UserError: there is no such field, or it is not a real number above 0.
    """
    node, last = _place(scenario.model_dump(mode="json"), field)
    value = node[last]
    if value is None and field.startswith(DERIVED):
        value = getattr(scenario.latency.step_times(), str(last).removesuffix("_seconds"), None)
    if not isinstance(value, float):
        raise UserError(f"{field}: only real numbers can be fitted, but this is {_shown(value)}")
    if value <= 0.0:
        raise UserError(f"{field}: it is {value:g}, but a fit needs a start above 0; set one in the scenario")
    return value


def upper_limit(scenario: Scenario, field: str) -> float | None:
    """Upper limit of a field by its schema; None for none."""
    try:
        with_numbers(scenario, {field: BEYOND})
    except ValidationError as error:
        limits = [problem.get("ctx", {}) for problem in error.errors()]
        return next((float(limit[kind]) for limit in limits for kind in ("lt", "le") if kind in limit), None)
    return None


def with_numbers(scenario: Scenario, values: Mapping[str, float]) -> Scenario:
    """The scenario with other numbers in some fields.

    Raises:
        UserError: there is no such field.
        ValidationError: the schema does not allow a number.
    """
    document = scenario.model_dump(mode="json")
    for field, value in values.items():
        node, last = _place(document, field)
        node[last] = value
    return Scenario.model_validate(document)


def _place(document: Any, field: str) -> tuple[Any, Any]:
    """The mapping or list that holds a field, and the field's key there."""
    node: Any = {"": document}
    last: Any = ""
    for part in field.split("."):
        node = node[last]
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            last = int(part)
        elif isinstance(node, dict) and part in node:
            last = part
        else:
            known = node if isinstance(node, dict) else map(str, range(len(node) if isinstance(node, list) else 0))
            raise UserError(f"{field}: no field `{part}` in this scenario; {nearest(part, known)}")
    return node, last


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    return f"`{value}`" if isinstance(value, int | str) else "several values"
