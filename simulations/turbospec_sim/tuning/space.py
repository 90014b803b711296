"""Search space of tuning: some of a policy's numbers, each between two bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turbospec.errors import UserError
from turbospec.files.suggestions import nearest
from turbospec.policy import PolicyConfig
from turbospec.policy.config import CEILING
from turbospec_sim.limits import LARGEST, SMALLEST

MARGIN = 1e-3
"""Share of a range between a bound that the field may not take itself and the nearest number that is searched."""

DIGITS = 4
"""Significant digits of a setting."""
FORM = "write field=low:high or field=low:high:log"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One number of a policy, mapped to a coordinate between 0 and 1."""

    field: str
    low: float
    high: float
    log: bool
    whole: bool
    """Whether it is an integer."""

    @property
    def choices(self) -> float:
        """Number of different settings."""
        return self.high - self.low + 1.0 if self.whole else math.inf

    def all_places(self) -> list[float]:
        """The coordinates of all settings of an integer."""
        return [self.place(value) for value in range(int(self.low), int(self.high) + 1)]

    def value(self, place: float) -> int | float:
        """The setting at a coordinate; the settings of an integer have equal intervals."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole and not self.log else (self.low, self.high)
        number = low * (high / low) ** place if self.log else low + (high - low) * place
        if self.whole:
            return int(min(max(round(number), self.low), self.high))
        return min(max(float(f"{number:.{DIGITS}g}"), self.low), self.high)

    def place(self, value: float) -> float:
        """The coordinate of a setting; 0 or 1 for a setting out of bounds."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def search_space(config: PolicyConfig, texts: Sequence[str]) -> list[Dimension]:
    """The dimensions given by the user, else all numbers that the policy's schema bounds on both sides.

    Args:
        config: the policy.
        texts: `field=low:high` or `field=low:high:log`.

    Raises:
        UserError: a text is invalid, or none is given and the schema bounds no number.
    """
    numbers = _numbers(type(config))
    if texts:
        space = [_parsed(text, numbers) for text in texts]
        if len({dimension.field for dimension in space}) < len(space):
            raise UserError("--search: a field is named twice; keep one")
        return space
    space: list[Dimension] = []
    for name, schema in numbers.items():
        bounds = _bounds(schema)
        if bounds is not None and not schema.keys() & CEILING.keys():
            space.append(Dimension(name, *bounds, False, schema["type"] == "integer"))
    if not space:
        kind = config.model_dump()["policy"]
        instead = f"name some with --search (known: {', '.join(numbers)})" if numbers else "there is nothing to tune"
        raise UserError(f"no number of the policy `{kind}` has bounds of its own; {instead}")
    return space


def _bounds(schema: dict[str, Any]) -> tuple[float, float] | None:
    """The range of a bounded number; None without two bounds. A bound that it may not take itself is left out."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None or high is None:
        return None
    margin = 1.0 if schema["type"] == "integer" else MARGIN * (high - low)
    return float(low + margin * ("minimum" not in schema)), float(high - margin * ("maximum" not in schema))


def _numbers(kind: type[PolicyConfig]) -> dict[str, dict[str, Any]]:
    """Schemas of a policy's numeric fields, by name."""
    numbers: dict[str, dict[str, Any]] = {}
    for name, schema in kind.model_json_schema()["properties"].items():
        if "const" in schema:
            continue
        for member in schema.get("anyOf", [schema]):
            if member.get("type") in ("integer", "number"):
                numbers[name] = member
    return numbers


def _parsed(text: str, numbers: dict[str, dict[str, Any]]) -> Dimension:
    field, equals, bounds = text.partition("=")
    parts = bounds.split(":")
    if not equals or len(parts) not in (2, 3) or parts[2:] not in ([], ["log"]):
        raise UserError(f"--search {text}: {FORM}")
    if field not in numbers:
        raise UserError(f"--search {text}: `{field}` is not a number of the policy; {nearest(field, numbers)}")
    try:
        low, high = float(parts[0]), float(parts[1])
    except ValueError:
        raise UserError(f"--search {text}: bounds are numbers; {FORM}") from None
    schema, log = numbers[field], parts[2:] == ["log"]
    if not low < high:
        raise UserError(f"--search {text}: the first bound must be below the second")
    if max(abs(low), abs(high)) > LARGEST or (log and 0.0 < low < SMALLEST):
        raise UserError(f"--search {text}: bounds must be between {SMALLEST:g} and {LARGEST:g}")
    if log and low <= 0.0:
        raise UserError(f"--search {text}: a logarithmic search needs a lower bound above 0")
    whole = schema["type"] == "integer"
    if whole and not (low.is_integer() and high.is_integer()):
        raise UserError(f"--search {text}: `{field}` is an integer; give integer bounds")
    if low < schema.get("minimum", -math.inf) or low <= schema.get("exclusiveMinimum", -math.inf):
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        raise UserError(f"--search {text}: `{field}` cannot be as low as {low:g} (its bound is {least:g})")
    if high > schema.get("maximum", math.inf) or high >= schema.get("exclusiveMaximum", math.inf):
        most = schema.get("maximum", schema.get("exclusiveMaximum"))
        raise UserError(f"--search {text}: `{field}` cannot be as high as {high:g} (its bound is {most:g})")
    return Dimension(field, low, high, log, whole)
