"""What is kept of vLLM's requests, in arrays: a number for each, their own limits, the drafter's KV lag."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import repeat
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np

from turbospec.interface import IntArray
from turbospec.models.logistic import MAX_CLASSES

log = logging.getLogger("turbospec")

MAX_DRAFT_ARG = "turbospec_max_draft"
CLASS_ARG = "turbospec_class"
MOST_TOKENS = 2**31 - 1
"""Bound on `max_tokens`, which a client may set to any integer; no model is as long."""
UNLIMITED = np.iinfo(np.int64).max
"""The draft length that a request allows which sets no limit."""
NAME = attrgetter("request_id")
"""Of a request, or of its `EngineCoreOutput`."""
LONGEST_SHOWN = 60
"""Characters of a client's value in a log line."""


class SamplingParams(Protocol):
    @property
    def extra_args(self) -> dict[str, Any] | None: ...


class VllmRequest(Protocol):
    """The part of `vllm.v1.request.Request` that is read."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_placeholders: int
    max_tokens: int
    sampling_params: SamplingParams | None

    @property
    def num_tokens(self) -> int: ...
    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output, without those of steps in flight."""
        ...

    @property
    def use_structured_output(self) -> bool: ...


class KnownRequests:
    """Requests from their first step until they are finished; each has a row in every array.

    Rows are used again, `numbers` are not.
    """

    CAPACITY = 256
    """Rows at the start."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._free = list(range(self.CAPACITY - 1, -1, -1))
        self._classes: dict[str, int] = {}
        self._next_number = 0
        self._complained: set[str] = set()
        self.numbers = np.zeros(self.CAPACITY, np.int64)
        """The requests' ids in views."""
        self.max_draft = np.zeros(self.CAPACITY, np.int64)
        """Longest draft that the request allows."""
        self.class_ids = np.zeros(self.CAPACITY, np.int64)
        self.prompt = np.zeros(self.CAPACITY, np.int64)
        """Prompt tokens."""
        self.max_tokens = np.zeros(self.CAPACITY, np.int64)
        """Most output tokens."""
        self.lag_tokens = np.zeros(self.CAPACITY, np.int64)
        """Drafter KV lag: consecutive tokens that the drafter's KV cache lacks. Drafts count once they are known to be
        accepted. 0 in rows without a request."""
        self.lag_since = np.zeros(self.CAPACITY, np.int64)
        """Number of the kept step with the first of them."""
        self.unresolved = np.zeros(self.CAPACITY, np.int64)
        """Steps of the lag that verify drafts of the request, and have not ended."""
        self.misses = np.zeros(self.CAPACITY, np.int64)
        """How many of its latest drafts in a row were rejected in full, among the steps it lags by."""
        self.lacks_prompt = np.zeros(self.CAPACITY, np.bool_)
        """Whether the lag includes prompt tokens whose KV blocks other requests may reuse."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> Set[str]:
        """Of all known requests."""
        return self._rows.keys()

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def rows(self, requests: Sequence[VllmRequest]) -> IntArray:
        """(n,) rows of these requests; those not seen before get one."""
        rows = values_by_name(self._rows, list(map(NAME, requests)), -1)
        if rows.min(initial=0) < 0:
            for index in np.flatnonzero(rows < 0).tolist():
                rows[index] = self._register(requests[index])
        return rows

    def rows_named(self, names: Collection[str]) -> IntArray | None:
        """(n,) rows of the requests of these names; None where one is not known, as after its id is used again."""
        rows = values_by_name(self._rows, names, -1)
        return None if (rows < 0).any() else rows

    def row(self, name: str) -> int | None:
        """The row of a request; None for one that is not known."""
        return self._rows.get(name)

    def restart(self, request: VllmRequest) -> None:
        """Take note that a known request starts anew, after a preemption or with the next input of its session.

        What it lacked in the drafter's KV cache does not lie before its next tokens any more.
        """
        if (row := self._rows.get(request.request_id)) is not None:
            self._start(row, request)

    def preempt(self, names: Iterable[str]) -> None:
        """Take note that requests will start anew, as after losing their KV blocks: they lack nothing until then."""
        for name in names:
            if (row := self._rows.get(name)) is not None:
                self.clear_lag(row)

    def clear_lag(self, rows: int | slice | IntArray) -> None:
        """Take note that the requests of these rows lag by no token."""
        self.lag_tokens[rows], self.unresolved[rows], self.misses[rows], self.lacks_prompt[rows] = 0, 0, 0, False

    def forget(self, names: Iterable[str]) -> None:
        """Free the rows of finished requests; names that are not known are ignored."""
        for name in names:
            if (row := self._rows.pop(name, None)) is not None:
                self.lag_tokens[row] = 0
                self._free.append(row)

    def _register(self, request: VllmRequest) -> int:
        if not self._free:
            self._grow()
        row = self._rows[request.request_id] = self._free.pop()
        self.numbers[row], self._next_number = self._next_number, self._next_number + 1
        self._start(row, request)
        return row

    def _start(self, row: int, request: VllmRequest) -> None:
        args = _arguments(request)
        self.max_draft[row] = self._max_draft(args)
        self.class_ids[row] = self._class_id(args)
        self.prompt[row], self.max_tokens[row] = request.num_prompt_tokens, min(request.max_tokens, MOST_TOKENS)
        self.clear_lag(row)

    def _grow(self) -> None:
        capacity = len(self.numbers)
        self._free = list(range(2 * capacity - 1, capacity - 1, -1))
        columns = [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]
        for name in columns:
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.zeros_like(values)]))

    def _max_draft(self, args: Mapping[str, Any]) -> int:
        value = args.get(MAX_DRAFT_ARG)
        if value is None:
            return UNLIMITED
        try:
            length = int(value)
            whole = length >= 0 and length == float(value)
        except Exception:  # of whatever type a client gave
            length, whole = 0, False
        if not whole:
            self._complain(MAX_DRAFT_ARG, f"{_shown(value)} is not a whole number from 0 and is ignored")
            return UNLIMITED
        return min(length, UNLIMITED)

    def _class_id(self, args: Mapping[str, Any]) -> int:
        value = args.get(CLASS_ARG)
        if value is None:
            return 0
        try:
            name = str(value)
        except Exception:  # such as an integer of too many digits
            self._complain(CLASS_ARG, f"{_shown(value)} is no name and is served as class 0")
            return 0
        if name not in self._classes:
            if len(self._classes) == MAX_CLASSES - 1:
                self._complain(
                    CLASS_ARG,
                    f"only {MAX_CLASSES - 1} classes are distinguished; {_shown(name)} is served as class 0",
                )
                return 0
            self._classes[name] = len(self._classes) + 1
        return self._classes[name]

    def _complain(self, argument: str, text: str) -> None:
        """Warn once for each argument, not for every request of a client."""
        if argument not in self._complained:
            self._complained.add(argument)
            log.warning("%s: %s", argument, text)


def values_by_name(values: Mapping[str, int], names: Collection[str], missing: int) -> IntArray:
    """(n,) the value of each name, `missing` for one without. No Python loop: a batch may have a thousand requests."""
    return np.fromiter(map(values.get, names, repeat(missing)), np.int64, len(names))


def _arguments(request: VllmRequest) -> Mapping[str, Any]:
    """The request's `extra_args`; none where they are no mapping."""
    params = request.sampling_params
    args: object = None if params is None else params.extra_args
    return cast("Mapping[str, Any]", args) if isinstance(args, Mapping) else {}


def _shown(value: object) -> str:
    """A client's value for the log: printable, short, and whatever its type."""
    try:
        text = repr(value)
    except Exception:
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
