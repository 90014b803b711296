"""The style of the reports' pictures, and their SVG, which is readable on light and dark pages.

Text stays text in the SVG and takes the page's text colour.
"""

# matplotlib's own annotations leave parts open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from turbospec_bench.policy_names import fixed_length
from turbospec_bench.variant import TRANSFORMERS_PREFIX

INK = "#0a0b0c"
"""Placeholder for the page's text colour, replaced when the SVG is written."""
NEUTRAL_INK = "#7d8590"
"""Readable on white and on black, for a picture in a file of its own."""
FIXED = "#9aa4b2"
"""Colour of fixed Ks."""
COLOURS = {
    "adaptive": "#e4572e",
    "ema-tiers": "#3b82f6",
    "goodput": "#10b981",
    "bandit": "#a855f7",
    "heuristic": "#d4a017",
    "confidence": "#ec4899",
    "batch-table": "#14b8a6",
    "acceptance-gate": "#8b5cf6",
    "lookup-first": "#64748b",
}
OTHER_COLOURS = ("#0ea5e9", "#84cc16", "#f97316", "#d946ef")
"""Of policies that are not in `COLOURS`, in turn."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "turbospec",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "savefig.transparent": True,
    "text.parse_math": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 9}


styled = matplotlib.rc_context(STYLE)
"""Decorates every function that draws: text takes its style when it is created, some of it as late as in `svg_of`."""


def new_figure(
    width: float, height: float, columns: int, rows: int = 1, *, sharey: bool = False
) -> tuple[Figure, Sequence[Any]]:
    """A figure, its size in inches, and its axes row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, [*figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()]


def colours_of(policies: Iterable[str]) -> dict[str, str]:
    """The colour of each policy."""
    others = cycle(OTHER_COLOURS)
    found: dict[str, str] = {}
    for policy in dict.fromkeys(policies):
        fixed = fixed_length(policy) is not None or policy.startswith(TRANSFORMERS_PREFIX)
        found[policy] = FIXED if fixed else COLOURS[policy] if policy in COLOURS else next(others)
    return found


def plain_numbers(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis with numbers: matplotlib writes powers as TeX, which an SVG with text shows as it is.

    Args:
        low, high: what the axis shows; under two decades powers of ten alone are too few ticks.
    """
    few = high / low < 100
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_formatter(NullFormatter())


def svg_of(figure: Figure) -> str:
    """The figure as an SVG element whose text takes the page's colour and whose ids are unique on the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    own = hashlib.sha256(svg.encode()).hexdigest()[:8]
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>p{own}-", svg)


def standalone(svg: str) -> str:
    """The same picture for a page that sets no text colour, such as a README."""
    return svg.replace("currentColor", NEUTRAL_INK)
