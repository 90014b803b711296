"""Hot reload: a policy that follows changes of its file (`load_controller(…, reload=True)`)."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from turbospec.controller import GuardConfig
from turbospec.errors import UserError
from turbospec.interface import Policy, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.registered import build_policy
from turbospec.policy.schema import read_policy

log = logging.getLogger("turbospec")


class ReloadingPolicy:
    """The policy of a file, replaced between two steps when the file has changed.

    A valid change takes effect at the next plan; the new policy starts without what the previous one learnt. An invalid
    or deleted file is one warning in the log, and the previous policy stays. The guard's settings belong to the
    controller and are read once, at the start (see `load_controller`).

    Args:
        path: a policy file.
        profile: as for `load_policy`.
        seed: as for `load_policy`.
        check_seconds: shortest time between two checks of the file, on the clock of `StepView.now`.

    Raises:
        UserError: the file is invalid at the start, when there is no previous policy.
    """

    def __init__(
        self, path: Path, *, profile: Profile | None = None, seed: int = 0, check_seconds: float = 1.0
    ) -> None:
        self.path = path
        self._profile = profile
        self._seed = seed
        self._check_seconds = check_seconds
        self._checked_at = -math.inf
        self._stamp = _stamp(path)
        self._guard: GuardConfig | None = None
        """Of the file at the start."""
        self.policy = self._load()

    def plan(self, view: StepView) -> StepPlan:
        # Also where the clock has gone back, or a single view had a wrong time.
        if not 0.0 <= view.now - self._checked_at < self._check_seconds:
            self._checked_at = view.now
            self._follow_file()
        return self.policy.plan(view)

    def observe(self, outcome: StepOutcome) -> None:
        self.policy.observe(outcome)

    def _load(self) -> Policy:
        config = read_policy(self.path)
        policy = build_policy(config, self._profile, self._seed)
        self._guard = self._guard or config.guard
        if config.guard != self._guard:
            log.warning("%s: `guard` has changed, which takes effect at the next start", self.path)
        return policy

    def _follow_file(self) -> None:
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.policy = self._load()
        except UserError as error:
            log.warning("policy not reloaded, the previous one stays: %s", error)
        except Exception:  # another package's policy may raise anything while it is built
            log.exception("policy not reloaded, the previous one stays: %s", self.path)
        else:
            log.info("policy reloaded from %s", self.path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Inode, modification time and size, one of which changes with the file; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
