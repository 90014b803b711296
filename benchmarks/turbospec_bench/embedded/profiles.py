"""Profiles (measured step times) of every pair, for policies that predict; measured once and cached on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from turbospec.errors import UserError
from turbospec.files.writing import check_outputs
from turbospec.models.profile import Profile
from turbospec_bench.configuration import Configuration
from turbospec_bench.embedded.pairs import DRAFTERS, Pairs
from turbospec_bench.embedded.workloads import USUAL_SAMPLING
from turbospec_bench.machine import processor, source_digest
from turbospec_bench.matrix import TARGET
from turbospec_bench.rounds import DisturbanceCheck
from turbospec_bench.trace_folder import TraceFolder
from turbospec_engine import Engine
from turbospec_engine.profiling import ScriptedController, measure

CACHE = Path(".cache/turbospec")
MAX_CONCURRENCY = 32
"""Largest measured batch."""
MAX_SECONDS = 20.0


class MeasuredProfiles:
    """Measures a pair when its profile is first needed, unless the cache has one of the same weights and settings.

    Args:
        announce: called before each measurement, with a line for the user.
        text: tokens of the served text.
        cache: folder of measured profiles; None to measure anew.
        earlier: traces of the run that is resumed, with the profiles that go with them; None for a new run.
        check: notices other processes, beside which a measurement is not cached; None: it is cached.
    """

    def __init__(
        self,
        pairs: Pairs,
        announce: Callable[[str], None],
        text: Sequence[int],
        cache: Path | None = CACHE,
        earlier: TraceFolder | None = None,
        check: DisturbanceCheck | None = None,
    ) -> None:
        self._pairs = pairs
        self._announce = announce
        self._text = text
        self._cache = cache
        self._earlier = earlier
        self._check = check
        self._loaded: dict[str, Profile] = {}

    def __call__(self, configuration: Configuration) -> Profile:
        if configuration.drafter not in self._loaded:
            self._loaded[configuration.drafter] = self._load_or_measure(configuration)
        return self._loaded[configuration.drafter]

    def _load_or_measure(self, configuration: Configuration) -> Profile:
        path = None
        if self._cache is not None:
            path = self._cache / f"profile-{configuration.drafter}-{self._fingerprint(configuration)}.json"
        known = path if self._earlier is None else self._earlier.profile(configuration.drafter)
        if known is not None:
            # Without a file there, or with a broken one, it is measured.
            with suppress(UserError):
                return Profile.load(known)
        self._announce(f"measuring step times with the {configuration.drafter} drafter (at most {MAX_SECONDS:.0f} s)")
        config = self._pairs.engine_config(
            Configuration(configuration.workload, configuration.drafter, MAX_CONCURRENCY)
        )
        controller = ScriptedController(rng=np.random.default_rng(0))
        engine = Engine(config, controller, models=self._pairs.models(configuration))
        if self._check is not None:
            self._check.watch.restart()
        profile = measure(engine, max_seconds=MAX_SECONDS, sampling=USUAL_SAMPLING, text=self._text)
        if path is not None and not self._was_disturbed() and self._can_be_written(path):
            profile.save(path)
        return profile

    def _was_disturbed(self) -> bool:
        """Whether other processes disturbed the measurement that has just ended; says so."""
        if self._check is None or not self._check.disturbs(others := self._check.watch.other_cores()):
            return False
        self._announce(
            f"the step times are not cached: other processes used {others:.1f} cores while they were measured"
        )
        return True

    def _can_be_written(self, path: Path) -> bool:
        """Whether the cache can hold a file; says so where it cannot."""
        try:
            check_outputs(path)
        except UserError as error:
            self._announce(f"the profile is not cached: {error}")
            return False
        return True

    def _fingerprint(self, configuration: Configuration) -> str:
        """A hash of the weights, their type, device, threads, sampling settings, the processor and the engine."""
        folders = [TARGET, *([DRAFTERS[configuration.drafter]] if configuration.drafter in DRAFTERS else [])]
        files = sorted(file for name in folders for file in (self._pairs.folder / name).glob("*.safetensors"))
        weights = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        described = [weights, self._pairs.device, self._pairs.dtype, torch.get_num_threads(), torch.__version__]
        described += [USUAL_SAMPLING.temperature, USUAL_SAMPLING.top_p, self._text[:64]]
        described += [self._pairs.gpu]
        described += [processor(), os.environ.get("OMP_WAIT_POLICY", ""), source_digest("turbospec_engine")]
        described += [self._pairs.lookup]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:12]
