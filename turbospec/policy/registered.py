"""Policies of other packages, which register them by entry points in the group `turbospec.policies`.

An entry point's name is what policy files say, `<package>.<policy>`; its value is the policy's `PolicyConfig` subclass.
"""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, get_args, get_origin

from turbospec.errors import UserError
from turbospec.policy.config import PolicyConfig

GROUP = "turbospec.policies"


def registered_kinds() -> list[str]:
    """Names that policy files can use. Imports none of the packages."""
    return [name for name, found in _entries().items() if _fault_of_name(found) is None]


def registration_faults() -> list[str]:
    """One line for each name that no policy file can use, and the mend. Imports none of the packages."""
    faults = ((found[0], _fault_of_name(found)) for found in _entries().values())
    return [str(_error(entry, fault)) for entry, fault in faults if fault is not None]


def load_registered(name: str) -> type[PolicyConfig] | None:
    """Import the policy that is registered under a name; None where there is none.

    Raises:
        UserError: the registration is faulty; one line that names the package and the entry point.
    """
    found = _entries().get(name)
    if found is None:
        return None
    entry, fault = found[0], _fault_of_name(found)
    if fault is not None:
        raise _error(entry, fault)
    try:
        loaded = entry.load()
    except Exception as error:  # importing another package's code may raise anything
        raise _error(entry, f"does not load ({type(error).__name__}: {error}); mend `{entry.value}`") from error
    if not (isinstance(loaded, type) and issubclass(loaded, PolicyConfig)):
        raise _error(entry, f"must name a subclass of turbospec.policy.PolicyConfig; `{entry.value}` is none")
    _check_class(entry, loaded)
    return loaded


def _check_class(entry: EntryPoint, loaded: type[PolicyConfig]) -> None:
    if inspect.isabstract(loaded):
        missing = ", ".join(f"`{name}`" for name in sorted(loaded.__abstractmethods__))
        raise _error(entry, f"cannot be built; add {missing} to {loaded.__name__}")
    field = loaded.model_fields.get("policy")
    if field is None or get_origin(field.annotation) is not Literal or get_args(field.annotation) != (entry.name,):
        raise _error(entry, f'must say its own name; declare `policy: Literal["{entry.name}"]` in {loaded.__name__}')
    try:
        loaded.model_json_schema()  # error lines and `turbospec policy schema` need it
    except Exception as error:  # pydantic's errors of JSON schemas have no base class but Exception
        raise _error(entry, f"has a field that a YAML file cannot hold ({error}); mend {loaded.__name__}") from error


def _entries() -> dict[str, list[EntryPoint]]:
    """All entry points of the group, by name; a name may be registered by several packages."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


def _fault_of_name(found: list[EntryPoint]) -> str | None:
    name = found[0].name
    if "." not in name:
        # Not even where no built-in policy has the name today: one may have it tomorrow.
        return f"must be called `<package>.{name}`; names without a dot are those of TurboSpec's own policies"
    if len(found) > 1:
        return f"is registered by package `{_package(found[1])}` too; uninstall one of the two"
    return None


def _error(entry: EntryPoint, fault: str) -> UserError:
    return UserError(" ".join(f"entry point `{entry.name}` of package `{_package(entry)}` {fault}".split()))


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "?"
