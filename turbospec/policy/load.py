"""Finds policy files, by path or by the name of a shipped one, and builds the policies that they describe."""

from __future__ import annotations

from pathlib import Path

from turbospec.controller import Controller
from turbospec.files.shipped import find_file, shipped_files
from turbospec.interface import Policy
from turbospec.models.profile import Profile
from turbospec.policy.registered import build_policy
from turbospec.policy.reload import ReloadingPolicy
from turbospec.policy.schema import read_policy


def shipped_policies() -> dict[str, Path]:
    """The policy files that come with TurboSpec, by name (the file's name without `.yaml`)."""
    return shipped_files("turbospec", "policies")


def find_policy(source: str | Path) -> Path:
    """Path of a policy file, given its path or the name of a shipped one.

    Raises:
        UserError: a bare name that is neither shipped nor a file.
    """
    return find_file(source, shipped_policies(), "policy")


def load_policy(source: str | Path, *, profile: Profile | None = None, seed: int = 0) -> Policy:
    """Build the policy of a file, without the guard that a `Controller` puts around it.

    Args:
        source: path of a policy file, or the name of a shipped one ("adaptive", "static-3").
        profile: step times measured on the engine, for policies that predict step times.
        seed: for policies that draw random numbers.

    Raises:
        UserError: the file is missing or invalid, or the policy cannot use the profile.
    """
    return build_policy(read_policy(find_policy(source)), profile, seed)


def load_controller(
    source: str | Path, *, profile: Profile | None = None, seed: int = 0, reload: bool = False
) -> Controller:
    """Build the policy of a file inside a `Controller` with the file's guard.

    Args:
        source: as for `load_policy`.
        profile: as for `load_policy`.
        seed: as for `load_policy`.
        reload: follow the file. An edit takes effect between two steps; an invalid one is logged as a warning and the
            previous policy stays. The guard's settings are read once, at the start.

    Raises:
        UserError: as for `load_policy`.
    """
    path = find_policy(source)
    config = read_policy(path)
    policy = ReloadingPolicy(path, profile=profile, seed=seed) if reload else build_policy(config, profile, seed)
    return Controller(policy, guard=config.guard)
