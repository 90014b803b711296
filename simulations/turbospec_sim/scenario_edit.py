"""Replaces numbers in the text of a scenario file; everything else, comments included, is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode, SequenceNode

from turbospec.errors import UserError


def with_values(text: str, values: Mapping[str, float]) -> str:
    """The text of a scenario file with other numbers in some fields.

    Args:
        text: a valid scenario file.
        values: by dotted field name; a field that is not in the file is added to its mapping, which must exist.

    Raises:
        UserError: the file has a name in place of that mapping, such as that of a GPU.
    """
    yaml = YAML(typ="safe", pure=True)
    for field, value in values.items():
        start, end, new = _change(text, yaml.compose(text), field.split("."), f"{value:.4g}")
        text = text[:start] + new + text[end:]
    return text


def _change(text: str, node: Any, parts: list[str], value: str, parent: str = "") -> tuple[int, int, str]:
    """Begin and end of the text to replace, and the replacement."""
    part, *rest = parts
    key = child = None
    if isinstance(node, ScalarNode):
        given = f"the name `{node.value}`" if node.value else "nothing"
        raise UserError(f"`{parent}` is {given}; write its fields out, so that `{part}` can be set")
    if isinstance(node, SequenceNode):
        child = node.value[int(part)]
    else:
        key, child = next((pair for pair in node.value if pair[0].value == part), (None, None))
    if child is None:
        first = node.value[0][0].start_mark
        between = ", " if node.flow_style else "\n" + " " * first.column
        return first.index, first.index, f"{part}: {value}{between}"
    if rest:
        return _change(text, child, rest, value, part)
    start, end = child.start_mark.index, child.end_mark.index
    if start == end and key is not None:  # a blank field, whose marks are those of what follows
        start = end = text.index(":", key.end_mark.index) + 1
        value = f" {value}"
    return start, end, value
