"""The kinds of policy that a file may name: those of this package, and those that other packages register."""

from __future__ import annotations

from turbospec.policy.acceptance_gate import AcceptanceGateConfig
from turbospec.policy.adaptive import AdaptiveConfig
from turbospec.policy.bandit import BanditConfig
from turbospec.policy.batch_table import BatchTableConfig
from turbospec.policy.confidence import ConfidenceConfig
from turbospec.policy.config import PolicyConfig
from turbospec.policy.ema_tiers import EmaTiersConfig
from turbospec.policy.goodput import GoodputConfig
from turbospec.policy.heuristic import HeuristicConfig
from turbospec.policy.registered import load_registered, registered_kinds
from turbospec.policy.static import OffConfig, StaticConfig

BUILT_IN: dict[str, type[PolicyConfig]] = {
    "acceptance_gate": AcceptanceGateConfig,
    "adaptive": AdaptiveConfig,
    "bandit": BanditConfig,
    "batch_table": BatchTableConfig,
    "confidence": ConfidenceConfig,
    "ema_tiers": EmaTiersConfig,
    "goodput": GoodputConfig,
    "heuristic": HeuristicConfig,
    "off": OffConfig,
    "static": StaticConfig,
}
"""Settings of each policy of this package, by the name that files give it; the class's `policy` field says the same."""


def known_kinds() -> list[str]:
    """Names of all kinds, sorted. Imports no other package."""
    return sorted([*BUILT_IN, *registered_kinds()])


def config_class(kind: str) -> type[PolicyConfig] | None:
    """The settings of a kind of policy; None where there is no such kind.

    Looks at other packages only for a name that is not built in, and imports only the package that registers it.

    Raises:
        UserError: the kind is registered, and its registration is faulty.
    """
    return BUILT_IN[kind] if kind in BUILT_IN else load_registered(kind)
