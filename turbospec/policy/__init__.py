"""Policies: what chooses the draft lengths. One file each; `load_policy` builds one from a policy file.

Exported are the files' side (`load_policy`, `load_controller`, `find_policy`, `read_policy`, `shipped_policies`,
`json_schema`) and what a policy of your own extends (`PolicyConfig`, `DraftLengths`).
"""

from turbospec.policy.config import DraftLengths, PolicyConfig
from turbospec.policy.load import find_policy, load_controller, load_policy, shipped_policies
from turbospec.policy.schema import json_schema, read_policy

__all__ = [
    "DraftLengths",
    "PolicyConfig",
    "find_policy",
    "json_schema",
    "load_controller",
    "load_policy",
    "read_policy",
    "shipped_policies",
]
