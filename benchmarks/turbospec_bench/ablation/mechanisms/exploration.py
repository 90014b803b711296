"""Mechanisms of exploration: first steps, probes, comparison steps, what follows a change of the machine's speed."""

from __future__ import annotations

from functools import partial

from turbospec.exploration import probing
from turbospec.exploration.probing import ProbeBudget
from turbospec.models import latency
from turbospec.models.latency import LatencyModel
from turbospec.policy.adaptive import exploration
from turbospec.policy.adaptive.exploration import Exploration
from turbospec_bench.ablation.mechanisms.mechanism import Mechanism
from turbospec_bench.ablation.mechanisms.planning import returns
from turbospec_bench.ablation.substitution import Change

_POLICY, _PROBING = "policy/adaptive/exploration.py", "exploration/probing.py"

EXPLORATION = (
    Mechanism(
        "first-exploration",
        "models/latency.py",
        "MIN_OBSERVATIONS 4",
        "without a profile the first steps run a fixed list of lengths; off: planned by the initial guess",
        lambda: (Change(latency, "MIN_OBSERVATIONS", 0),),
    ),
    Mechanism(
        "exploration-list",
        _POLICY,
        "EXPLORATION (0, 2, 0, 5, 1, 0, 3, 4, 0, 2)",
        "that list has several lengths; off: 0 and 1 in turn",
        lambda: (Change(exploration, "EXPLORATION", (0, 1)),),
    ),
    Mechanism(
        "probes",
        _PROBING,
        "probe_share 0.01, PROBE_DRAFT_LENGTH 1",
        "drafts of one token while drafting does not pay; off: none",
        lambda: (Change(Exploration, "probe", returns(None)),),
    ),
    Mechanism(
        "probe-back-off",
        _PROBING,
        "max_backoff 8",
        "probes become rarer after the first ones; off: they do not",
        lambda: (Change(exploration, "ProbeBudget", partial(ProbeBudget, max_backoff=1.0)),),
    ),
    Mechanism(
        "probe-new-requests",
        _PROBING,
        "UNINFORMATIVE_ACCEPTANCE 0.5",
        "a request that never drafted has the square root of the back-off; off: the whole",
        lambda: (Change(probing, "UNINFORMATIVE_ACCEPTANCE", -1.0),),
    ),
    Mechanism(
        "probe-rows",
        _PROBING,
        "MULTI_ROW_LOSS_RATIO 1.3",
        "several requests join a probe; off: one",
        lambda: (Change(probing, "MULTI_ROW_LOSS_RATIO", 1.0),),
    ),
    Mechanism(
        "probe-loss-share",
        _PROBING,
        "MIN_LOSS_SHARE 0.1",
        "a tenth of a probe's time counts as lost in any case; off: a thousandth",
        lambda: (Change(probing, "MIN_LOSS_SHARE", 1e-3),),
    ),
    Mechanism(
        "comparison-steps",
        "exploration/comparison_steps.py",
        "FIRST_INTERVAL 8, MAX_INTERVAL 128",
        "steps without drafts now and then while all steps draft; off: none",
        lambda: (Change(Exploration, "_without_drafts", returns(None)),),
    ),
    Mechanism(
        "longer-drafts",
        _POLICY,
        "FIRST_INTERVAL 8, MAX_INTERVAL 128",
        "steps with drafts one token longer than planned; off: none",
        lambda: (Change(Exploration, "_longer", returns(None)),),
    ),
    Mechanism(
        "hardware-changed",
        _POLICY,
        "HARDWARE_CHANGED 0.8",
        "a machine that became quicker while nothing drafts is probed at once, and its draft costs are learnt anew; "
        "off: neither",
        lambda: (Change(exploration, "HARDWARE_CHANGED", 0.0),),
    ),
    Mechanism(
        "draft-cost-reset",
        "models/latency.py",
        "–",
        "of these, the reset of draft costs with a new exploration; off: a quick probe changes nothing more",
        lambda: (Change(LatencyModel, "forget_draft_costs", returns(None)),),
    ),
)
