"""Ablation of `adaptive`: `python -m turbospec_bench.ablation` switches off one mechanism at a time and simulates.

Mechanisms are switched off by values of the policy's constants, or of its settings, for the duration of a run. The
product has no options for the constants.
"""

from turbospec_bench.ablation.cases import Case, changing_cases, shipped_cases, synthetic_cases
from turbospec_bench.ablation.mechanisms import MECHANISMS, Mechanism
from turbospec_bench.ablation.runs import run_case

__all__ = ["MECHANISMS", "Case", "Mechanism", "changing_cases", "run_case", "shipped_cases", "synthetic_cases"]
