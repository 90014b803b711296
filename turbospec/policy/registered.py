"""Policies of other packages, registered as entry points in the group `turbospec.policies`.

An entry point's name is the name in policy files, `<package>.<policy>`. Its value is the policy's `PolicyConfig`
subclass.
"""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, get_args, get_origin

from turbospec.errors import UserError
from turbospec.interface import Policy
from turbospec.models.profile import Profile
from turbospec.policy.config import PolicyConfig

GROUP = "turbospec.policies"


def registered_kinds() -> list[str]:
    """Names that policy files can use. Imports none of the packages."""
    return [name for name, found in _entries().items() if _fault_of_name(found) is None]


def registration_faults() -> list[str]:
    """One line for each invalid name: what is wrong and how to fix it. Imports none of the packages."""
    faults = ((found[0], _fault_of_name(found)) for found in _entries().values())
    return [str(_error(entry, fault)) for entry, fault in faults if fault is not None]


def load_registered(name: str) -> type[PolicyConfig] | None:
    """Import the settings class that is registered under a name; None if the name is not registered.

    Raises:
        UserError: the registration is invalid; one line that names package and entry point.
    """
    found = _entries().get(name)
    if found is None:
        return None
    entry, fault = found[0], _fault_of_name(found)
    if fault is not None:
        raise _error(entry, fault)
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # the import runs code of another package, which may raise anything
        raise _error(entry, f"does not load ({_described(error)}); fix `{entry.value}`") from error
    if not (isinstance(loaded, type) and issubclass(loaded, PolicyConfig)):
        raise _error(entry, f"must be a subclass of turbospec.policy.PolicyConfig; `{entry.value}` is not")
    _check_class(entry, loaded)
    return loaded


def build_policy(config: PolicyConfig, profile: Profile | None, seed: int) -> Policy:
    """The policy that settings describe. Arguments as for `PolicyConfig.build`.

    Raises:
        UserError: the policy cannot use the profile, or is another package's and fails.
    """
    try:
        return config.build(profile, seed)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        fault = fault_of_another_package(type(config), "cannot be built", error)
        if fault is None:
            raise
        raise UserError(fault) from error


def fault_of_another_package(settings: type[PolicyConfig], what: str, error: BaseException) -> str | None:
    """An error line where another package's policy raised `error`; None for TurboSpec's own policies."""
    package = settings.__module__.partition(".")[0]
    if package == __name__.partition(".")[0]:
        return None
    return f"policy `{settings.__name__}` of package `{package}` {what} ({_described(error)}); fix that package"


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # of `__str__`
        return type(error).__name__


def _check_class(entry: EntryPoint, loaded: type[PolicyConfig]) -> None:
    if inspect.isabstract(loaded):
        missing = ", ".join(f"`{name}`" for name in sorted(loaded.__abstractmethods__))
        raise _error(entry, f"cannot be built; add {missing} to {loaded.__name__}")
    field = loaded.model_fields.get("policy")
    if field is None or get_origin(field.annotation) is not Literal or get_args(field.annotation) != (entry.name,):
        wanted = f'policy: Literal["{entry.name}"]'
        raise _error(entry, f"has another name in its class; declare `{wanted}` in {loaded.__name__}")
    try:
        loaded.model_json_schema()  # error lines and `turbospec policy schema` need it
    except Exception as error:  # pydantic has no common base class for these errors
        said = _described(error)
        raise _error(entry, f"has a field that a YAML file cannot hold ({said}); fix {loaded.__name__}") from error


def _entries() -> dict[str, list[EntryPoint]]:
    """All entry points of the group, by name; a name may be registered by several packages.

    Raises:
        UserError: a package's list of entry points cannot be read.
    """
    found: dict[str, list[EntryPoint]] = {}
    try:
        for entry in entry_points(group=GROUP):
            found.setdefault(entry.name, []).append(entry)
    except Exception as error:  # importlib does not check what it reads
        raise UserError(
            f"the entry points of an installed package cannot be read ({_described(error)}); find it with `pip check`"
        ) from error
    return found


def _fault_of_name(found: list[EntryPoint]) -> str | None:
    name = found[0].name
    if "." not in name:
        # Even if no built-in policy has this name: a later release may add one.
        return f"must be called `<package>.{name}`; names without a dot are reserved for built-in policies"
    if len(found) > 1:
        return f"is registered by package `{_package(found[1])}` too; uninstall one of the two"
    return None


def _error(entry: EntryPoint, fault: str) -> UserError:
    return UserError(" ".join(f"entry point `{entry.name}` of package `{_package(entry)}` {fault}".split()))


def _package(entry: EntryPoint) -> str:
    return (entry.dist.name if entry.dist else None) or "?"
