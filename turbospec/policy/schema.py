"""Reads and validates policy files. An error is one line: file, line, field, what is wrong, and how to fix it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import ErrorDetails

from turbospec.errors import UserError
from turbospec.files.suggestions import nearest
from turbospec.files.yaml_source import YamlSource
from turbospec.policy.config import PolicyConfig
from turbospec.policy.kinds import BUILT_IN, config_class, known_kinds
from turbospec.policy.registered import (
    fault_of_another_package,
    load_registered,
    registered_kinds,
    registration_faults,
)

log = logging.getLogger("turbospec")

_MISSING = ("missing", "too_short")
_SHOWN = 60
"""Characters of a name or a value in an error."""


def read_policy(path: Path) -> PolicyConfig:
    """Read and validate a policy file.

    Raises:
        UserError: one line with file, line, field, what is wrong, and how to fix it.
    """
    source = YamlSource(path)
    settings = _class_of(source)
    try:
        # Through JSON: only then is pydantic strict about scalars (3 is not taken from "3") and still accepts a list
        # for a tuple.
        return settings.model_validate_json(json.dumps(source.data, default=str), strict=True)
    except ValidationError as error:
        # Report the first of several problems, but a missing field last: it may be in the file, misspelt or invalid.
        problem = min(
            error.errors(include_url=False),
            key=lambda problem: (problem["type"] in _MISSING, source.line(problem["loc"]), str(problem["loc"])),
        )
        field = ".".join(_short(str(part)) for part in problem["loc"])
        raise source.error(source.line(problem["loc"]), field, _explain(settings, problem)) from error
    except (Exception, SystemExit) as error:  # a validator of another package may raise anything
        fault = fault_of_another_package(settings, "fails on these settings", error)
        if fault is None:
            raise
        raise source.error(source.line([]), "", fault) from error


def json_schema() -> dict[str, Any]:
    """JSON schema of a policy file, for editors.

    Includes the policies of other packages. An invalid registration is left out and logged as a warning.
    """
    classes = {**BUILT_IN, **_registered_classes()}
    references, definitions = models_json_schema([(settings, "validation") for settings in classes.values()])
    places = {kind: references[settings, "validation"] for kind, settings in classes.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "TurboSpec policy",
        **definitions,
        "discriminator": {"mapping": {kind: place["$ref"] for kind, place in places.items()}, "propertyName": "policy"},
        "oneOf": list(places.values()),
    }


def _registered_classes() -> dict[str, type[PolicyConfig]]:
    faults, classes = registration_faults(), dict[str, type[PolicyConfig]]()
    for kind in registered_kinds():
        try:
            settings = load_registered(kind)
        except UserError as error:
            faults.append(str(error))
        else:
            assert settings is not None  # the kind is registered
            classes[kind] = settings
    for fault in faults:
        log.warning("policy left out: %s", fault)
    return classes


def _class_of(source: YamlSource) -> type[PolicyConfig]:
    """The settings class of the policy that a file names."""
    if "policy" not in source.data:
        raise source.error(source.line([]), "policy", f"missing; add it (known: {', '.join(known_kinds())})")
    kind, line = source.data["policy"], source.line(["policy"])
    try:
        settings = config_class(kind) if isinstance(kind, str) else None
    except UserError as error:
        raise source.error(line, "policy", str(error)) from error
    if settings is None:
        name = _short(kind if isinstance(kind, str) else json.dumps(kind, default=str))
        lacking = ", registered by no installed package" if "." in name else ""
        raise source.error(line, "policy", f"unknown policy `{name}`{lacking}; {nearest(name, known_kinds())}")
    return settings


def _explain(settings: type[PolicyConfig], problem: ErrorDetails) -> str:
    """What is wrong, and how to fix it."""
    location = problem["loc"]
    match problem["type"]:
        case "extra_forbidden":
            known = _fields(settings, location[:-1])
            return f"unknown field; {nearest(_short(str(location[-1])), known) if known else 'remove it'}"
        case "missing":
            expected = _fields(settings, location[:-1]).get(str(location[-1]), {})
            value = expected.get("const", f"<{expected.get('type', 'value')}>")
            return f"missing; add `{location[-1]}: {value}`"
        case "value_error":
            return str(problem.get("ctx", {})["error"])
        case _:
            said = problem["msg"]
            return f"{said[0].lower()}{said[1:]} (got {json.dumps(problem['input'], default=repr)[:_SHOWN]})"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _fields(settings: type[PolicyConfig], location: Sequence[int | str]) -> dict[str, dict[str, Any]]:
    """JSON schemas of the fields at a location in a policy file, by name; empty where the schema does not tell."""
    schema = node = settings.model_json_schema()
    for part in location:
        node = node.get("properties", {}).get(part) or node.get("items") or node.get("additionalProperties", {})
        # An optional block: the schema of the block, or null.
        node = next((member for member in node.get("anyOf", ()) if member.get("type") != "null"), node)
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node.get("properties", {})
