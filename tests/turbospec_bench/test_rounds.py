from __future__ import annotations

import gc
from dataclasses import dataclass, field

from turbospec_bench.contender import Run
from turbospec_bench.embedded.workloads import Load
from turbospec_bench.other_processes import CpuWatch
from turbospec_bench.rounds import DisturbanceCheck, play_rounds
from turbospec_bench.variant import Variant


@dataclass
class FakeContender:
    variant: Variant
    log: list[tuple[str, Load]]
    collected: list[bool] = field(default_factory=list[bool])

    def serve(self, load: Load) -> Run:
        self.log.append((self.variant.policy, load))
        self.collected.append(gc.isenabled())
        return Run({"duration": float(len(self.log))}, {})


def play(
    names: str, rounds: int, seed: int = 0, configuration: int = 0
) -> tuple[list[tuple[str, Load]], list[list[Run]], list[Load]]:
    log: list[tuple[str, Load]] = []
    loads = [Load((), max_in_flight=index) for index in range(rounds)]
    contenders = [FakeContender(Variant(name), log) for name in names]
    played = list(play_rounds(contenders, lambda number: loads[number], range(rounds), (seed, configuration)))
    assert not any(enabled for contender in contenders for enabled in contender.collected)
    assert gc.isenabled()
    return log, played, loads


def test_everyone_serves_a_load_before_anyone_serves_the_next() -> None:
    log, played, loads = play("abc", rounds=3)

    for index, load in enumerate(loads):
        block = log[3 * index : 3 * index + 3]
        assert {name for name, _ in block} == set("abc")
        assert all(served is load for _, served in block)
    assert len(played) == 3


def test_the_order_within_rounds_changes_and_follows_the_seed() -> None:
    names = [name for name, _ in play("abcd", rounds=5, seed=1)[0]]

    assert len({tuple(names[start : start + 4]) for start in range(0, len(names), 4)}) > 1
    assert [name for name, _ in play("abcd", rounds=5, seed=1)[0]] == names
    assert [name for name, _ in play("abcd", rounds=5, seed=1, configuration=2)[0]] != names


def test_runs_come_back_in_the_contenders_order() -> None:
    log, played, _ = play("abc", rounds=1)

    places = {name: float(place + 1) for place, (name, _) in enumerate(log)}
    assert [run.figures["duration"] for run in played[0]] == [places[name] for name in "abc"]


class FakeWatch(CpuWatch):
    """Other processes use one value after the other, one for each run."""

    def __init__(self, *used: float | None) -> None:
        self.used = [*used]
        self.restarts = 0

    def restart(self) -> None:
        self.restarts += 1

    def other_cores(self) -> float | None:
        return self.used.pop(0)


def disturbed(
    *used: float | None, rounds: int, repeats: int = 2
) -> tuple[list[tuple[str, Load]], list[Run], list[str]]:
    """What one contender served, the runs that count, and what was said."""
    log: list[tuple[str, Load]] = []
    said: list[str] = []
    check = DisturbanceCheck(spare_cores=1.0, repeats=repeats, say=said.append, watch=FakeWatch(*used))
    draw = [Load((), max_in_flight=number) for number in range(rounds)].__getitem__
    played = list(play_rounds([FakeContender(Variant("a"), log)], draw, range(rounds), (0, 0), check=check))
    return log, [run for runs in played for run in runs], said


def test_a_disturbed_round_is_repeated_with_its_load_and_the_better_one_counts() -> None:
    log, runs, said = disturbed(0.0, 1.5, 1.3, 1.05, None, rounds=3)

    assert [load.max_in_flight for _, load in log] == [0, 1, 1, 1, 2]
    assert [run.other_cores for run in runs] == [0.0, 1.05, None]
    assert not any(run.disturbed for run in runs)
    assert said == [
        "other processes used 1.5 cores during a round; it is measured again",
        "other processes used 1.3 cores during a round; it is measured again",
    ]


def test_a_run_that_is_too_short_to_be_judged_is_judged_with_the_next() -> None:
    """The window goes on from one run of a round to the next."""
    watch, log, said = FakeWatch(None, 1.5, 0.0, 0.0), list[tuple[str, Load]](), list[str]()
    check = DisturbanceCheck(spare_cores=1.0, repeats=1, say=said.append, watch=watch)
    contenders = [FakeContender(Variant(name), log) for name in "ab"]
    (runs,) = play_rounds(contenders, lambda _: Load((), max_in_flight=1), range(1), (0, 0), check=check)
    assert watch.restarts == 2
    assert len(said) == 1
    assert [run.other_cores for run in runs] == [0.0, 0.0]


def test_repeats_are_bounded_and_what_stays_disturbed_is_marked() -> None:
    log, runs, said = disturbed(2.0, 3.0, 2.5, 2.0, rounds=3, repeats=1)

    assert [load.max_in_flight for _, load in log] == [0, 0, 1, 2]
    assert [(run.other_cores, run.disturbed) for run in runs] == [(2.0, True), (2.5, True), (2.0, True)]
    assert len(said) == 4
    assert said[-1].endswith("it is marked as disturbed")
