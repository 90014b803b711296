"""The embedded engine with little memory and a drafter that is off: its KV blocks given back, and reserved.

    python benchmarks/memory_given_back.py --rounds 3

The draft model is the target's first layers (`--layers`), which are seldom right without the others: `adaptive` leaves
it off. All requests are there from the beginning, and most of them wait for KV blocks. Both engines serve the same
requests, in turn, and must give the same outputs. Running requests are a mean over steps; tokens/s depend on what else
the machine does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from turbospec import StepOutcome, StepPlan, StepView
from turbospec.controller import Controller, GuardConfig
from turbospec.errors import exit_on_user_error
from turbospec.policy import load_policy
from turbospec_bench.texts import read_texts
from turbospec_engine import Engine, EngineConfig, Models, SamplingParams
from turbospec_engine.checkpoint import load_model
from turbospec_sim.arguments import positive

MEMORIES = ("reserved", "shared")


@dataclass(slots=True)
class DraftCount:
    """Counts the verified draft tokens of an engine."""

    drafted: int = 0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.drafted += int(outcome.drafted.sum())


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to."""

    tokens_per_second: float
    steps: int
    running: float
    most_running: int
    preemptions: int
    drafted: int
    given_back: int
    outputs: list[tuple[int, ...]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--target", default="models/target", help="checkpoint (default models/target)")
    arguments.add_argument("--drafter", help="checkpoint, in place of the target's first layers")
    arguments.add_argument("--layers", type=positive, default=4, help="layers of the draft model (default 4)")
    arguments.add_argument("--policy", default="adaptive", help="policy of both engines (default adaptive)")
    arguments.add_argument("--workload", default="prose", help="code or prose (default prose)")
    arguments.add_argument("--requests", type=positive, default=96, help="requests of a round (default 96)")
    arguments.add_argument("--prompt-tokens", type=positive, default=160, help="tokens of a prompt (default 160)")
    arguments.add_argument("--output-tokens", type=positive, default=160, help="tokens of an output (default 160)")
    arguments.add_argument("--blocks", type=positive, default=240, help="blocks of the KV cache (default 240)")
    arguments.add_argument(
        "--rounds", type=positive, default=3, help="rounds after the first, uncounted one (default 3)"
    )
    options = arguments.parse_args()
    torch.set_num_threads(1)
    with exit_on_user_error(), tempfile.TemporaryDirectory() as folder:
        drafter = options.drafter or first_layers(Path(options.target), options.layers, Path(folder))
        play(drafter, options)


def first_layers(target: Path, layers: int, folder: Path) -> Path:
    """Write the draft model that is a target's first layers."""
    model = load_model("target", target, dtype=torch.float32, device="cpu")
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(target).save_pretrained(folder)
    return folder


def play(drafter: Path, options: argparse.Namespace) -> None:
    """Serve all rounds and print a line for each run."""
    config = EngineConfig(
        options.target, drafter, max_num_seqs=64, max_num_batched_tokens=512, num_blocks=options.blocks, max_draft=5
    )
    models = Models.load(config)
    engines: dict[str, Engine] = {}
    counts = {memory: DraftCount() for memory in MEMORIES}
    for memory, count in counts.items():
        # A busy machine must not make the guard replace the policy.
        guard = GuardConfig(max_decision_seconds=1.0)
        controller = Controller(load_policy(options.policy), guard=guard, listeners=[count])
        engines[memory] = Engine(replace(config, drafter_memory=memory), controller, models=models)
    texts = read_texts(Path(f"workloads/{options.workload}.jsonl"))
    print(f"{'round':5} {'memory':9} {'tokens/s':>8} {'steps':>6} {'running':>8} {'most':>5} {'preempted':>9} "
          f"{'drafted':>8} {'given back':>10} {'same outputs':>12}")  # fmt: skip
    for number in range(options.rounds + 1):
        rng = np.random.default_rng(number)
        prompts = [texts[int(index)] for index in rng.integers(len(texts), size=options.requests)]
        order = MEMORIES if number % 2 else MEMORIES[::-1]
        runs = {memory: serve(engines[memory], counts[memory], prompts, options) for memory in order}
        for memory, run in runs.items() if number else ():
            same = sum(a == b for a, b in zip(run.outputs, runs["reserved"].outputs, strict=True))
            print(f"{number:5} {memory:9} {run.tokens_per_second:8.0f} {run.steps:6} {run.running:8.2f} "
                  f"{run.most_running:5} {run.preemptions:9} {run.drafted:8} {run.given_back:10} "
                  f"{same:8}/{len(run.outputs)}", flush=True)  # fmt: skip


def serve(engine: Engine, count: DraftCount, prompts: list[str], options: argparse.Namespace) -> Figures:
    """Serve a round in an idle engine."""
    tokenizer, scheduler = engine.tokenizer, engine.scheduler
    params = SamplingParams(max_tokens=options.output_tokens, ignore_eos=True)
    began, preempted, given_back = time.perf_counter(), scheduler.num_preemptions, scheduler.blocks.num_given_back
    requests = [
        engine._requests[engine.add_request(tokenizer.encode(prompt)[: options.prompt_tokens], params)]
        for prompt in prompts
    ]
    running: list[int] = []
    count.drafted = 0
    while engine.has_work():
        engine.step()
        running.append(len(scheduler.running))
    tokens = sum(request.emitted for request in requests)
    return Figures(
        tokens_per_second=tokens / (time.perf_counter() - began),
        steps=len(running),
        running=float(np.mean(running)),
        most_running=max(running),
        preemptions=scheduler.num_preemptions - preempted,
        drafted=count.drafted,
        given_back=scheduler.blocks.num_given_back - given_back,
        outputs=[tuple(request.output_tokens.tolist()) for request in requests],
    )


if __name__ == "__main__":
    main()
