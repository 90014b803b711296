# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# ruamel.yaml has types for its classes, and none for much of what they hold.
"""Reads a YAML file as plain data and keeps the line of every value, for error messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError, MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from turbospec.errors import UserError

_PLAIN_KEYS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:int")
_MAX_DEPTH = 50
"""Nesting of mappings and lists. Deeper ones would exhaust Python's stack."""


class _NoAliases(Composer):
    """Refuses aliases: settings need none, and they can make a small file expand without bound."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.parser.check_event(AliasEvent):
            mark = self.parser.peek_event().start_mark
            raise ComposerError(problem="aliases (*name) are not supported; write the value out", problem_mark=mark)
        return super().compose_node(parent, index)


def _yaml() -> YAML:
    """A reader of YAML 1.2 that builds plain data only. Pure Python: libyaml's reader knows YAML 1.1 alone."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _NoAliases
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
        text = _read(path, kind)
        try:
            root = _yaml().compose(text)
            self.data: Any = _yaml().load(text)
        except MaxDepthExceededError as error:
            raise self.error(error.problem_mark.line, "", f"nested more than {_MAX_DEPTH} levels deep") from error
        except MarkedYAMLError as error:
            line = error.problem_mark.line if error.problem_mark else 0
            raise self.error(line, "", f"not valid YAML ({error.problem})") from error
        except (YAMLError, ValueError) as error:  # ValueError: a date or number in form, and not in value
            raise self.error(0, "", f"not valid YAML ({' '.join(str(error).split())})") from error
        if root is None:
            start = "policy: <kind>" if kind == "policy" else "version: 1"
            raise self.error(0, "", f"the file is empty; start it with `{start}`")
        if not isinstance(root, MappingNode):
            found = "a list" if isinstance(root, SequenceNode) else "a single value"
            raise self.error(_line(root), "", f"this is {found}; a {kind} file holds `field: value` lines")
        self._root = root
        self._check_keys(root)

    def line(self, location: Sequence[int | str]) -> int:
        """Line of the value at `location`; where there is no such value, of the innermost one around it."""
        node: Node = self._root
        line = _line(node)
        for part in location:
            found = next((entry for entry in _children(node) if entry[0] == str(part)), None)
            if found is None:
                break
            _, line, node = found
        return line

    def error(self, line: int, field: str, message: str) -> UserError:
        """An error line that names the file, the line (given from 0, shown from 1) and the field, if not empty."""
        return UserError(f"{self.path}:{line + 1}: {f'{field}: ' if field else ''}{message}")

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
