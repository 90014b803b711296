"""`turbospec profile`: measure an engine's step times and fit the latency model to them."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from turbospec.cli.compilation import say_when_compiling
from turbospec.cli.console import print_json, progress, stdout, table
from turbospec.cli.options import DEFAULT_DRAFTER, DEFAULT_DTYPE, Drafter, Dtype
from turbospec.errors import UserError
from turbospec.files.writing import check_outputs

if TYPE_CHECKING:
    from turbospec.interface import FloatArray
    from turbospec.models.latency import LatencyModel
    from turbospec.models.profile import LatencySample, Profile

PLOT_FORMATS = (".svg", ".png", ".pdf")


def profile(
    target: Annotated[Path, typer.Option(help="Checkpoint folder of the target model.")] = Path("models/target"),
    drafter: Drafter = DEFAULT_DRAFTER,
    device: Annotated[str, typer.Option(help="Where the models run: cpu or cuda.")] = "cpu",
    dtype: Dtype = DEFAULT_DTYPE,
    temperature: Annotated[float, typer.Option(help="Temperature of the measured requests; 0 is greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Their top-p; below 1, sampling takes a considerable part of a step.")
    ] = 1.0,
    output: Annotated[Path, typer.Option(help="Write the profile to this file.")] = Path("profile.json"),
    plot: Annotated[
        Path | None, typer.Option(help="Plot predicted against measured step times to this file: svg, png or pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure step times over batch sizes, draft lengths and contexts, and fit the latency model to them.

    A profile is valid for one pair of models in one dtype, on one machine, with one way of sampling (`bench` serves
    requests with --temperature 0.8 --top-p 0.95). Pass it to `generate` and `bench` with --profile.
    """
    if plot is not None and plot.suffix not in PLOT_FORMATS:
        raise UserError(f"{plot}: unknown format; end the name in {', '.join(PLOT_FORMATS)}")
    check_outputs(output, plot)
    if plot is not None:
        # Imports what the plot needs: a missing package is reported before minutes of measuring.
        import turbospec_bench.reports.profile_plot  # noqa: F401  # pyright: ignore[reportUnusedImport]
    say_when_compiling()
    measured = _measure(target, drafter, device, dtype, temperature, top_p)
    measured.save(output)
    from turbospec.models.latency import LatencyModel

    fit = Fit(LatencyModel.fit(measured.samples), measured.samples)
    if plot is not None:
        fit.plot(plot)
    if as_json:
        print_json({"profile": str(output), "meta": measured.meta} | fit.document())
        return
    fit.show()
    stdout.print(f"profile: {output}", soft_wrap=True)
    if plot is not None:
        stdout.print(f"plot:    {plot}", soft_wrap=True)


def _measure(target: Path, drafter: str, device: str, dtype: str, temperature: float, top_p: float) -> Profile:
    with progress() as bar:
        task = bar.add_task("Loading the models", total=None)
        from turbospec_engine import EngineConfig, SamplingParams
        from turbospec_engine.profiling import measure

        config = EngineConfig(target, drafter, device=device, dtype=dtype)
        return measure(
            config,
            lambda done, total: bar.update(task, description="Steps", completed=done, total=total),
            sampling=SamplingParams(temperature=temperature, top_p=top_p),
        )


class Fit:
    """A fitted latency model and the measured steps."""

    def __init__(self, model: LatencyModel, samples: list[LatencySample]) -> None:
        self.model = model
        self.most_tokens = max(sample.tokens_batched for sample in samples)
        self.drafting = np.array([len(sample.draft_rows) > 0 for sample in samples])
        self.measured: FloatArray = np.array([sample.step_seconds for sample in samples])
        self.predicted: FloatArray = np.array([model.predict_sample(sample) for sample in samples])

    @property
    def median_error(self) -> float:
        """Median absolute error, relative to the measurement."""
        return float(np.median(np.abs(self.predicted / self.measured - 1)))

    @property
    def r_squared(self) -> float:
        """Share of the step times' variance that the model explains; NaN where they do not vary."""
        residual = np.square(self.measured - self.predicted).sum()
        variance = np.square(self.measured - self.measured.mean()).sum()
        return float(1 - residual / variance) if variance > 0 else math.nan

    def coefficients(self) -> dict[str, float]:
        """Seconds per unit of each feature of a step; only those that were measured and are above 0."""
        from turbospec.models.latency import VERIFY_KNOTS

        segments = [f"verify: token {low:.0f} to {high:.0f}" for low, high in pairwise(VERIFY_KNOTS)]
        verify = ["verify: any pass", "verify: context token", *segments, "verify: any prefill", "verify: prompt token"]
        draft = ["draft: any", "draft: pass", "draft: row of a pass", "draft: context token", "draft: catch-up token"]
        host = ["host: any step", "host: request"]
        # The last ones are of passes without a fitting CUDA graph, of which a profile says nothing.
        of_target = self.model.verify.weights[: len(verify)]
        weights = np.concatenate([of_target, self.model.draft.weights, self.model.host.weights])
        costs = dict(zip(verify + draft + host, weights.tolist(), strict=True))
        unseen = {name for name, low in zip(segments, VERIFY_KNOTS[:-1], strict=True) if low >= self.most_tokens}
        return {name: seconds for name, seconds in costs.items() if seconds > 0 and name not in unseen}

    def document(self) -> dict[str, Any]:
        return {
            "samples": len(self.measured),
            "median_error": self.median_error,
            "r_squared": self.r_squared,
            "coefficients": self.coefficients(),
        }

    def show(self) -> None:
        """Print the coefficients and the errors of the fit."""
        shown = table("What a step costs", "", "µs")
        for name, seconds in self.coefficients().items():
            shown.add_row(name, f"{seconds * 1e6:,.2f}")
        stdout.print(shown)
        stdout.print(f"{len(self.measured)} steps, median error {self.median_error:.1%}, R² {self.r_squared:.4f}")

    def plot(self, path: Path) -> None:
        """Draw predicted over measured step time.

        Raises:
            UserError: the file cannot be written.
        """
        from turbospec_bench.reports.profile_plot import write_fit_plot

        title = f"Step time: median error {self.median_error:.1%}, R² {self.r_squared:.3f}"
        write_fit_plot(path, self.measured, self.predicted, self.drafting, title)
