"""Measure the heads on held-out text in the embedded engine: acceptance per position, added to evaluation.json.

The requests are those of `training.evaluate`. In every step each request drafts `DRAFT_LENGTH` tokens; drafts that the
end of a request cut short are not counted.

    python -m training.evaluate_heads
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from transformers import AutoTokenizer

from training.evaluate import NEW_TOKENS, excerpts
from training.export import TARGET
from turbospec import StepOutcome, StepPlan, StepView
from turbospec_bench.text_quality import ends_in_loop
from turbospec_engine import Engine, EngineConfig, Models, SamplingParams

HEADS = ("eagle3", "peagle", "dflash")
DRAFT_LENGTH = 8
TEMPERATURES = (0.0, 0.7)


class FixedLength:
    """Drafts `DRAFT_LENGTH` tokens for every request, and keeps what was accepted of each draft."""

    def __init__(self) -> None:
        self.accepted: dict[int, list[int]] = {}
        """By request id, for drafts of full length."""

    def plan(self, view: StepView) -> StepPlan:
        return StepPlan.same_length(view, DRAFT_LENGTH, "evaluation")

    def observe(self, outcome: StepOutcome) -> None:
        for row in np.flatnonzero((outcome.drafted == DRAFT_LENGTH) & ~outcome.truncated).tolist():
            self.accepted.setdefault(int(outcome.request_ids[row]), []).append(int(outcome.accepted[row]))


def figures(accepted: list[int]) -> dict[str, Any]:
    """Share of drafts accepted up to each position, and tokens emitted in a step."""
    lengths = np.array(accepted)
    return {
        "accepted_up_to": [round(float((lengths >= depth).mean()), 4) for depth in range(1, DRAFT_LENGTH + 1)],
        "accepted_length": round(float(1 + lengths.mean()), 3),
        "drafts": len(lengths),
    }


def evaluate(
    models: Models, config: EngineConfig, prompts: list[list[int]], temperature: float, seed: int
) -> dict[str, Any]:
    """Figures of all requests, and of those that do not end in a loop."""
    policy = FixedLength()
    params = [
        SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed + row, ignore_eos=True)
        for row in range(len(prompts))
    ]
    outputs = Engine(config, policy, models=models).generate(prompts, params)
    straight = [row for row, output in enumerate(outputs) if not ends_in_loop(output.token_ids)]
    everything = [length for lengths in policy.accepted.values() for length in lengths]
    result = figures(everything)
    if straight:
        result["without_loops"] = figures([length for row in straight for length in policy.accepted.get(row, [])])
    return result


def main(
    models: Annotated[Path, typer.Option(help="Folder with the target and the heads.")] = Path("models"),
    workloads: Annotated[Path, typer.Option(help="Folder with code.jsonl and prose.jsonl.")] = Path("workloads"),
    count: Annotated[int, typer.Option(help="Prompts per kind of text.")] = 96,
    prompt_length: Annotated[int, typer.Option(help="Prompt length in tokens.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the sampled requests.")] = 11,
    head: Annotated[list[str] | None, typer.Option(help="Measure these only; repeat for several.")] = None,
    out: Annotated[Path, typer.Option(help="Result file, whose other figures stay.")] = Path("models/evaluation.json"),
) -> None:
    """Evaluate the heads under MODELS."""
    tokenizer = AutoTokenizer.from_pretrained(models / TARGET)
    document = json.loads(out.read_text()) if out.exists() else {}
    result: dict[str, Any] = document.setdefault("heads", {})
    result |= {"draft_length": DRAFT_LENGTH, "prompts_per_kind": count, "seed": seed}
    for name in head or HEADS:
        config = EngineConfig(models / TARGET, models / name, dtype="bfloat16", max_model_len=512)
        loaded = Models.load(config)
        for kind in ("code", "prose"):
            real = excerpts(workloads / f"{kind}.jsonl", tokenizer, prompt_length, count)
            prompts = real[:, :prompt_length].tolist()
            for temperature in TEMPERATURES:
                found = evaluate(loaded, config, prompts, temperature, seed)
                result.setdefault(kind, {}).setdefault(name, {})[f"temperature_{temperature}"] = found
                typer.echo(f"{name} {kind} {temperature}: {found}")
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
