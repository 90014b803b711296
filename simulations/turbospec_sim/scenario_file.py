"""Finds and reads scenario files. An error is one line: file, line, field, and the correction."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from turbospec.errors import UserError
from turbospec.files.reading import parse_json
from turbospec.files.shipped import find_file, shipped_files
from turbospec.files.suggestions import nearest
from turbospec.files.yaml_source import YamlSource
from turbospec_sim.scenario import Scenario

Location = list[str | int]

_MISSING = ("missing", "too_short")
_SHOWN = 60
"""Characters of an input that an error shows."""
_MAX_PARTS = 20
"""Parts of a setting's field; no field of a scenario has so many."""


def shipped_scenarios() -> dict[str, Path]:
    """The scenario files that come with TurboSpec, by name (the file's name without `.yaml`)."""
    return shipped_files("turbospec_sim", "scenarios")


def find_scenario(source: str) -> Path:
    """Path of a scenario file, given its path or the name of a shipped one.

    Raises:
        UserError: a bare name that is neither shipped nor a file.
    """
    return find_file(source, shipped_scenarios(), "scenario")


def named_scenarios(sources: Sequence[str], settings: Sequence[str] = ()) -> list[tuple[str, Scenario]]:
    """Scenarios with the names of their files, which results are listed under.

    Raises:
        UserError: one of them cannot be found or read, or two have the same name.
    """
    paths = [find_scenario(source) for source in sources]
    if len({path.stem for path in paths}) < len(paths):
        raise UserError("two of the scenarios have the same file name, which results are listed under; rename one")
    return [(path.stem, read_scenario(path, settings)) for path in paths]


def read_scenario(path: Path, settings: Sequence[str] = ()) -> Scenario:
    """Read and check a scenario file.

    Args:
        path: the file.
        settings: `field.field=value`, values to use in place of the file's; each is JSON, or text.

    Raises:
        UserError: one line with the file, the line and the field, or the setting, and the correction.
    """
    source = YamlSource(path, "scenario")
    document = source.data
    given: list[tuple[Location, str]] = []
    for setting in settings:
        given.append(_set(document, setting))
        if given[-1][0] in [place for place, _ in given[:-1]]:
            raise UserError(f"--set {_short(setting)}: this field is set twice; keep one")
    try:
        # Through JSON: only then is pydantic strict about scalars and still accepts a list for a tuple.
        text = json.dumps(document, default=str)
        return Scenario.model_validate_json(text, strict=True, context={"folder": path.parent})
    except ValidationError as error:
        # Report the first problem, but a missing field last: it may be there, misspelt or invalid itself.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] in _MISSING)
        location, message = _explain(document, problems[0])
        field = ".".join(map(_short, location))
        if settings and not location:
            read_scenario(path)  # names the file and the line, if it is invalid without the settings too
        for place, setting in given:
            if place[: len(location)] == location or location[: len(place)] == place:
                said = f"{field}: {message}" if field else message
                raise UserError(f"--set {_short(setting)}: {said}") from error
        raise source.error(source.line(location), field, message) from error


def _set(document: Any, setting: str) -> tuple[Location, str]:
    """Set a field of the document in place; its location, and the setting."""
    field, equals, text = setting.partition("=")
    if not equals or not all(field.split(".")):
        raise UserError(f"--set {_short(setting)}: write it as field=value, with dots between nested fields")
    if field.count(".") >= _MAX_PARTS:
        raise UserError(f"--set {_short(setting)}: a field has at most {_MAX_PARTS} parts")
    try:
        value = parse_json(text)
    except json.JSONDecodeError:
        value = text
    except ValueError as error:
        raise UserError(f"--set {_short(setting)}: {error}") from error
    place: Location = []
    node = document
    *parents, last = field.split(".")
    for part in parents:
        key = _key(node, part, setting, place)
        place.append(key)
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
    key = _key(node, last, setting, place)
    node[key] = value
    return [*place, key], setting


def _key(node: Any, part: str, setting: str, place: Location) -> str | int:
    """A field's name, or an index of a list."""
    if isinstance(node, dict):
        return part
    where = ".".join(map(str, place))
    if not isinstance(node, list):
        raise UserError(f"--set {_short(setting)}: `{where}` is a single value and has no field `{part}`")
    index = int(part) if part.isdecimal() and len(part) < len(str(sys.maxsize)) else len(node)
    if index >= len(node):
        raise UserError(
            f"--set {_short(setting)}: `{where}` has {len(node)} entries; use an index from 0 to {len(node) - 1}"
        )
    return index


def _explain(document: Any, problem: ErrorDetails) -> tuple[Location, str]:
    """Location and message of a validation error."""
    context = problem.get("ctx", {})
    location, fields = _walk(document, problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return location, f"unknown field; {nearest(_short(location[-1]), fields)}"
        case "missing":
            expected = fields.get(str(problem["loc"][-1]), {})
            value = expected.get("const", f"<{expected.get('type', 'value')}>")
            return [*location[:-1], str(problem["loc"][-1])], f"missing; add `{problem['loc'][-1]}: {value}`"
        case "union_tag_not_found":
            tag = str(context["discriminator"]).strip("'")
            return [*location, tag], f"missing; add `{tag}: <{'|'.join(_tags(fields))}>`"
        case "union_tag_invalid":
            tag, known = str(context["discriminator"]).strip("'"), str(context["expected_tags"]).replace("'", "")
            return [
                *location,
                tag,
            ], f"unknown {tag} `{_short(context['tag'])}`; {nearest(_short(context['tag']), known.split(', '))}"
        case "value_error":
            return location, str(context["error"])
        case _:
            said = problem["msg"]
            return location, f"{said[0].lower()}{said[1:]} (got {_short(json.dumps(problem['input'], default=str))})"


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _walk(document: Any, places: Sequence[str | int]) -> tuple[Location, dict[str, Any]]:
    """An error's location without the names of union members, and the known fields of its innermost mapping."""
    schema = Scenario.model_json_schema()
    node, location, fields = _resolved(schema, schema), Location(), {}
    for part in places:
        kinds = node.get("discriminator", {}).get("mapping", {})
        if part in kinds and not (isinstance(document, dict) and part in document):
            node = _resolved(schema, {"$ref": kinds[part]})
            continue
        fields = node.get("properties", {})
        location.append(part)
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and isinstance(part, int):
            document = document[part]
        inner = fields.get(str(part)) or node.get("items", {})
        node = _resolved(schema, inner)
    kinds = node.get("discriminator", {}).get("mapping", {})
    return location, fields if not kinds else {kind: {} for kind in kinds}


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A node of the schema with its reference resolved and `null` removed from its alternatives."""
    if "anyOf" in node:
        node = next((member for member in node["anyOf"] if member.get("type") != "null"), node)
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node


def _tags(fields: dict[str, Any]) -> list[str]:
    return sorted(fields)
