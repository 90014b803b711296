"""What is kept of vLLM's requests: a number for each name, their own limits, the drafter's KV lag."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from turbospec.models.logistic import MAX_CLASSES

log = logging.getLogger("turbospec")

MAX_DRAFT_ARG = "turbospec_max_draft"
CLASS_ARG = "turbospec_class"


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
    def num_output_tokens(self) -> int: ...


def is_unfinished(request: VllmRequest, computed: int) -> bool:
    """Whether prefill is left after this many computed tokens, also of a request that resumes after a preemption."""
    return computed < request.num_tokens + request.num_output_placeholders


@dataclass(slots=True)
class KnownRequest:
    """A request as the controller knows it."""

    number: int
    """Never used again."""
    max_draft: int | None
    """Longest draft that the request allows; None where it sets no limit."""
    class_id: int
    one_token: bool = False
    """Whether the request asks for one token only."""
    lag_tokens: int = 0
    """Drafter KV lag: consecutive tokens that the drafter's KV cache lacks."""
    lag_since: int = 0
    """Number of the kept step with the first of them."""
    lacks_prompt: bool = False
    """Whether the lag includes prompt tokens whose KV blocks other requests may reuse."""


class KnownRequests:
    """Requests by their names in vLLM, from their first step until they are finished."""

    def __init__(self) -> None:
        self._known: dict[str, KnownRequest] = {}
        self._classes: dict[str, int] = {}
        self._next_number = 0
        self._complained: set[str] = set()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, request: VllmRequest) -> KnownRequest:
        known = self._known.get(request.request_id)
        if known is None:
            known = self._known[request.request_id] = self._register(request)
        return known

    def all_named(self, names: Iterable[str]) -> list[KnownRequest] | None:
        """The requests of these names; None where one is not known, as after its id is used again."""
        try:
            return [self._known[name] for name in names]
        except KeyError:
            return None

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._known.pop(name, None)

    def _register(self, request: VllmRequest) -> KnownRequest:
        params = request.sampling_params
        args = (params.extra_args if params is not None else None) or {}
        number, self._next_number = self._next_number, self._next_number + 1
        return KnownRequest(number, self._max_draft(args), self._class_id(args), request.max_tokens <= 1)

    def _max_draft(self, args: Mapping[str, Any]) -> int | None:
        value = args.get(MAX_DRAFT_ARG)
        if value is None:
            return None
        try:
            length = int(value)
            whole = length >= 0 and length == float(value)
        except (TypeError, ValueError, OverflowError):
            length, whole = 0, False
        if not whole:
            self._complain(MAX_DRAFT_ARG, f"{value!r} is not a whole number from 0 and is ignored")
            return None
        return length

    def _class_id(self, args: Mapping[str, Any]) -> int:
        value = args.get(CLASS_ARG)
        if value is None:
            return 0
        name = str(value)
        if name not in self._classes:
            if len(self._classes) == MAX_CLASSES - 1:
                self._complain(
                    CLASS_ARG,
                    f"only {MAX_CLASSES - 1} classes are distinguished; {name!r} is served as class 0",
                )
                return 0
            self._classes[name] = len(self._classes) + 1
        return self._classes[name]

    def _complain(self, argument: str, text: str) -> None:
        """Warn once for each argument, not for every request of a client."""
        if argument not in self._complained:
            self._complained.add(argument)
            log.warning("%s: %s", argument, text)
