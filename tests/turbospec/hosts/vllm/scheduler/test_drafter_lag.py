from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.turbospec.hosts.vllm.scheduler.test_requests import Request
from turbospec.hosts.vllm.scheduler.drafter_lag import DrafterLag
from turbospec.hosts.vllm.scheduler.drafter_use import Allowance
from turbospec.hosts.vllm.scheduler.requests import KnownRequests
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag

MANY = 2**31


class Steps:
    """Steps over the same requests, by name."""

    def __init__(
        self,
        names: str,
        *,
        kept_tokens: int = 128,
        max_batched_tokens: int = 128,
        slots: int = 1,
        prefix_caching: bool = False,
        asynchronous: bool = False,
    ) -> None:
        self.names = [*names]
        self.known = KnownRequests()
        self.rows = self.known.rows([Request(name) for name in names])
        self.cache = DrafterLag(
            self.known,
            kept_tokens,
            max_batched_tokens,
            slots=slots,
            prefix_caching=prefix_caching,
            asynchronous=asynchronous,
        )
        self.lengths = np.zeros(0, np.int64)

    def step(
        self,
        drafted: dict[str, int] | None = None,
        prompts: dict[str, int] | None = None,
        restarted: str = "",
        *,
        missing: dict[str, int] | None = None,
        drafter_fits: bool = True,
        in_use: bool = True,
        tokens: int = MANY,
        verified_may_lag: bool = False,
        **lengths: int,
    ) -> DrafterOrders:
        """One in which `drafted` are verified, `prompts` computed but for `missing`, and `lengths` wanted."""
        drafted, prompts, missing = drafted or {}, prompts or {}, missing or {}
        for name in restarted:
            self.known.restart(Request(name))
        self.lengths = np.array([lengths.get(name, 0) for name in self.names])
        return self.cache.orders(
            self.names,
            self.rows,
            np.array([prompts.get(name, 1 + drafted.get(name, 0)) for name in self.names]),
            np.array([drafted.get(name, 0) for name in self.names]),
            self.lengths,
            np.array([missing.get(name, 0) for name in self.names]),
            Allowance(in_use, tokens, verified_may_lag),
            drafter_fits=drafter_fits,
        )

    def idle(self, *, in_use: bool = True, tokens: int = MANY) -> DrafterOrders | None:
        return self.cache.idle_orders(self.rows, Allowance(in_use, tokens, verified_may_lag=False))

    def row(self, name: str) -> int:
        return int(self.rows[self.names.index(name)])

    @property
    def missed(self) -> list[int]:
        return self.known.lag_tokens[self.rows].tolist()

    def can_draft(self, name: str) -> bool:
        return bool(self.cache.can_draft(self.rows)[self.names.index(name)])


def test_a_step_that_drafts_nothing_needs_no_drafter() -> None:
    steps = Steps("ab")
    assert steps.step() == DrafterOrders(0, 0, skip=True)
    assert steps.step(prompts={"b": 9}) == DrafterOrders(1, 0, skip=True)
    assert steps.missed == [2, 10]


def test_a_request_that_drafts_is_caught_up_and_the_others_keep_their_lag() -> None:
    steps = Steps("ab")
    steps.step()
    assert steps.step(a=3) == DrafterOrders(1, 0, keep={"b"}, catch_up={"a": KvLag(1, since=0)})
    assert steps.missed == [0, 2]
    # Rejected drafts go through the drafter with the accepted ones: their number is not known yet.
    assert steps.step(drafted={"a": 3}) == DrafterOrders(2, 0, keep={"b"})
    assert steps.missed == [0, 3]
    assert steps.step(b=1) == DrafterOrders(3, 0, catch_up={"b": KvLag(3, since=0)})
    steps.step()
    assert steps.step(a=1) == DrafterOrders(4, 0, keep={"b"}, catch_up={"a": KvLag(1, since=3)})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_catches_up_on_the_drafts_that_were_accepted(asynchronous: bool) -> None:
    steps = Steps("abc", asynchronous=asynchronous)
    orders = steps.step(drafted={"a": 3}, prompts={"c": 9}, verified_may_lag=True)
    assert orders == DrafterOrders(0, 0, skip=True)
    assert steps.missed == [1, 1, 9]
    assert steps.cache.kept == 4 + 1 + 9, "the worker keeps the three drafts too"
    # Under async scheduling the next step is scheduled before this one has ended.
    assert [*map(steps.can_draft, "abc")] == [not asynchronous, True, True]
    steps.cache.resolve(0, {"a": 2, "nobody": 1})
    assert steps.missed == [3, 1, 9]
    orders = steps.step(a=1, b=1)
    assert orders == DrafterOrders(
        1, 0, keep={"c"}, catch_up={"a": KvLag(3, since=0), "b": KvLag(1, since=0)}, resolved={0: {"a": 3}}
    )
    assert steps.step().resolved == {}, "told once"


def test_a_request_waits_for_all_steps_of_which_is_not_known_what_they_accepted() -> None:
    steps = Steps("ab", asynchronous=True)
    for _ in range(2):
        assert steps.step(drafted={"a": 3}, verified_may_lag=True).skip
    steps.cache.resolve(0, {"a": 3})
    assert not steps.can_draft("a")
    assert steps.step(a=2).keep == {"a", "b"}
    assert steps.lengths.tolist() == [0, 0]
    steps.cache.resolve(1, {"a": 0})
    assert steps.can_draft("a")
    assert steps.step(a=2).catch_up == {"a": KvLag(4 + 1 + 1, since=0)}


def test_a_request_whose_drafts_are_rejected_waits_until_it_can_draft_again() -> None:
    steps = Steps("ab", asynchronous=True)
    for _ in range(3):
        steps.step(drafted={"a": 3}, verified_may_lag=True)
    steps.cache.resolve(0, {"a": 1})
    steps.cache.resolve(1, {"a": 0})
    assert not steps.cache.pauses_lookup(steps.rows).any(), "one draft was rejected in full"
    steps.step(drafted={"a": 3}, verified_may_lag=True)
    steps.cache.resolve(2, {"a": 0})
    assert steps.cache.pauses_lookup(steps.rows).tolist() == [True, False]
    steps.step()
    steps.cache.resolve(3, {"a": 0})
    assert not steps.cache.pauses_lookup(steps.rows).any()
    assert steps.can_draft("a")
    # Once it has caught up, other drafts count.
    steps.step(a=1)
    steps.step(drafted={"a": 3}, verified_may_lag=True)
    assert not steps.cache.pauses_lookup(steps.rows).any()


def test_what_was_accepted_before_a_preemption_is_forgotten() -> None:
    steps = Steps("ab", asynchronous=True)
    steps.step(drafted={"a": 3}, verified_may_lag=True)
    steps.step(restarted="a", prompts={"a": 8})
    steps.cache.resolve(0, {"a": 3})
    assert steps.missed == [8, 2]
    assert steps.can_draft("a")
    assert steps.step().resolved == {}


def test_what_was_accepted_of_a_preempted_request_is_forgotten() -> None:
    steps = Steps("ab", asynchronous=True)
    steps.step(drafted={"a": 3}, verified_may_lag=True)
    steps.known.preempt("a")
    steps.cache.resolve(0, {"a": 3})
    assert steps.missed == [0, 1]
    assert steps.step().resolved == {}


def test_what_was_accepted_before_a_preemption_resolves_no_drafts_after_it() -> None:
    steps = Steps("ab", asynchronous=True)
    steps.step(drafted={"a": 3}, verified_may_lag=True)
    steps.step(restarted="a", drafted={"a": 2}, verified_may_lag=True)
    steps.cache.resolve(0, {"a": 3})
    assert steps.missed == [1, 2]
    assert not steps.can_draft("a")


def test_a_request_catches_up_on_a_single_draft_too() -> None:
    steps = Steps("ab")
    steps.step(drafted={"a": 1}, verified_may_lag=True)
    steps.cache.resolve(0, {"a": 1})
    assert steps.missed == [2, 1]


def test_an_error_leaves_nothing_to_be_told() -> None:
    steps = Steps("ab", asynchronous=True)
    steps.step(drafted={"a": 3}, verified_may_lag=True)
    steps.cache.resolve(0, {"a": 3})
    steps.step(drafted={"a": 3}, verified_may_lag=True)
    steps.cache.resolve(1, {"a": 3})
    steps.cache.lose_kept()
    assert steps.can_draft("a")
    assert steps.step().resolved == {}


def test_the_input_of_requests_whose_drafts_are_verified_is_kept() -> None:
    """Others catch up, and what nobody needs any more is dropped."""
    steps = Steps("ab", kept_tokens=24, asynchronous=True)
    assert steps.step(drafted={"a": 6}, verified_may_lag=True).skip
    assert steps.step(drafted={"a": 3}, verified_may_lag=True, tokens=0).skip
    orders = steps.step()
    assert (orders.catch_up, orders.keep) == ({"b": KvLag(2, since=0)}, {"a"})
    steps.cache.resolve(0, {"a": 6})
    steps.cache.resolve(1, {"a": 3})
    assert steps.step(a=1).catch_up == {"a": KvLag(7 + 4 + 1, since=0)}


def test_drafts_leave_no_prompt_out_that_others_may_share() -> None:
    steps = Steps("ab", prefix_caching=True)
    assert steps.step(prompts={"b": 20}).skip
    orders = steps.step(drafted={"a": 3}, verified_may_lag=True)
    assert orders == DrafterOrders(1, 0, catch_up={"a": KvLag(1, since=0), "b": KvLag(20, since=0)})
    assert steps.step(drafted={"a": 3}, verified_may_lag=True).skip
    assert not steps.known.lacks_prompt.any(), "drafts are no prompt"


def test_a_prompt_that_others_may_share_is_caught_up_when_its_first_token_has_left() -> None:
    steps = Steps("ab", prefix_caching=True)
    assert steps.step(prompts={"b": 20}).skip
    assert steps.step() == DrafterOrders(1, 0, keep={"a"}, catch_up={"b": KvLag(20, since=0)})
    assert steps.missed == [2, 0]
    assert steps.step().skip


def test_a_prompt_too_long_to_be_caught_up_goes_through_the_drafter() -> None:
    steps = Steps("ab")
    assert steps.step(prompts={"b": 80}) == DrafterOrders(0, 0)
    assert steps.missed == [0, 0]
    steps.step()
    assert steps.step(prompts={"b": 80}) == DrafterOrders(1, 0, catch_up={"a": KvLag(1, 0), "b": KvLag(1, 0)})
    assert steps.missed == [0, 0]


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_prompt_in_chunks_is_caught_up_later_like_a_whole_one(prefix_caching: bool) -> None:
    steps = Steps("ab", prefix_caching=prefix_caching)
    assert steps.step(prompts={"b": 20}, missing={"b": 10}).skip
    assert steps.step(prompts={"b": 10}).skip
    assert steps.missed == [2, 30]
    if prefix_caching:
        assert steps.step() == DrafterOrders(2, 0, keep={"a"}, catch_up={"b": KvLag(30, since=0)})
    else:
        assert steps.step(b=1) == DrafterOrders(2, 0, keep={"a"}, catch_up={"b": KvLag(30, since=0)})


@pytest.mark.parametrize("tokens", [0, MANY])
def test_chunks_of_prompts_do_not_push_earlier_tokens_out(tokens: int) -> None:
    steps = Steps("abcdef", kept_tokens=200)
    for first, second in itertools.pairwise("abcdef"):
        steps.step(prompts={first: 30, second: 20}, missing={second: 30}, tokens=tokens)
        assert steps.cache.kept <= 100
    assert all(map(steps.can_draft, "abcdef"))


def test_a_chunk_catches_up_on_those_before_it_where_the_drafter_runs() -> None:
    steps = Steps("ab", kept_tokens=100)
    assert steps.step(prompts={"a": 20}, missing={"a": 30}).skip
    orders = steps.step(prompts={"a": 30}, missing={"a": 1}, tokens=0)
    assert orders == DrafterOrders(1, 0, keep={"b"}, catch_up={"a": KvLag(20, since=0)})
    assert steps.missed == [0, 2]


def test_two_tokens_are_a_prompt() -> None:
    steps = Steps("ab", kept_tokens=100)
    assert steps.step(prompts={"a": 20}, missing={"a": 3}).skip
    assert steps.step(prompts={"a": 2}, missing={"a": 1}, b=1, tokens=0).catch_up.keys() == {"a", "b"}
    steps = Steps("ab", prefix_caching=True)
    steps.step(prompts={"a": 2})
    assert steps.known.lacks_prompt[steps.rows].tolist() == [True, False]
    steps = Steps("ab", prefix_caching=True)
    steps.known.max_tokens[steps.row("b")] = 1
    assert steps.step(prompts={"b": 2}) == DrafterOrders(0, 0), "it has no later step"


@pytest.mark.parametrize("tokens", [0, MANY])
def test_steps_that_only_finished_requests_lacked_are_dropped(tokens: int) -> None:
    steps = Steps("ab", kept_tokens=200)
    assert steps.step(prompts={"a": 30, "b": 60}).skip
    for _ in range(8):
        assert steps.idle(tokens=0) is not None
    steps.cache.drop_unneeded()
    assert steps.cache.kept == 106
    steps.known.forget(["a", "b"])
    steps.rows = steps.known.rows([Request(name) for name in "cd"])
    steps.cache.drop_unneeded()
    assert steps.cache.kept == 0
    # Nothing is due, and prompts in chunks need no drafter.
    assert steps.step(prompts={"a": 20}, missing={"a": 5}, tokens=tokens).skip
    assert steps.idle(tokens=tokens) is not None


def test_steps_that_a_request_outside_the_batch_lacks_are_kept() -> None:
    steps = Steps("ab", kept_tokens=100)
    assert steps.step(prompts={"a": 30, "b": 15}).skip
    steps.names, steps.rows = ["a"], steps.rows[:1]
    assert steps.step(prompts={"a": 10}, tokens=0).skip
    steps.cache.drop_unneeded()
    assert steps.cache.kept == 55
    steps.known.preempt("b")  # it will lack nothing of this when it starts anew
    steps.known.preempt(["never seen"])
    steps.cache.drop_unneeded()
    assert steps.cache.kept == 55  # which request a lacks since the first step
    steps.known.forget("a")
    steps.cache.drop_unneeded()
    assert steps.cache.kept == 0


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_prompt_in_chunks_that_is_too_long_goes_through_the_drafter_chunk_by_chunk(prefix_caching: bool) -> None:
    steps = Steps("ab", prefix_caching=prefix_caching)
    assert steps.step(prompts={"b": 20}, missing={"b": 70}) == DrafterOrders(0, 0)
    assert steps.step(prompts={"b": 60}, missing={"b": 10}) == DrafterOrders(0, 0)
    assert steps.step(prompts={"b": 10}).skip
    assert steps.missed == [1, 10]
    assert steps.can_draft("b")


@pytest.mark.parametrize(("slots", "caught_up"), [(1, "ab"), (5, "ab"), (6, "a"), (7, "")])
def test_a_pass_that_drafts_a_block_leaves_less_room_to_catch_up(slots: int, caught_up: str) -> None:
    steps = Steps("ab", max_batched_tokens=16, slots=slots)
    for _ in range(2):
        steps.step()
    assert steps.step(a=3, b=3).catch_up.keys() == set(caught_up)


def test_nobody_lags_by_more_than_can_be_caught_up() -> None:
    steps = Steps("ab", kept_tokens=1000, max_batched_tokens=16)
    assert all(steps.step().skip for _ in range(4))
    assert steps.step() == DrafterOrders(4, 0, catch_up={"a": KvLag(4, 0), "b": KvLag(4, 0)})
    assert steps.missed == [0, 0]
    assert steps.cache.kept == 0
    assert all(steps.idle() is not None for _ in range(4))
    assert steps.idle() is None


def test_where_catching_up_early_is_too_dear_requests_lag_until_they_end() -> None:
    steps = Steps("ab", kept_tokens=1000, max_batched_tokens=16)
    assert all(steps.step(tokens=0).skip for _ in range(9))
    assert not steps.can_draft("a")


def test_those_that_lag_longest_catch_up_first() -> None:
    steps = Steps("ab", kept_tokens=1000, max_batched_tokens=16)
    steps.step(drafted={"a": 1}, prompts={"b": 3})
    steps.step(drafted={"a": 1}, b=0)
    steps.known.lag_tokens[steps.rows], steps.known.lag_since[steps.rows] = (3, 4), (1, 0)
    # 16 tokens, less 6 + 1 of the step and 2: there is room for 7.
    assert steps.step(prompts={"a": 4}).catch_up.keys() == {"a", "b"}
    steps.known.lag_tokens[steps.rows], steps.known.lag_since[steps.rows] = (3, 4), (1, 0)
    assert steps.step(prompts={"a": 8}, missing={"a": 1}).catch_up.keys() == {"b"}


def test_a_prompt_for_which_there_was_no_room_in_time_is_given_up() -> None:
    steps = Steps("ab", kept_tokens=1000, max_batched_tokens=16, prefix_caching=True)
    assert steps.step(prompts={"a": 8}).skip
    assert steps.step(prompts={"b": 7}) == DrafterOrders(1, 0, keep={"a"}, catch_up={"b": KvLag(1, since=0)})
    assert steps.missed == [9, 0]
    assert steps.step().skip
    assert steps.idle() is not None


def test_a_step_without_room_keeps_its_input() -> None:
    steps = Steps("abc", kept_tokens=50, max_batched_tokens=24)
    for _ in range(5):
        assert steps.step().skip
    assert steps.step(prompts=dict.fromkeys("abc", 7)).skip
    assert steps.missed == [12, 12, 12]


@pytest.mark.parametrize(("prompt", "caught_up"), [(7, {}), (6, {"a": KvLag(8, 0)})])
def test_the_drafter_runs_early_only_where_one_that_lags_has_room(prompt: int, caught_up: dict[str, KvLag]) -> None:
    steps = Steps("abc", kept_tokens=50, max_batched_tokens=24)
    for _ in range(8):
        assert steps.step(tokens=0).skip
    steps.known.clear_lag(steps.rows[1:])
    orders = steps.step(prompts={"b": prompt, "c": prompt})
    assert (orders.skip, orders.catch_up) == (not caught_up, caught_up)


def test_the_drafter_does_not_run_early_for_requests_that_cannot_catch_up() -> None:
    """Of neither is known what the steps it lags by have accepted."""
    steps = Steps("ab", kept_tokens=16, asynchronous=True)
    assert steps.step(drafted={"a": 3, "b": 3}, verified_may_lag=True).skip
    assert steps.step().skip, "more than half of the tokens are kept"


def test_drafts_of_a_request_that_keeps_its_lag_are_kept_too() -> None:
    """The worker keeps them: it would otherwise hold more tokens than are counted."""
    steps = Steps("ab", asynchronous=True)
    assert steps.step(drafted={"a": 3}, verified_may_lag=True).skip
    assert steps.cache.kept == 4 + 1
    assert steps.step(drafted={"a": 2}, b=1).keep == {"a"}
    assert steps.cache.kept == 4 + 1 + 3


def test_what_vllm_gives_the_drafter_no_chance_to_see_is_missed() -> None:
    steps = Steps("ab", prefix_caching=True)
    steps.step(prompts={"b": 20})
    assert steps.step(drafter_fits=False).skip
    assert steps.missed == [2, 21]
    steps.step(a=2)
    assert steps.missed == [0, 0]
    assert steps.step(drafted={"a": 2}, drafter_fits=False) == DrafterOrders(2, 0, skip=True)


def test_a_prompt_that_others_may_share_goes_through_the_drafter_if_it_has_no_later_step() -> None:
    steps = Steps("ab", prefix_caching=True)
    steps.known.max_tokens[steps.row("b")] = 1
    assert steps.step(prompts={"b": 20}) == DrafterOrders(0, 0)
    steps = Steps("ab")
    steps.known.max_tokens[steps.row("b")] = 1
    assert steps.step(prompts={"b": 20}).skip


def test_who_starts_anew_owes_nothing() -> None:
    steps = Steps("ab", prefix_caching=True)
    steps.step(prompts={"b": 20})
    steps.step(restarted="b", prompts={"b": 80})
    assert steps.missed == [0, 0]
    assert steps.step().skip
    assert steps.idle() is not None


def test_prompts_do_not_push_one_another_out() -> None:
    steps = Steps("abc")
    assert steps.step(prompts={"a": 40, "b": 40}) == DrafterOrders(0, 0)
    # In a step that other requests draft in, only the tokens of lagging requests are kept.
    steps.step()
    steps.step(b=1)
    assert steps.step(prompts={"b": 122}).keep == {"a", "c"}
    assert steps.can_draft("a")


def test_no_more_is_caught_up_than_the_buffers_hold() -> None:
    steps = Steps("abc", max_batched_tokens=10)
    for _ in range(3):
        steps.step()
    orders = steps.step(a=2, b=2, c=2)
    assert orders.catch_up == {"a": KvLag(3, since=0)}
    assert steps.lengths.tolist() == [2, 0, 0]
    assert steps.missed == [0, 4, 4]


def test_however_long_nothing_is_drafted_everybody_can_draft() -> None:
    steps = Steps("ab", kept_tokens=12)
    orders = [steps.step() for _ in range(1000)]
    assert sum(not each.skip for each in orders) == 1000 // 4
    assert all(each.catch_up.keys() == {"a", "b"} for each in orders if not each.skip)
    assert orders[-1].step - orders[-1].oldest <= 3, "the worker keeps no more than it must"
    assert steps.can_draft("a")
    assert steps.can_draft("b")


def test_who_lacks_what_is_no_longer_kept_cannot_draft() -> None:
    """As after many steps in which vLLM did not call the drafter."""
    steps = Steps("ab", kept_tokens=4)
    steps.step(drafted={"b": 1})  # what follows drafts goes through the drafter
    assert steps.missed == [0, 0]
    steps.step(drafter_fits=False)
    steps.step(drafter_fits=False)
    assert steps.can_draft("a")
    steps.step(drafter_fits=False)
    assert not steps.can_draft("a")
    orders = steps.step(a=1)
    assert orders.catch_up == {}
    assert orders.oldest == 3, "nobody needs what is kept"
    assert steps.lengths.tolist() == [0, 0]
    steps.step(restarted="a", prompts={"a": 9})
    assert steps.missed[0] == 0
    assert steps.can_draft("a")


def test_after_a_step_without_orders_nobody_lags() -> None:
    """The worker has run the drafter for all of the step's requests, and has dropped what it kept."""
    steps = Steps("ab", prefix_caching=True)
    steps.step(prompts={"b": 20})
    steps.cache.lose_kept()
    assert steps.missed == [0, 0]
    assert steps.cache.kept == 0
    orders = steps.step(a=2)
    assert (orders.catch_up, orders.skip, orders.oldest) == ({}, False, 1)
    assert steps.lengths.tolist() == [2, 0]


def test_a_request_that_verifies_a_look_ups_drafts_catches_up_in_that_step() -> None:
    steps = Steps("ab")
    steps.step()
    orders = steps.step(drafted={"b": 2})
    assert orders.catch_up == {"b": KvLag(1, 0)}
    assert orders.keep == {"a"}
    assert steps.missed == [2, 0]


def test_a_request_that_cannot_catch_up_where_it_verifies_drafts_later() -> None:
    steps = Steps("ab", max_batched_tokens=16, asynchronous=True)
    for _ in range(5):
        steps.step(tokens=0)
    assert steps.step(prompts={"a": 7}, drafted={"b": 2}, tokens=0).keep == {"a", "b"}
    assert steps.missed[1] == 6
    steps.step(b=3, tokens=0)
    assert steps.lengths.tolist() == [0, 0]
    steps.cache.resolve(5, {"b": 1})
    assert steps.step(b=3).catch_up["b"] == KvLag(8, since=0)


def test_while_the_drafter_is_out_of_use_nobody_catches_up_early() -> None:
    steps = Steps("ab", kept_tokens=1000, max_batched_tokens=16)
    assert all(steps.idle(in_use=False) is not None for _ in range(9))
    assert not steps.can_draft("a")
    assert steps.step(prompts={"a": 12, "b": 4}, in_use=False, tokens=0).skip


def test_while_the_drafter_is_out_of_use_prompts_may_push_one_another_out() -> None:
    steps = Steps("abc")
    assert steps.step(prompts={"a": 40, "b": 40}, in_use=False).skip
    assert steps.step(prompts={"c": 40}, missing={"c": 20}, in_use=False).skip


def test_a_prompt_that_others_may_share_is_caught_up_although_the_drafter_is_out_of_use() -> None:
    steps = Steps("ab", prefix_caching=True)
    assert steps.step(prompts={"b": 20}, in_use=False).skip
    assert steps.idle(in_use=False) is None
    assert steps.step(in_use=False) == DrafterOrders(1, 0, keep={"a"}, catch_up={"b": KvLag(20, since=0)})


def test_while_the_drafter_is_out_of_use_a_prompt_that_is_too_long_is_computed_whole_or_not_at_all() -> None:
    steps = Steps("ab")
    for tokens, skipped in ((89, True), (90, False)):
        first = steps.step(prompts={"b": 20}, missing={"b": 70}, restarted="b", in_use=False, tokens=tokens)
        steps.known.prompt[steps.row("b")] = 90
        assert steps.can_draft("b")
        # Whatever is allowed now, it goes on as it began.
        second = steps.step(prompts={"b": 60}, missing={"b": 10}, in_use=False, tokens=90 - tokens)
        assert (first.skip, second.skip) == (skipped, skipped)
        steps.step(prompts={"b": 10}, in_use=False, tokens=0)
        assert steps.can_draft("b") is not skipped
