"""Compare the speed of turbospec_sim and Vidur (`pip install vidur`, in the same environment) on the same requests.

    python simulations/compare_with_vidur.py --rounds 5

Vidur's package has no GPU profiles, and this script fetches none. Vidur's predictor looks times up in tables; here the
tables hold the step times of compare_with_vidur.yaml, so that both simulate the same server. Vidur's own predictions,
and the time that its predictors need for training, are not measured.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from turbospec_sim.run import Run, simulate
from turbospec_sim.scenario import Scenario
from turbospec_sim.scenario_file import read_scenario
from turbospec_sim.step_time import pass_seconds
from turbospec_sim.workload.lengths import ConstantLength

SCENARIO = Path(__file__).with_suffix(".yaml")
LAYERS = 32
"""Of the model, Llama-3-8B."""
CONTEXT_GRAIN, CHUNK_GRAIN = 256, 32
"""Tokens to which Vidur rounds KV caches and prefill chunks before it looks them up."""
BY_TOKENS = (
    *("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "mlp_act", "attn_rope", "attn_kv_cache_save"),
    *("input_layernorm", "post_attention_layernorm", "add", "all_reduce", "send_recv"),
)
"""Vidur's tables that are looked up by a step's tokens."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One simulation. Seconds are CPU time, which other work on the machine affects least."""

    seconds: float
    """Of the simulation, after imports, compilation and table building."""
    start_seconds: float
    """Of its process before: imports; compiling or loading kernels, and a first simulation; building Vidur's tables."""
    steps: int
    """Forward passes of the engine, counted per pipeline stage."""
    simulated_seconds: float


def time_turbospec() -> Timed:
    """Simulate twice and time the second simulation; the first one compiles or loads kernels."""
    scenario = read_scenario(SCENARIO)
    run = Run(SCENARIO.stem, scenario, scenario.policy, scenario.rates[0], scenario.seed)
    simulate(run)
    began = time.process_time()
    row = simulate(run)
    return Timed(time.process_time() - began, began, row["engine_steps"], row["duration"])


def time_vidur(*, metrics: bool = False, example: bool = False) -> Timed:
    """Simulate once: Vidur supports one run in a process, because it numbers its replicas across runs.

    Args:
        metrics: whether Vidur collects its metrics. Its plots, which need a browser, and its traces are off.
        example: use the servers of `python -m vidur.main` (16 GPUs, two pipeline stages) in place of the scenario's.
    """
    logging.disable()
    scenario = read_scenario(SCENARIO)
    simulator = import_module("vidur.simulator")
    predictor = import_module("vidur.execution_time_predictor.sklearn_execution_time_predictor")
    found = tables(scenario)
    # Vidur first tries to download tables, and trains its predictors where there are none.
    predictor.SklearnExecutionTimePredictor._load_predictions_from_hf = lambda self: found
    with tempfile.TemporaryDirectory() as folder:
        config = vidur_config(scenario, folder, metrics=metrics, example=example)
        began = time.process_time()
        simulation = simulator.Simulator(config)
        simulation.run()
        seconds = time.process_time() - began
    batches = import_module("vidur.entities").Batch.generate_id()
    stages = config.cluster_config.replica_config.num_pipeline_stages
    return Timed(seconds, began, batches * stages, simulation._time)


def vidur_config(scenario: Scenario, folder: str, *, metrics: bool, example: bool) -> Any:
    """A scenario in Vidur's terms; see `time_vidur`."""
    vidur, server = import_module("vidur.config.config"), scenario.server
    cluster = vidur.ClusterConfig(
        cache_config=vidur.CacheConfig(
            num_blocks=server.kv_cache_tokens // server.block_size, block_size=server.block_size
        )
    )
    if not example:
        cluster.replica_config = vidur.ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1)
        cluster.replica_scheduler_config = vidur.SarathiSchedulerConfig(
            batch_size_cap=server.max_num_seqs, chunk_size=server.max_num_batched_tokens
        )
    prompt, output = lengths(scenario)
    return vidur.SimulationConfig(
        cluster_config=cluster,
        request_generator_config=vidur.SyntheticRequestGeneratorConfig(
            length_generator_config=vidur.FixedRequestLengthGeneratorConfig(
                max_tokens=prompt + output, prefill_tokens=prompt, decode_tokens=output
            ),
            num_requests=scenario.workload.requests,
        ),
        execution_time_predictor_config=vidur.RandomForrestExecutionTimePredictorConfig(
            cache_dir=folder, attention_decode_batching_overhead_fraction=0.0
        ),
        metrics_config=vidur.MetricsConfig(
            write_metrics=metrics, store_plots=False, enable_chrome_trace=False, output_dir=folder
        ),
    )


def tables(scenario: Scenario) -> dict[str, dict[tuple[int, ...], float]]:
    """The tables of Vidur's predictor: milliseconds of a layer's parts, by tokens, or by batch or chunk and KV cache.

    The table of one part has the time of the whole pass; the tables of the other parts have zeros.
    """
    times, layer = scenario.latency.step_times(), 1000.0 / LAYERS
    most, requests = scenario.server.max_num_batched_tokens, scenario.server.max_num_seqs
    contexts = range(0, sum(lengths(scenario)) + CONTEXT_GRAIN, CONTEXT_GRAIN)
    found: dict[str, dict[tuple[int, ...], float]] = {}
    for name in BY_TOKENS:
        found[name] = dict.fromkeys(((tokens,) for tokens in range(most + requests + 1)), 0.0)
    for (tokens,) in found["mlp_up_proj"]:
        found["mlp_up_proj"][tokens,] = layer * pass_seconds(times.curve, tokens)
    found["attn_decode"] = {
        (batch, context): layer * times.kv_token * batch * context
        for batch in range(requests + 1)
        for context in contexts
    }
    found["attn_prefill"] = {
        (context, chunk): layer * (times.kv_token * context + times.attention_pair * chunk * (context - 0.5 * chunk))
        for chunk in range(0, most + 1, CHUNK_GRAIN)
        for context in contexts
    }
    return found


def lengths(scenario: Scenario) -> tuple[int, int]:
    """Tokens of each prompt and of each output."""
    (kind,) = scenario.workload.classes
    assert isinstance(kind.prompt_tokens, ConstantLength)
    assert isinstance(kind.output_tokens, ConstantLength)
    return kind.prompt_tokens.tokens, kind.output_tokens.tokens


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    options = arguments.parse_args()
    if options.rounds < 1:
        arguments.error(f"--rounds {options.rounds}: at least one is needed")
    if find_spec("vidur") is None:
        arguments.error("Vidur is not installed; `pip install vidur`")
    ways: dict[str, Callable[[], Timed]] = {
        "turbospec_sim": time_turbospec,
        "Vidur": time_vidur,
        "Vidur, with metrics": partial(time_vidur, metrics=True),
        "Vidur, its own server": partial(time_vidur, example=True),
    }
    timed: dict[str, list[Timed]] = {name: [] for name in ways}
    for round_ in range(options.rounds):
        for name, way in ways.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own_process:
                timed[name].append(own_process.submit(way).result())
            print(f"round {round_ + 1}: {name} {timed[name][-1].seconds:.2f} s", file=sys.stderr, flush=True)
    requests = read_scenario(SCENARIO).workload.requests or 0
    print(f"{requests} requests           requests/s (lowest, highest)  ours: times  start, s    steps  simulated, s")
    ours = statistics.median(one.seconds for one in timed["turbospec_sim"])
    for name, found in timed.items():
        seconds = sorted(one.seconds for one in found)
        middle, start = statistics.median(seconds), statistics.median(one.start_seconds for one in found)
        speed = f"{requests / middle:,.0f} ({requests / seconds[-1]:,.0f}, {requests / seconds[0]:,.0f})"
        last = found[-1]
        line = f"{name:22}  {speed:>28}  {middle / ours:11.1f}  {start:8.1f}  {last.steps:7,}"
        print(f"{line}  {last.simulated_seconds:12.1f}")


if __name__ == "__main__":
    main()
