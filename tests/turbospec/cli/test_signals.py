"""Signals that end a command."""

from __future__ import annotations

import signal
import sys
import time
import weakref

import pytest

from turbospec.cli.signals import SignalsInterrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_arrives_where_no_exception_may_be_raised_comes_again(number: signal.Signals) -> None:
    passed: list[bool] = []

    def _raw_object_cache_notify() -> None:
        signal.raise_signal(number)
        passed.append(True)

    def compiling() -> None:
        _raw_object_cache_notify()
        for _ in range(500):
            time.sleep(0.01)

    before = signal.getsignal(number)
    signals = SignalsInterrupt()
    with pytest.raises(KeyboardInterrupt), signals:
        compiling()
    assert passed
    assert signals.exit_status == 128 + number
    assert signal.getsignal(number) is before


class Watched:
    pass


def test_a_signal_whose_exception_is_lost_in_a_finaliser_comes_again(capfd: pytest.CaptureFixture[str]) -> None:
    def forget(watched: weakref.ref[Watched]) -> None:
        signal.raise_signal(signal.SIGTERM)

    def compiling() -> None:
        watched = Watched()
        reference = weakref.ref(watched, forget)
        del watched
        for _ in range(500):
            time.sleep(0.01)
        del reference

    before = sys.unraisablehook
    signals = SignalsInterrupt()
    with pytest.raises(KeyboardInterrupt), signals:
        compiling()
    assert signals.exit_status == 128 + signal.SIGTERM
    assert sys.unraisablehook is before
    assert capfd.readouterr().err == ""
