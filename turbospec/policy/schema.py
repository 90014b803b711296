"""Reads policy files. What is wrong with one is said in one line: file, line, field, and how to mend it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from turbospec.files.suggestions import nearest
from turbospec.files.yaml_source import YamlSource
from turbospec.policy.acceptance_gate import AcceptanceGateConfig
from turbospec.policy.adaptive import AdaptiveConfig
from turbospec.policy.bandit import BanditConfig
from turbospec.policy.batch_table import BatchTableConfig
from turbospec.policy.confidence import ConfidenceConfig
from turbospec.policy.config import PolicyConfig
from turbospec.policy.ema_tiers import EmaTiersConfig
from turbospec.policy.goodput import GoodputConfig
from turbospec.policy.heuristic import HeuristicConfig
from turbospec.policy.static import OffConfig, StaticConfig

AnyPolicyConfig = (
    AcceptanceGateConfig
    | AdaptiveConfig
    | BanditConfig
    | BatchTableConfig
    | ConfidenceConfig
    | EmaTiersConfig
    | GoodputConfig
    | HeuristicConfig
    | OffConfig
    | StaticConfig
)

_ADAPTER: TypeAdapter[PolicyConfig] = TypeAdapter(Annotated[AnyPolicyConfig, Field(discriminator="policy")])
_KINDS: dict[str, type[PolicyConfig]] = {
    get_args(config.model_fields["policy"].annotation)[0]: config for config in get_args(AnyPolicyConfig)
}
_MISSING = ("missing", "too_short")


def read_policy(path: Path) -> PolicyConfig:
    """Read and check a policy file.

    Raises:
        UserError: one line that names the file, the line and the field, and says how to mend it.
    """
    source = YamlSource(path)
    try:
        # Through JSON, because only there is pydantic strict about scalars (no 3 from "3" or `yes`) while it still
        # takes a list for a tuple.
        return _ADAPTER.validate_json(json.dumps(source.data, default=str), strict=True)
    except ValidationError as error:
        # Of several problems say the first, but what is missing last: it may be there, misspelt or refused itself.
        ranked = sorted((problem["type"] in _MISSING, *_explain(source, problem)) for problem in error.errors())
        _, line, field, message = ranked[0]
        raise source.error(line, field, message) from error


def json_schema() -> dict[str, Any]:
    """JSON schema of a policy file, for editors."""
    schema = _ADAPTER.json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "TurboSpec policy", **schema}


def _explain(source: YamlSource, problem: ErrorDetails) -> tuple[int, str, str]:
    """Line (from 0), field and words of a validation error."""
    context = problem.get("ctx", {})
    if problem["type"] == "union_tag_not_found":
        return source.line([]), "policy", f"missing; add it (known: {', '.join(sorted(_KINDS))})"
    if problem["type"] == "union_tag_invalid":
        kind = str(context["tag"])
        return source.line(["policy"]), "policy", f"unknown policy `{kind}`; {nearest(kind, _KINDS)}"
    kind, *location = problem["loc"]  # the first part is the policy's kind
    match problem["type"]:
        case "extra_forbidden":
            message = f"unknown field; {nearest(str(location[-1]), _fields(str(kind), location[:-1]))}"
        case "missing":
            expected = _fields(str(kind), location[:-1])[str(location[-1])]
            value = expected.get("const", f"<{expected.get('type', 'value')}>")
            message = f"missing; add `{location[-1]}: {value}`"
        case "value_error":
            message = str(context["error"])
        case _:
            said = problem["msg"]
            message = f"{said[0].lower()}{said[1:]} (got {json.dumps(problem['input'])[:60]})"
    return source.line(location), ".".join(map(str, location)), message


def _fields(kind: str, location: Sequence[int | str]) -> dict[str, dict[str, Any]]:
    """JSON schemas of the fields that a policy takes at a place in its file, by name."""
    schema = node = _KINDS[kind].model_json_schema()
    for part in location:
        node = node.get("properties", {}).get(part) or node.get("items") or node.get("additionalProperties", {})
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node.get("properties", {})
