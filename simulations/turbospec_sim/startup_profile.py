"""Step times that a simulated vLLM measures before it serves, for `vllm_adaptive_verification`.

Source: vLLM 0.32, `AdaptiveVerificationManager.batches_to_profile` and `GPUModelRunner._dummy_run`: five dummy steps of
every CUDA graph's size, of 1.5 times the largest and of its doubles up to the token budget. A dummy step spreads its
tokens over as many requests as possible, and drafts the whole block for each. Only the model's pass is timed, without
sampling.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np

from turbospec.interface import IntArray
from turbospec.models.profile import LatencySample, Profile
from turbospec.policy.adaptive_verification.policy import GRAPH_SIZES
from turbospec.runtime.kernels import compiled
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.drafting import ALL_TOKENS, draft, run_first_pass
from turbospec_sim.records import REQUEST, SLOT, TOKENS, Records
from turbospec_sim.state import EngineState
from turbospec_sim.verification import target_pass
from turbospec_sim.workload.offered import STARTUP

REPLAYS = 5


def startup_profile(state: EngineState, context_tokens: int, seed: int) -> Profile:
    """Time dummy steps of a simulated engine; its state does not change.

    Args:
        state: of a run.
        context_tokens: context of each dummy request.
        seed: of the noise.
    """
    engine = state.engine.copy()
    engine["draft_steps"] = engine["selection"] = 1
    engine["times"]["sampled_token"] = 0.0
    most = int(engine["max_num_batched_tokens"][0])
    graphs = [size for size in state.times.graph_sizes if size <= most]
    # Without graphs, on which vLLM would insist, sizes that lie as closely.
    sizes = graphs or list(takewhile(lambda size: size < most, (1 << power for power in range(32)))) or [most]
    rng, sigma = np.random.default_rng([seed, STARTUP]), state.times.noise
    samples = list[LatencySample]()
    for size in sorted({*sizes, *_tail(sizes[-1], most)}):
        requests = min(size, int(engine["max_num_seqs"][0]))
        arrays = state.arrays._replace(engine=engine, requests=np.zeros(requests, REQUEST))
        arrays = arrays._replace(batch=np.zeros((2, requests), np.int64))
        draft_seconds, verify_seconds, rows, context = _dummy_step(size, context_tokens, *arrays)
        for _ in range(REPLAYS):
            noise = np.exp(sigma * rng.standard_normal(2) - 0.5 * sigma**2)
            samples.append(
                LatencySample(
                    draft_rows=tuple(rows.tolist()),
                    draft_context_tokens=0,
                    catch_up_tokens=0,
                    tokens_batched=size,
                    prefill_tokens=0,
                    context_tokens=context,
                    draft_seconds=draft_seconds * noise[0],
                    verify_seconds=verify_seconds * noise[1],
                    step_seconds=draft_seconds * noise[0] + verify_seconds * noise[1],
                )
            )
    return Profile(samples, {GRAPH_SIZES: graphs})


def _tail(size: int, most: int) -> list[int]:
    """Sizes beyond the largest graph."""
    sizes = [min(size + size // 2, most)]
    while size < most:
        size = min(2 * size, most)
        sizes.append(size)
    return sizes


@compiled
def _dummy_step(tokens: int, context: int, *loose: Records) -> tuple[float, float, IntArray, int]:
    """Seconds of drafting and of the target's pass, rows of the drafter's passes, and KV tokens of the target's.

    A first pass that runs in every step counts as drafting: vLLM times all that its drafter does.
    """
    arrays = EngineArrays(*loose)
    state, requests, batch = arrays.engine[0], arrays.requests, arrays.batch
    size = len(requests)
    for i in range(size):
        own = tokens // size + (i >= size - tokens % size)
        request = requests[i]
        request.prompt_tokens, request.emitted, request.computed = context, 1, context
        request.draft_computed, request.drafts, request.selected = context + 1, own - 1, ALL_TOKENS
        batch[SLOT, i], batch[TOKENS, i] = i, 1
    target = target_pass(arrays, size)
    lengths, sources = np.full(size, state.max_draft), np.zeros(size, np.int64)
    first_pass = run_first_pass(arrays.engine, requests, batch[SLOT])
    drafter = draft(arrays.engine, requests, batch[SLOT], lengths, sources)
    rows = drafter.rows
    if len(rows) == 0:
        rows = np.full(1, lengths.sum() if state.parallel_drafter and not state.batch_drafter else size)
    return first_pass + drafter.seconds, target.seconds, rows, target.context_tokens
