"""The picture of a latency model's fit: predicted over measured step time."""

# matplotlib's own annotations leave parts open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from turbospec.files.writing import write_whole
from turbospec.interface import BoolArray, FloatArray
from turbospec_bench.reports.plot_style import plain_numbers, styled


@styled
def write_fit_plot(path: Path, measured: FloatArray, predicted: FloatArray, drafting: BoolArray, title: str) -> None:
    """Draw steps around the line of a perfect fit; the file's ending gives its format.

    Args:
        measured, predicted: step times in seconds.
        drafting: whether the step drafted.

    Raises:
        UserError: the file cannot be written.
    """
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    for steps, label in ((~drafting, "steps without drafts"), (drafting, "steps with drafts")):
        axes.plot(measured[steps] * 1e3, predicted[steps] * 1e3, ".", label=label, alpha=0.6)
    ends = np.array([measured.min(), measured.max()]) * 1e3
    axes.plot(ends, ends, linewidth=1, color="gray")
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis, *ends)
    axes.set_aspect("equal")
    axes.set_title(title, loc="left")
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."), transparent=False)
    write_whole(path, picture.getvalue())
