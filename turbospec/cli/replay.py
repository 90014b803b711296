"""`turbospec replay`: estimated results of other policies on a recorded decision trace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turbospec.cli.compilation import say_when_compiling
from turbospec.cli.console import progress, stdout, table
from turbospec.cli.resuming import say_cost
from turbospec.cli.trace_files import BrokenLines, steps_of
from turbospec.files.writing import check_outputs
from turbospec.models.profile import Profile
from turbospec.policy import find_policy, read_policy

if TYPE_CHECKING:
    from turbospec_sim.replay.replay import Replay

FIGURES = (
    ("output_throughput", "tokens/s", ".1f"),
    ("tokens_per_step_second", "per step second", ".1f"),
    ("mean_tpot_ms", "TPOT ms", ".2f"),
    ("p99_tpot_ms", "P99 TPOT ms", ".2f"),
    ("mean_draft_length", "K", ".2f"),
    ("mean_accepted_length", "accepted length", ".2f"),
    ("judged_share", "drafts judged", ".0%"),
    ("extrapolated_time_share", "time extrapolated", ".0%"),
)


def replay(
    trace: Annotated[
        list[Path], typer.Argument(help="Decision traces of one run; a rotated trace together with its backups.")
    ],
    policy: Annotated[list[str], typer.Option(help="Name or file of a policy; repeat for several.")],
    profile: Annotated[
        Path | None, typer.Option(help="Step times by `turbospec profile`; default: those of the trace itself.")
    ] = None,
    same_at_any_position: Annotated[
        bool,
        typer.Option(
            "--same-at-any-place",
            help="Acceptance of a token does not depend on its draft position, as with prompt look-up.",
        ),
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Clients of a closed loop that send the requests; default: requests arrive as recorded.",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results to this file, two rows per policy.")] = None,
) -> None:
    """Estimate the results of policies on a recorded run, with bounds where the trace cannot tell."""
    from turbospec.files.results_file import keep_earlier, save
    from turbospec_sim.replay.replay import Replay

    files = [find_policy(name) for name in policy]
    check_outputs(json, inputs=[*trace, *files, profile])
    configs = [(name, read_policy(file)) for name, file in zip(policy, files, strict=True)]
    measured = None if profile is None else Profile.load(profile)
    broken = BrokenLines()
    steps = list(steps_of(trace, broken))
    say_when_compiling()
    recorded = Replay(steps, profile=measured, same_at_any_position=same_at_any_position, concurrency=concurrency)
    say_cost(recorded.cost.times(1 + 2 * len(configs)), 1)
    if json is not None:
        keep_earlier(json)
    rows = [recorded.recorded, recorded.as_recorded()]
    interrupted: BaseException | None = None
    try:
        with progress() as bar:
            task = bar.add_task("policies", total=len(configs))
            for name, config in configs:
                rows += recorded.rows(name, config)
                bar.update(task, advance=1, description=name)
    except BaseException as error:  # Ctrl-C included: what is finished is kept
        interrupted = error
    remarks = _remarks(recorded, rows)
    # The file comes first: printing ends the command where stdout is closed.
    if json is not None:
        meta = _meta(recorded, trace, steps, broken, remarks)
        save(json, meta if interrupted is None else meta | {"unfinished": True}, rows)
    if interrupted is not None:
        raise interrupted
    _show(rows)
    for remark in remarks:
        stdout.print(remark, soft_wrap=True)
    if json is not None:
        stdout.print(f"results: {json}", soft_wrap=True)


def _meta(
    recorded: Replay, files: Sequence[Path], steps: Sequence[Any], broken: BrokenLines, remarks: Sequence[str]
) -> dict[str, Any]:
    fit = recorded.fit
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "turbospec": version("turbospec"),
        "traces": [str(file) for file in files],
        "steps": len(steps),
        "broken_lines": broken.count,
        "requests": recorded.recording.size,
        "begun_before": recorded.recording.begun_before,
        "cut_short": recorded.recording.cut_short,
        "server": recorded.server.model_dump(mode="json"),
        "drafter": recorded.drafter.model_dump(mode="json"),
        "step_time_median_error": fit.median_error,
        "step_time_correction": fit.correction,
        "step_time_total_error": fit.total_error,
        "draft_passes_measured": list(fit.passes),
        "remarks": list(remarks),
    }


def _show(rows: Sequence[dict[str, Any]]) -> None:
    shown = table("Replay", "policy", "unknown drafts", *(title for _, title, _ in FIGURES))
    shown.columns[0].no_wrap = True
    words = {None: "", "pessimistic": "rejected", "optimistic": "accepted"}
    for row in rows:
        unknown = "" if row["policy"] in ("recorded", "as recorded") else words[row["bound"]]
        shown.add_row(row["policy"], unknown, *(_figure(row[name], form) for name, _, form in FIGURES))
    stdout.print(shown)


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None or value != value else format(value, form)


def _remarks(recorded: Replay, rows: Sequence[dict[str, Any]]) -> list[str]:
    fit, recording = recorded.fit, recorded.recording
    off = rows[1]["output_throughput"] / rows[0]["output_throughput"] - 1.0
    remarks = [
        f"Replaying the recorded drafts gives {off:+.1%} tokens/s against the recording: the replay's own error.",
        f"Step times: median error {fit.median_error:.1%}, error of the total {fit.total_error:+.1%}"
        + ("" if fit.correction == 1.0 else f" (after a factor of {fit.correction:.3f})")
        + ".",
    ]
    if recording.missing_steps:
        remarks.append(
            f"The trace lacks {recording.missing_steps} steps between its first and last; the replay takes them for "
            "idle time. If files were left out, give them all."
        )
    if recording.begun_before:
        remarks.append(
            f"{recording.begun_before} requests began before the trace; what they emitted before counts as prompt."
        )
    if recording.cut_short:
        remarks.append(f"{recording.cut_short} requests were unfinished at the trace's end; they end there.")
    if recorded.longest_draft > (most := recorded.drafter.max_draft):
        remarks.append(f"Drafts of up to {recorded.longest_draft} tokens were recorded; a replay cuts them to {most}.")
    if not any(fit.passes):
        remarks.append(
            "No recorded step has a measured time of drafting: the time of drafting is a prior. Give --profile."
        )
    elif any(row["extrapolated_time_share"] for row in rows):
        passes = ", ".join(map(str, fit.passes))
        remarks.append(f"Measured: steps with {passes} drafter passes. The time of other steps is extrapolated.")
    return remarks
