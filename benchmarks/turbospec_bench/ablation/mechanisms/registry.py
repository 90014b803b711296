"""The mechanisms of `adaptive` that an ablation switches off."""

from __future__ import annotations

from turbospec_bench.ablation.mechanisms.mechanism import Mechanism

NEVER = 1e12
"""More steps than any run has."""

NOTHING = Mechanism("nothing", "`adaptive` as it is")
_ALL = (
    Mechanism(
        "drift",
        "the step costs become less certain with every step. Without: only where large errors have a common sign",
        {"drift": 0.0},
    ),
    Mechanism(
        "changed-machine",
        "large errors of one sign in a row make all step costs less certain. Without: they do not",
        {"surprise_weight": 0.0},
    ),
    Mechanism(
        "joining-prompts",
        "plans expect the prompts of requests that join the step later, and are charged the drafter's prefill as far "
        "as it could be saved. Without: neither",
        {"mean_weight": 0.0},
    ),
    Mechanism(
        "draft-trim",
        "drafts are shortened when prompts join the step that verifies them, in engines that can. Without: they are "
        "verified whole",
        {"trims": False},
    ),
    Mechanism(
        "token-weights",
        "tokens of requests that emit slowly count more. Without: all count alike",
        {"pace_weight": 0.0},
    ),
    Mechanism(
        "catch-up-spread",
        "a step is charged a share of the time to catch up a drafter KV lag. Without: all of it",
        {"catch_up_horizon": 1.0},
    ),
    Mechanism(
        "experiments",
        "steps that run another plan than the best one, in order to learn. Without: none",
        {"horizon": 0.0},
    ),
    Mechanism(
        "acceptance-experiments",
        "what an experiment shows about acceptance is worth something. Without: only what it shows about step times",
        {"outcome_variance": 0.0},
    ),
    Mechanism(
        "idle-uncertainty",
        "what is known about acceptance decays in steps without drafts. Without: it does not",
        {"idle_steps": NEVER},
    ),
    Mechanism(
        "pause",
        "steps until an experiment is considered again, or a plan without drafts is made anew where no draft would pay "
        "with better estimates either. Without: every step",
        {"pause_steps": 1},
    ),
    Mechanism(
        "first-token-price",
        "λ is raised while first tokens wait for the step. Without: it is not",
        settings={"first_token_weight": 0.0},
    ),
)
MECHANISMS = {each.name: each for each in _ALL}
