"""TurboSpec's schedulers under random orders of what vLLM's engine core does; needs no vLLM.

    python -m tests.turbospec.hosts.vllm.fuzz_loop --steps 200000 --seed 1

A run is a number of walks. Each walk draws a server, serves random requests through random events, ends them all, and
checks after every event that

* nothing raises, and TurboSpec's boundary has nothing to catch but errors that were put there;
* every draft is within the limits of its request, and of the plan that it was made by;
* views and outcomes have the form that `turbospec.interface` gives them, a plan has at most one outcome, and that says
  what the step did;
* the worker can follow every order: what a request catches up is kept, and lies right before the step's tokens;
* a request that has ended is forgotten, and nothing else grows.

A walk depends on its seed alone. The exit status is 1 where a walk failed; its seed is printed, and `--walk SEED`
repeats it.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.turbospec.hosts.vllm.fuzzing.server import Server, Setup, StandIn
from tests.turbospec.hosts.vllm.fuzzing.walk import Walk

NewServer = Callable[[Setup, random.Random], Server]
"""Returns a server that is not built yet, for a configuration."""
GROWTH_MB = 16.0
"""Growth of the process, after the first fifth of a run, that fails it."""
WARM_UP = 20_000
"""Events of a run that may be warm-up; a shorter one does not fail by its growth."""


def walk(seed: int, server: NewServer = StandIn) -> Walk:
    """One walk, to its end."""
    with tempfile.TemporaryDirectory(prefix="turbospec-fuzz-") as folder:
        done = Walk(seed, Path(folder), server)
        done.run()
    return done


@contextmanager
def quiet() -> Iterator[None]:
    """Without TurboSpec's log: errors are put in on purpose."""
    log = logging.getLogger("turbospec")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def main(server: NewServer = StandIn) -> int:
    parser = argparse.ArgumentParser(description="Fuzz TurboSpec's schedulers for vLLM.")
    parser.add_argument("--steps", type=int, default=100_000, help="events in all")
    parser.add_argument("--seed", type=int, default=0, help="of the first walk; the others count on")
    parser.add_argument("--walk", type=int, metavar="SEED", help="only this walk")
    options = parser.parse_args()
    if options.walk is not None:
        options.seed, options.steps = options.walk, 1
    counts: Counter[str] = Counter()
    failed: list[int] = []
    events, seed, memory, began = 0, options.seed, 0.0, time.perf_counter()
    with quiet():
        while events < options.steps:
            done = walk(seed, server)
            events += done.events
            counts += done.counts
            if done.problems:
                failed.append(seed)
                print(f"walk {seed}, event {done.events}: {done.problems[0]}", flush=True)
            if not memory and events > max(options.steps / 5, WARM_UP):
                memory = _megabytes()
            seed += 1
    growth = _megabytes() - memory if memory else 0.0
    print(f"{events} events in {seed - options.seed} walks, {time.perf_counter() - began:.0f} s: {dict(counts)}")
    print(f"{len(failed)} walks failed {failed[:20]}; the process grew by {growth:.1f} MB")
    return 1 if failed or growth > GROWTH_MB else 0


def _megabytes() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    sys.exit(main())
