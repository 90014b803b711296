from __future__ import annotations

import gc
from dataclasses import dataclass, field

from turbospec_bench.contender import Run
from turbospec_bench.embedded.workloads import Load
from turbospec_bench.matrix import Variant
from turbospec_bench.rounds import WARM_UP, play_rounds


@dataclass
class FakeContender:
    variant: Variant
    log: list[tuple[str, Load]]
    collected: list[bool] = field(default_factory=list[bool])

    def serve(self, load: Load) -> Run:
        self.log.append((self.variant.policy, load))
        self.collected.append(gc.isenabled())
        return Run({"duration": float(len(self.log))}, {})


def play(names: str, rounds: int, seed: int = 0) -> tuple[list[tuple[str, Load]], list[list[Run]], list[Load]]:
    log: list[tuple[str, Load]] = []
    loads = [Load((), max_in_flight=index) for index in range(rounds + 1)]
    contenders = [FakeContender(Variant(name), log) for name in names]
    played = list(play_rounds(contenders, lambda index: loads[index - WARM_UP], rounds, seed))
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


def test_runs_come_back_in_the_contenders_order_without_the_warm_up() -> None:
    log, played, _ = play("abc", rounds=1)

    places = {name: float(place + 1) for place, (name, _) in enumerate(log[3:], start=3)}
    assert [run.figures["duration"] for run in played[0]] == [places[name] for name in "abc"]
