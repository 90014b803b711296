"""The benchmark: every policy over the same requests, in interleaved rounds.

A script imports from here what all engines share, from `turbospec_bench.embedded` and `turbospec_bench.vllm` what
serves requests, and from `turbospec_bench.reports` what draws. This package imports neither torch nor matplotlib.
"""

from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.contender import Contender, Run
from turbospec_bench.matrix import select_configurations, variants_of
from turbospec_bench.results import Results
from turbospec_bench.rounds import DisturbanceCheck, play_rounds
from turbospec_bench.stats import Ratio, geometric_mean, paired_ratio
from turbospec_bench.summary import Finding, findings
from turbospec_bench.targets import Verdict, judge
from turbospec_bench.variant import Variant

__all__ = [
    "Configuration",
    "Contender",
    "DisturbanceCheck",
    "Finding",
    "Ratio",
    "Results",
    "Row",
    "Run",
    "Variant",
    "Verdict",
    "by_configuration",
    "findings",
    "geometric_mean",
    "judge",
    "paired_ratio",
    "play_rounds",
    "select_configurations",
    "variants_of",
]
