from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

import pytest
from numba import njit
from numba.core import event

from turbospec_sim.interrupts import deferred_interrupts


class Ended(BaseException):
    """What a handler raises."""


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest):
    """A signal whose handler raises `Ended`."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended

    before = signal.signal(request.param, end)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_waits_and_then_goes_to_its_own_handler(number: int) -> None:
    handler, waited = signal.getsignal(number), list[int]()

    def steps() -> None:
        with deferred_interrupts() as arrived:
            signal.raise_signal(number)
            waited.extend(arrived)

    with pytest.raises(Ended):
        steps()
    assert waited == [number]
    assert signal.getsignal(number) is handler


class DuringCompilation(event.Listener):
    """Does something in the compiler, whose event this is."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.went_on = False

    def on_start(self, event: event.Event) -> None:
        self._act()
        for _ in range(500):
            time.sleep(0.01)
        self.went_on = True

    def on_end(self, event: event.Event) -> None:
        pass


def compile_during(listener: DuringCompilation) -> None:
    function = njit(lambda value: value)
    with event.install_listener("numba:compile", listener), deferred_interrupts():
        function(1)


def test_a_signal_while_code_is_compiled_does_not_wait(number: int) -> None:
    listener = DuringCompilation(lambda: signal.raise_signal(number))
    with pytest.raises(Ended):
        compile_during(listener)
    assert not listener.went_on


def test_a_signal_that_arrives_where_no_exception_may_be_raised_comes_again(number: int) -> None:
    passed: list[bool] = []

    def _raw_object_cache_notify() -> None:
        signal.raise_signal(number)
        passed.append(True)

    listener = DuringCompilation(_raw_object_cache_notify)
    with pytest.raises(Ended):
        compile_during(listener)
    assert passed
    assert not listener.went_on


def test_signals_without_a_handler_are_not_touched() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with deferred_interrupts() as arrived:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
        assert arrived == []
    finally:
        signal.signal(signal.SIGHUP, before)
