"""`turbospec generate`: one prompt through the embedded engine, with the controller's choices in view."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from turbospec.cli.compilation import say_when_compiling
from turbospec.cli.console import print_json, stderr, stdout, waiting
from turbospec.cli.drafted_text import NAMES, DraftedText, legend
from turbospec.cli.options import DEFAULT_DRAFTER, DEFAULT_DTYPE, MAX_SEED, Drafter, Dtype, Lookup
from turbospec.errors import UserError
from turbospec.files.writing import check_outputs
from turbospec.interface import Source, StepOutcome, StepPlan, StepView
from turbospec.observability.summary import Summary
from turbospec.observability.trace import DecisionTrace, TraceStep

if TYPE_CHECKING:
    from turbospec_engine import Engine, RequestOutput, SamplingParams

MAX_STDIN_BYTES = 16 * 2**20
"""Largest prompt on stdin; no model takes a longer one."""


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.")],
    target: Annotated[Path, typer.Option(help="Checkpoint folder of the target model.")] = Path("models/target"),
    drafter: Drafter = DEFAULT_DRAFTER,
    lookup: Lookup = None,
    policy: Annotated[str, typer.Option(help="Name of a shipped policy, or a policy file.")] = "adaptive",
    max_tokens: Annotated[int, typer.Option(help="Most output tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens up to this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of sampling and of randomised policies.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; repeatable.")] = None,
    max_draft: Annotated[int, typer.Option(help="Largest draft length K.")] = 15,
    profile: Annotated[
        Path | None, typer.Option(help="Step times by `turbospec profile`; default: learnt while serving.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the models run: cpu or cuda.")] = "cpu",
    dtype: Dtype = DEFAULT_DTYPE,
    trace: Annotated[Path | None, typer.Option(help="Write a decision trace to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, in place of the text.")] = False,
) -> None:
    """Stream one prompt and show the controller's decisions: K, acceptance and reason, step by step."""
    from turbospec.models.profile import Profile
    from turbospec.policy import find_policy, load_controller, read_policy
    from turbospec.policy.static import StaticPolicy

    text = _read_stdin() if prompt == "-" else prompt
    if not text.strip():
        raise UserError("the prompt is empty; give a text, or - to read it from stdin")
    read_policy(policy_file := find_policy(policy))
    check_outputs(trace, inputs=(profile, policy_file))
    measured = Profile.load(profile) if profile else None
    with waiting("Loading the models"):
        from turbospec_engine import Engine, EngineConfig, Models, SamplingParams
        from turbospec_engine.profiling import describe

        params = SamplingParams(max_tokens, temperature, top_k, top_p, seed, tuple(stop or ()))
        config = EngineConfig(
            target, drafter, lookup, device=device, dtype=dtype, max_num_seqs=1, max_draft=max_draft, seed=seed
        )
        # Before kernels are compiled: a wrong path is to be said at once.
        models = Models.load(config)
    say_when_compiling()
    with waiting("Loading the policy"):
        controller = load_controller(policy, profile=measured, seed=seed)
    if isinstance(controller.policy, StaticPolicy) and controller.policy.draft_length > max_draft:
        asked = controller.policy.draft_length
        raise UserError(f"policy {policy} drafts {asked} tokens, but the maximum is {max_draft}; raise --max-draft")
    meter = Meter()
    controller.listeners.append(meter)
    with waiting("Loading the engine"):
        engine = Engine(config, controller, models=models)
    served = describe(engine) | {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if measured is not None and (differences := measured.differences(served)):
        _warn(f"{profile} was measured with {', '.join(differences)}; measure again with `turbospec profile`")
    run = Run(meter)
    with DecisionTrace(trace) if trace else nullcontext() as tracing:
        if tracing is not None:
            controller.listeners.append(tracing)
        run.play(engine, text, params, quiet=as_json)
    if as_json:
        print_json(run.document() | {"policy": policy})
    else:
        if stdout.is_terminal:
            stderr.print(legend((Source.DRAFTER,) if lookup is None else tuple(Source)))
        stderr.print(f"{run.line()}, policy {policy}", soft_wrap=True)


def _read_stdin() -> str:
    """The prompt on stdin.

    Raises:
        UserError: it is too long, not in UTF-8, or cannot be read.
    """
    try:
        content = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    except OSError as error:
        raise UserError(f"stdin cannot be read ({error.strerror}); give the prompt as an argument") from error
    if len(content) > MAX_STDIN_BYTES:
        raise UserError(f"the prompt on stdin is larger than {MAX_STDIN_BYTES // 2**20} MiB; shorten it")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"the prompt on stdin is not UTF-8 (byte {error.start}); convert it") from error


def _warn(message: str) -> None:
    stderr.print(f"warning: {message}", style="yellow", soft_wrap=True)


class Meter:
    """Listener of a controller that sums up its steps and keeps the latest one."""

    def __init__(self) -> None:
        self.summary = Summary()
        self.latest: TraceStep | None = None

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.latest = TraceStep.from_step(view, plan, outcome, decision_seconds)
        self.summary.add(self.latest)

    def line(self) -> str:
        """The latest step in one line; with one request, each of its arrays has one entry."""
        step, summary = self.latest, self.summary
        if step is None or not summary.drafts:
            return "K 0" if step else ""
        return (
            f"K {step.drafted[0]:>2}, accepted {step.accepted[0]:>2}"
            f" │ so far K {summary.mean_draft_length:.1f}, acceptance {summary.acceptance_rate:.0%},"
            f" accepted length {summary.accepted_length:.2f} │ {step.reason}"
        )


class Run:
    """One prompt's output while it is streamed, and its latencies."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.text = ""
        self.tokens = 0
        self.finish_reason: str | None = None
        self._began = 0.0
        self._first = 0.0
        self._last = 0.0

    def play(self, engine: Engine, prompt: str, params: SamplingParams, *, quiet: bool) -> None:
        """Stream the output: in a live panel on a terminal, as plain text elsewhere, not at all if `quiet`."""
        from turbospec_engine.detokenizer import Detokenizer

        in_panel = stdout.is_terminal and not quiet
        self._began = time.perf_counter()
        outputs = engine.stream(prompt, params)
        detokenizer = Detokenizer(engine.models.backend_tokenizer)
        drafted = DraftedText(lambda token_ids: detokenizer.feed(token_ids)[1])
        try:
            with Live(console=stderr, transient=True, auto_refresh=False, vertical_overflow="crop") as live:
                for output in outputs:
                    self._take(output, drafted)
                    if not in_panel and not quiet:
                        print(output.new_text, end="", flush=True)
                    if stderr.is_terminal:
                        live.update(self._panel(drafted if in_panel else None), refresh=True)
        finally:
            if in_panel:
                stdout.print(drafted.styled(self.text), end="", soft_wrap=True)
            if self.text and not quiet:
                print(flush=True)

    def line(self) -> str:
        """The result in one line."""
        summary = self.meter.summary
        accepted = "".join(
            f", {counts.accepted_tokens} of {counts.drafted_tokens} from the {NAMES[source]}"
            for source, counts in summary.sources.items()
        )
        return (
            f"{self.tokens} tokens, TTFT {self.ttft * 1e3:.1f} ms, TPOT {self.tpot * 1e3:.2f} ms, "
            f"mean K {summary.mean_draft_length:.2f}, accepted length {summary.accepted_length:.2f}{accepted}"
        )

    def document(self) -> dict[str, Any]:
        """The result for JSON, by the names of `vllm bench serve` where it has them."""
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "output_tokens": self.tokens,
            "ttft_ms": self.ttft * 1e3,
            "tpot_ms": self.tpot * 1e3,
            "e2el_ms": (self._last - self._began) * 1e3,
        } | self.meter.summary.document()

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self._first - self._began

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first."""
        return (self._last - self._first) / max(1, self.tokens - 1)

    def _take(self, output: RequestOutput, drafted: DraftedText) -> None:
        if not self.tokens:
            self._first = output.emitted_at
        self._last = output.emitted_at
        self.text += output.new_text
        self.tokens += len(output.new_token_ids)
        self.finish_reason = output.finish_reason
        step = self.meter.latest
        if step is None:
            drafted.add(output.new_token_ids)
            return
        accepted, source = step.accepted[0], Source.DRAFTER if step.sources is None else Source(step.sources[0])
        appended = 0 if step.appended is None else step.appended[0]
        first = min(accepted, step.drafted[0] - appended)
        drafted.add(output.new_token_ids, (first, source), (accepted - first, Source.LOOKUP))

    def _panel(self, drafted: DraftedText | None) -> RenderableType:
        status = Text(self.meter.line(), style="dim", overflow="ellipsis", no_wrap=True)
        if drafted is None:
            return status
        newest = drafted.styled(self.text).wrap(stderr, stderr.width)[-max(1, stderr.height - 2) :]
        return Group(*newest, status)
