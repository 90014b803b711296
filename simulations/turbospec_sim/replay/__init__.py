"""Replay of recorded decision traces under other policies: estimated results, with bounds. Public: `__all__`."""

from turbospec_sim.replay.replay import OPTIMISTIC, PESSIMISTIC, Replay, StepTimeFit

__all__ = ["OPTIMISTIC", "PESSIMISTIC", "Replay", "StepTimeFit"]
