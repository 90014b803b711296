"""KV blocks of the prefix that the requests of a class share: one copy, as long as the longest of running requests.

The drafter's copy takes no memory here.
"""

from __future__ import annotations

from turbospec.interface import IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.records import RUNNING, Record, Records


@compiled
def prefix_lacking(state: Record, request: Record) -> int:
    """Blocks that a request's shared prefix needs beyond those that its class holds."""
    return max(request.shared_tokens // state.block_size - state.shared_blocks[request.class_id], 0)


@compiled
def hold_prefix(state: Record, request: Record) -> None:
    """Count a request's shared prefix among the blocks that its class holds."""
    state.shared_blocks[request.class_id] += prefix_lacking(state, request)


@compiled
def free_prefixes(engine: Records, requests: Records, queues: IntArray) -> None:
    """Free what no running request needs of the shared prefixes."""
    state = engine[0]
    for held in state.shared_blocks:
        state.free_blocks += held
    state.shared_blocks[:] = 0
    for place in range(state.running):
        hold_prefix(state, requests[queues[RUNNING, place]])
    for held in state.shared_blocks:
        state.free_blocks -= held
