# pyright: basic, reportMissingImports=false
"""The drafter's input of steps in which it did not run, kept until the drafter catches up.

Shared by both of vLLM's model runners. Runs in the worker and must not import numba.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag
from turbospec.hosts.vllm.worker.host_to_device import to_device

log = logging.getLogger("turbospec")


@dataclass(slots=True)
class KeptStep:
    """The drafter's input of one step, on the device."""

    step: int
    tokens: torch.Tensor
    """(t,)"""
    hidden: torch.Tensor | None
    """(t, hidden size) of the target; None for drafters that do not take hidden states."""
    lengths: dict[str, int]
    """Tokens of each request, in their order in `tokens`."""
    valid: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many of them are not rejected drafts, by request; all of them for a request that is missing."""


class FirstPass(NamedTuple):
    """The rows of a drafter's first pass, each request's kept tokens before its own. n requests, t rows."""

    anchors: torch.Tensor
    """(t,) the step's own row that a row's position is counted from."""
    offsets: torch.Tensor
    """(t,) position relative to that of the anchor, at most 0."""
    starts: np.ndarray
    """(n + 1,) first row of each request, and the end."""
    added: np.ndarray
    """(n,) kept tokens of each request."""
    tokens: torch.Tensor
    """(t,)"""
    hidden: torch.Tensor | None
    """(t, hidden size), for drafters that take hidden states."""

    def positions(self, own: torch.Tensor) -> torch.Tensor:
        """(t,) positions, from those of the step's own rows."""
        return own[self.anchors] + self.offsets.to(own.dtype)

    @property
    def lengths(self) -> np.ndarray:
        """(n,) rows of each request."""
        return np.diff(self.starts)


class KeptInputs:
    """A queue of the drafter's inputs.

    Args:
        with_hidden: whether the drafter takes the target's hidden states.
        alone: whether no other worker runs the same steps. With tensor parallelism all workers' passes must have one
            shape: one worker cannot drop its kept input alone, so its errors are raised.
    """

    def __init__(self, *, with_hidden: bool, alone: bool) -> None:
        self._with_hidden = with_hidden
        self._alone = alone
        self._steps: deque[KeptStep] = deque()

    def update(self, orders: DrafterOrders | None) -> None:
        """Drop what no request needs any more, and all where a step has no orders; note which drafts were rejected."""
        while self._steps and (orders is None or self._steps[0].step < orders.oldest):
            self._steps.popleft()
        if orders is not None and orders.resolved:
            first = min(orders.resolved)
            for kept in reversed(self._steps):  # thousands may be kept; those that are resolved are among the newest
                if kept.step < first:
                    break
                kept.valid = orders.resolved.get(kept.step, kept.valid)

    def keep(
        self, orders: DrafterOrders, lengths: Mapping[str, int], tokens: torch.Tensor, hidden: Sequence[torch.Tensor]
    ) -> None:
        """Keep the input of the requests that stay out of the step's first pass.

        As copies, because the runner writes the next step's input into the same tensors.

        Args:
            orders: for the step.
            lengths: tokens of each request in the step, in the order of its rows.
            tokens: (t or more,) of the step.
            hidden: (t or more, ·) each; the target's hidden states, to be concatenated.
        """
        if not (orders.skip or orders.keep):
            return
        kept = dict(lengths)
        places: slice | torch.Tensor = slice(sum(kept.values()))
        if not orders.skip:
            missing = np.array([name in orders.keep for name in kept])
            rows = np.flatnonzero(np.repeat(missing, list(kept.values())))
            places = to_device(rows, tokens.device)
            kept = {name: number for name, number in kept.items() if name in orders.keep}
        with self.degrade_on_error():
            states = torch.cat([each[places] for each in hidden], dim=-1) if self._with_hidden else None
            self._steps.append(KeptStep(orders.step, tokens[places].clone(), states, kept))

    @contextmanager
    def degrade_on_error(self):
        """Turns an error, such as out of memory, into worse drafts: kept input is dropped and the worker continues."""
        try:
            yield
        except Exception:
            if not self._alone:
                raise
            log.exception(
                "TurboSpec could not keep the drafter's input; fewer draft tokens will be accepted for some requests"
            )
            self._steps.clear()

    def first_pass(
        self,
        catch_up: Mapping[str, KvLag],
        names: Iterable[str],
        starts: np.ndarray,
        tokens: torch.Tensor,
        hidden: torch.Tensor | None,
    ) -> FirstPass:
        """A first pass with each request's kept tokens before its own.

        Args:
            catch_up: the lag of each request that catches up.
            names: of the step's n requests.
            starts: (n + 1,) first row of each request in the step, and the end.
            tokens: (t or more,) of the step.
            hidden: (t or more, hidden size), for drafters that take hidden states.
        """
        names, total = list(names), int(starts[-1])
        sources, found = self._find(catch_up, total)
        lengths = np.diff(starts)
        added = np.array([len(found.get(name, ())) for name in names], np.int64)
        nothing = np.zeros(0, np.int64)
        pieces: list[np.ndarray] = []
        for row, name in enumerate(names):
            pieces += [found.get(name, nothing), np.arange(starts[row], starts[row + 1])]
        # The position of each row relative to the first of its request in the step; kept ones are negative.
        own = np.concatenate([np.arange(-added[row], lengths[row]) for row in range(len(added))])
        anchors = np.repeat(starts[:-1], lengths + added) + np.maximum(own, 0)
        device = tokens.device
        # Rows of the step's own input followed by the kept one.
        source = to_device(np.concatenate(pieces), device)
        states = None
        if hidden is not None:
            states = torch.cat([hidden[:total], *(kept.hidden for kept in sources if kept.hidden is not None)])[source]
        return FirstPass(
            anchors=to_device(anchors.astype(np.int64), device),
            offsets=to_device(np.minimum(own, 0), device),
            starts=np.concatenate([[0], np.cumsum(lengths + added)]).astype(np.int32),
            added=added,
            tokens=torch.cat([tokens[:total], *(kept.tokens for kept in sources)])[source],
            hidden=states,
        )

    def _find(self, catch_up: Mapping[str, KvLag], total: int) -> tuple[list[KeptStep], dict[str, np.ndarray]]:
        """The kept steps that are needed, and the rows of each request in them.

        Rows are numbered as if the kept steps were concatenated after the step's own `total` tokens. A request whose
        kept tokens are incomplete gets no rows.
        """
        numbers = {name: number for number, name in enumerate(catch_up)}
        since = np.array([missed.since for missed in catch_up.values()])
        sources = [kept for kept in self._steps if kept.step >= since.min()]
        owners, rows, offset = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], total
        names: list[str] | None = None
        for kept in sources:
            # Hundreds of steps may be kept, most of them of the same requests.
            if (own := list(kept.lengths)) != names:
                names = own
                place_of = {name: place for place, name in enumerate(names) if name in numbers}
                places = np.array([*place_of.values()], np.int64)
                owner = np.array([numbers[name] for name in place_of], np.int64)
            lengths = np.fromiter(kept.lengths.values(), np.int64, len(own))
            starts = offset + np.cumsum(lengths) - lengths
            for name, number in kept.valid.items():
                if name in place_of:
                    lengths[place_of[name]] = number
            wanted = kept.step >= since[owner]
            counts, begins = lengths[places][wanted], starts[places][wanted]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            owners.append(np.repeat(owner[wanted], counts))
            rows.append(np.repeat(begins, counts) + within)
            offset += len(kept.tokens)
        owned, found = np.concatenate(owners), np.concatenate(rows)
        ends = np.cumsum(np.bincount(owned, minlength=len(numbers)))[:-1]
        by_request = np.split(found[np.argsort(owned, kind="stable")], ends)
        each = zip(catch_up.items(), by_request, strict=True)
        return sources, {name: places for (name, missed), places in each if len(places) == missed.tokens}
