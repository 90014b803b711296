"""Policies: what decides the draft lengths. One file each; `load_policy` builds one from a policy file."""

from turbospec.policy.config import PolicyConfig
from turbospec.policy.load import find_policy, load_controller, load_policy, shipped_policies
from turbospec.policy.schema import json_schema, read_policy

__all__ = [
    "PolicyConfig",
    "find_policy",
    "json_schema",
    "load_controller",
    "load_policy",
    "read_policy",
    "shipped_policies",
]
