from __future__ import annotations

import signal
import time
from types import FrameType

import pytest
from numba import njit

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


def test_a_signal_while_code_is_compiled_does_not_wait(number: int) -> None:
    class Interrupting(int):
        """A type whose constant is asked for by the compiler."""

        @property
        def _numba_type_(self) -> object:
            signal.raise_signal(number)
            raise AssertionError("the compiler went on")

    function = njit(lambda value: value)
    with pytest.raises(Ended), deferred_interrupts() as arrived:
        function(Interrupting(1))
    assert arrived == [number]


def test_signals_without_a_handler_are_not_touched() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with deferred_interrupts() as arrived:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
        assert arrived == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_arrives_where_no_exception_may_be_raised_comes_again(number: int) -> None:
    def _raw_object_cache_notify() -> None:
        signal.raise_signal(number)

    class Interrupting(int):
        @property
        def _numba_type_(self) -> object:
            _raw_object_cache_notify()
            for _ in range(1000):
                time.sleep(0.01)
            raise AssertionError("the compiler went on")

    function = njit(lambda value: value)
    began = time.monotonic()
    with pytest.raises(Ended), deferred_interrupts():
        function(Interrupting(1))
    assert time.monotonic() - began < 5
