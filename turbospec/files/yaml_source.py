# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# ruamel.yaml has types for its classes, and none for much of what they hold.
"""Reads a YAML file as plain data and keeps the line of every value, for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError, MaxDepthExceededError
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from turbospec.errors import UserError
from turbospec.files.reading import MAX_INTEGER, MEBIBYTE, read_text

_FORBIDDEN = re.compile("[\0\ud800-\udfff]")
_PLAIN_KEYS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:int")
_MAX_DEPTH = 50
"""Nesting of mappings and lists. Deeper ones would exhaust Python's stack."""
_MAX_BYTES = 1 * MEBIBYTE
_MAX_VALUES = 20_000
"""Keys, values, mappings and lists of a file. Reading more takes many seconds."""


class _PlainComposer(Composer):
    """Refuses what settings do not need: endless files, and aliases, which let a small file expand without bound."""

    values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.parser.check_event(AliasEvent):
            mark = self.parser.peek_event().start_mark
            raise ComposerError(problem="aliases (*name) are not supported; write the value out", problem_mark=mark)
        self.values += 1
        if self.values > _MAX_VALUES:
            mark = self.parser.peek_event().start_mark
            raise ComposerError(problem=f"more than {_MAX_VALUES} keys and values", problem_mark=mark)
        return super().compose_node(parent, index)


class _PlainConstructor(SafeConstructor):
    """Names the line of a scalar that is not of its type, or that no file name or message can hold."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except MarkedYAMLError:
            raise
        except Exception as error:  # a scalar whose tag or form is that of another type may raise anything
            said = f"not a value of its type: {str(node.value)[:40]}"
            raise ConstructorError(problem=said, problem_mark=node.start_mark) from error
        said = None
        if isinstance(value, str) and _FORBIDDEN.search(value):
            said = "a NUL character or half of a surrogate pair in a text"
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            said = f"the number {str(node.value)[:20]}… is out of range"
        if said is not None:
            raise ConstructorError(problem=said, problem_mark=node.start_mark)
        return value


def _yaml() -> YAML:
    """A reader of YAML 1.2 that builds plain data only. Pure Python: libyaml's reader knows YAML 1.1 alone."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _PlainComposer
    yaml.Constructor = _PlainConstructor
    yaml.max_depth = _MAX_DEPTH
    yaml.allow_duplicate_keys = True  # `YamlSource` refuses them and names both lines
    return yaml


class YamlSource:
    """A YAML file that holds one mapping. Lines are counted from 0.

    Args:
        path: the file.
        kind: what errors call such a file.

    Raises:
        UserError: the file cannot be read, or is not one YAML mapping with each key given once.
    """

    def __init__(self, path: Path, kind: str = "policy") -> None:
        self.path = path
        self._children: dict[int, dict[str, tuple[int, Node]]] = {}
        """Line and node of the children of a node, by the node's id: filled where a line is asked for."""
        text = read_text(path, f"{kind} file", limit=_MAX_BYTES)
        try:
            yaml = _yaml()
            self._root = self._checked(yaml.compose(text), kind)
            # After the checks, because building a merge key (<<) changes the nodes.
            self.data: Any = yaml.constructor.construct_document(self._root)
        except MaxDepthExceededError as error:
            raise self.error(error.problem_mark.line, "", f"nested more than {_MAX_DEPTH} levels deep") from error
        except MarkedYAMLError as error:
            line = error.problem_mark.line if error.problem_mark else 0
            raise self.error(line, "", f"not valid YAML ({error.problem})") from error
        except (YAMLError, ValueError, OverflowError) as error:  # the last two: a number of a character that is none
            raise self.error(0, "", f"not valid YAML ({' '.join(str(error).split())})") from error
        if not isinstance(self.data, dict):  # a tag may make something else of a mapping
            raise self.error(_line(self._root), "", f"not `field: value` lines (tag {self._root.tag}); remove the tag")

    def line(self, location: Sequence[int | str]) -> int:
        """Line of the value at `location`; where there is no such value, of the innermost one around it."""
        node: Node = self._root
        line = _line(node)
        for part in location:
            if id(node) not in self._children:
                self._children[id(node)] = {name: (line, child) for name, line, child in _children(node)}
            found = self._children[id(node)].get(str(part))
            if found is None:
                break
            line, node = found
        return line

    def error(self, line: int, field: str, message: str) -> UserError:
        """An error line that names the file, the line (given from 0, shown from 1) and the field, if not empty."""
        return UserError(f"{self.path}:{line + 1}: {f'{field}: ' if field else ''}{message}")

    def _checked(self, root: Node | None, kind: str) -> MappingNode:
        if root is None:
            start = "policy: <kind>" if kind == "policy" else "version: 1"
            raise self.error(0, "", f"the file is empty; start it with `{start}`")
        if not isinstance(root, MappingNode):
            found = "a list" if isinstance(root, SequenceNode) else "a single value"
            raise self.error(_line(root), "", f"this is {found}; a {kind} file holds `field: value` lines")
        self._check_keys(root)
        return root

    def _check_keys(self, node: Node) -> None:
        seen: dict[str, int] = {}
        for name, line, child in _children(node):
            if name in seen:
                raise self.error(line, name, f"given twice (first on line {seen[name] + 1}); keep one")
            seen[name] = line
            self._check_keys(child)
        if isinstance(node, MappingNode):
            for key, _ in _pairs(node):
                if key.tag not in _PLAIN_KEYS:
                    raise self.error(_line(key), "", "the name of a field must be plain text")


def _children(node: Node) -> Iterator[tuple[str, int, Node]]:
    """Name (index in a list), line and node of each child of a node."""
    if isinstance(node, MappingNode):
        for key, child in _pairs(node):
            yield str(key.value), _line(key), child
    elif isinstance(node, SequenceNode):
        for index, child in enumerate(cast("list[Node]", node.value)):
            yield str(index), _line(child), child


def _line(node: Node) -> int:
    return cast(int, node.start_mark.line)


def _pairs(node: MappingNode) -> list[tuple[Node, Node]]:
    return cast("list[tuple[Node, Node]]", node.value)
