"""The constants of a decision that no model or setting gives."""

from __future__ import annotations

from typing import NamedTuple

from turbospec.models.acceptance import PRIOR
from turbospec.models.online_regression import MEMORY_STEPS

NEWEST_WEIGHT = 0.3
"""Weight of the newest step in running means of what may change at once."""


class Constants(NamedTuple):
    """docs/notes/2026-11-25-constants.md has the experiment that set each number."""

    drift: float = 0.002
    """q: relative drift of step costs per step, a standard deviation, where large errors have no common sign."""
    surprise_weight: float = NEWEST_WEIGHT
    """Weight of the newest error in the running mean that shows a change of the machine's speed."""
    mean_weight: float = 1.0 / MEMORY_STEPS
    """Weight of the newest step in running means: prompts that join a step after its plan was made, steps in which the
    drafter drafts, steps that prefill limits or that lack KV blocks, share of the tokens allowed that the look-up
    appends. Also the least share of time in which prefill is taken to be free (`prefill_factor`)."""
    pace_weight: float = NEWEST_WEIGHT
    """Weight of the newest step in a request's tokens per step."""
    catch_up_horizon: float = 256.0
    """H: most tokens over which the cost of catching up a drafter KV lag is spread."""
    horizon: float = 100.0
    """Steps over which what an experiment shows is worth something."""
    budget_steps: float = 3.0
    """Steps whose duration is the budget of experiments at the start, and its limit later."""
    pause_steps: int = 8
    """Steps to wait after an experiment was considered and none ran; also `valid_steps` of a plan without drafts, if
    none would pay with better estimates."""
    first_token_share: float = 0.1
    """Most by which first tokens that wait for a step may raise its price of time if an experiment is to run in it."""
    outcome_variance: float = PRIOR * (1.0 - PRIOR)
    """p · (1 − p) of a typical draft token."""
    server_memory: float = 400.0
    """Observations that the acceptance of the server and of each class remembers."""
    request_memory: float = 48.0
    """Observed draft positions that a request's acceptance remembers."""
    idle_steps: float = MEMORY_STEPS
    """Steps without drafts of a source in which what is known about its acceptance decays by a factor e. The same holds
    for positions that no draft reaches."""
    idle_cost_steps: float = 1000.0
    """Steps without drafts in which the relative standard deviation of the drafting cost grows by its last jump."""
    trims: bool = True
    """Whether plans have a trim; no number, but what an ablation switches off."""
