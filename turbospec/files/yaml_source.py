"""Reads a YAML file into plain data and remembers the line that every value came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from yaml.composer import ComposerError

from turbospec.errors import UserError

_TAG = "tag:yaml.org,2002:"
_PLAIN_KEYS = (f"{_TAG}str", f"{_TAG}int")
_SCALARS = [
    (f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$")),
    (f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")),
    (f"{_TAG}int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$")),
    (f"{_TAG}float", re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")),
]
"""What an unquoted scalar can mean besides text: numbers and words as in YAML 1.2's core schema."""


class _PlainLoader(yaml.SafeLoader):
    """`SafeLoader` with two changes.

    Unquoted scalars mean what they mean in YAML 1.2, not 1.1, where `policy: off` says false. Aliases are refused:
    settings need none, and they can make a small file expand without bound.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.yaml_implicit_resolvers = {None: _SCALARS}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        parser = cast(Any, self)  # the parser's methods have no type annotations
        if parser.check_event(yaml.AliasEvent):
            mark = parser.peek_event().start_mark
            raise ComposerError(problem="aliases (*name) are not supported; write the value out", problem_mark=mark)
        return super().compose_node(parent, index)


class YamlSource:
    """One YAML document that holds a mapping, as data and as nodes with their lines (counted from 0).

    Args:
        path: the file.
        kind: what kind of file it is, in the words of errors.

    Raises:
        UserError: the file cannot be read, or is not one YAML mapping with each key given once.
    """

    def __init__(self, path: Path, kind: str = "policy") -> None:
        self.path = path
        text = _read(path, kind)
        try:
            root = _PlainLoader(text).get_single_node()
            self.data: Any = _PlainLoader(text).get_single_data()
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line if error.problem_mark else 0
            raise self.error(line, "", f"not valid YAML ({error.problem})") from error
        except yaml.YAMLError as error:
            raise self.error(0, "", f"not valid YAML ({' '.join(str(error).split())})") from error
        if root is None:
            start = "policy: <kind>" if kind == "policy" else "version: 1"
            raise self.error(0, "", f"the file is empty; start it with `{start}`")
        if not isinstance(root, yaml.MappingNode):
            found = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            raise self.error(_line(root), "", f"this is {found}; a {kind} file holds `field: value` lines")
        self._root = root
        self._check_keys(root)

    def line(self, location: Sequence[int | str]) -> int:
        """Line of the value at `location`; where it has none, of the innermost value around it."""
        node: yaml.Node = self._root
        line = _line(node)
        for part in location:
            found = next((entry for entry in _children(node) if entry[0] == str(part)), None)
            if found is None:
                break
            _, line, node = found
        return line

    def error(self, line: int, field: str, message: str) -> UserError:
        return UserError(f"{self.path}:{line + 1}: {f'{field}: ' if field else ''}{message}")

    def _check_keys(self, node: yaml.Node) -> None:
        seen: dict[str, int] = {}
        for name, line, child in _children(node):
            if name in seen:
                raise self.error(line, name, f"given twice (first on line {seen[name] + 1}); keep one")
            seen[name] = line
            self._check_keys(child)
        if isinstance(node, yaml.MappingNode):
            for key, _ in _pairs(node):
                if key.tag not in _PLAIN_KEYS:
                    raise self.error(_line(key), "", "the name of a field must be plain text")


def _children(node: yaml.Node) -> Iterator[tuple[str, int, yaml.Node]]:
    """Name (index in a list), line and node of everything directly inside a node."""
    if isinstance(node, yaml.MappingNode):
        for key, child in _pairs(node):
            yield str(key.value), _line(key), child
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(cast("list[yaml.Node]", node.value)):
            yield str(index), _line(child), child


def _line(node: yaml.Node) -> int:
    return cast(yaml.Mark, node.start_mark).line


def _pairs(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    return cast("list[tuple[yaml.Node, yaml.Node]]", node.value)


def _read(path: Path, kind: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such {kind} file") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: this is a folder; name a {kind} file in it") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file in UTF-8; a {kind} file is YAML") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read the {kind} file ({error.strerror})") from error
