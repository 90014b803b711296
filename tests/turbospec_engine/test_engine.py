"""The engine as its users see it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.turbospec_engine.harness import DEVICE, FixedPlans, Pair, RandomPlans, byte_level_tokenizer
from turbospec import StepPlan, StepView, UserError
from turbospec_engine import Engine, EngineConfig, Models, SamplingParams
from turbospec_engine.lookup import NGramLookup
from turbospec_engine.profiling import measure


@pytest.fixture(scope="module")
def engine(llama: Pair) -> Engine:
    return Engine(llama.config(), RandomPlans())


def test_stream_gives_what_generate_gives(engine: Engine) -> None:
    params = SamplingParams(max_tokens=20)
    whole = engine.generate(["the cat"], params)[0]
    outputs = list(engine.stream("the cat", params))
    assert tuple(token for output in outputs for token in output.new_token_ids) == whole.token_ids
    assert "".join(output.new_text for output in outputs) == whole.text
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].finish_reason == whole.finish_reason


def test_closing_a_stream_aborts(engine: Engine) -> None:
    stream = engine.stream("the cat", SamplingParams(max_tokens=50, ignore_eos=True))
    next(stream)
    stream.close()
    assert not engine.has_work()
    assert engine.allocator.num_free == engine.allocator.num_blocks


def test_a_stream_takes_no_outputs_from_others(llama: Pair) -> None:
    engine = Engine(llama.config(), RandomPlans())
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = engine.generate([[3, 4, 5]], params)[0].token_ids
    engine.add_request([3, 4, 5], params)
    for refuses in (lambda: next(engine.stream([6], params)), lambda: engine.generate([[6]], params)):
        with pytest.raises(UserError, match="needs an idle engine") as error:
            refuses()
        refused(str(error.value))
    tokens: list[int] = []
    while engine.has_work():
        tokens += [token for output in engine.step() for token in output.new_token_ids]
    assert tuple(tokens) == expected


def test_a_request_that_joins_a_stream_ends_the_stream(llama: Pair) -> None:
    engine = Engine(llama.config(), RandomPlans())
    stream = engine.stream([3, 4, 5], SamplingParams(max_tokens=30, ignore_eos=True))
    next(stream)
    joined = engine.add_request([6, 7], SamplingParams(max_tokens=4, ignore_eos=True))
    with pytest.raises(UserError, match="needs an idle engine"):
        next(stream)
    tokens: list[int] = []
    while engine.has_work():
        for output in engine.step():
            assert output.request_id == joined
            tokens += output.new_token_ids
    assert len(tokens) == 4


def test_ids_that_the_engine_makes_up_keep_clear_of_the_users(llama: Pair) -> None:
    engine = Engine(llama.config(), RandomPlans())
    given = [engine.add_request([3], request_id="1"), engine.add_request([4]), engine.add_request([5])]
    assert len(set(given)) == 3
    with pytest.raises(UserError, match="in use"):
        engine.add_request([6], request_id=given[1])


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_abort_between_steps(emit: str, llama: Pair) -> None:
    engine = Engine(llama.config(emit=emit), FixedPlans(longest=3))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    expected = engine.generate([[3, 4, 5]], params)[0].token_ids
    kept, dropped = engine.add_request([3, 4, 5], params), engine.add_request([6, 7], params)
    tokens: list[int] = []
    for step in range(40):
        if step == 3:
            engine.abort(dropped)
        if step == 4:
            engine.add_request([8, 8], params, request_id="late")
        for output in engine.step():
            assert step < 3 or output.request_id != dropped
            if output.request_id == kept:
                tokens += output.new_token_ids
    assert tuple(tokens) == expected
    assert not engine.has_work()


def test_abort_of_everything_that_was_planned(llama: Pair) -> None:
    engine = Engine(llama.config(emit="after_draft"), FixedPlans(longest=3))
    request = engine.add_request([3, 4, 5], SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    engine.abort(request)
    assert engine.step() == []
    assert len(engine.generate([[3, 4]], SamplingParams(max_tokens=5, ignore_eos=True))[0].token_ids) == 5


def test_abort_of_all_that_was_planned_while_another_request_runs(llama: Pair) -> None:
    engine = Engine(llama.config(emit="after_draft", max_num_seqs=4, max_num_batched_tokens=4), FixedPlans(longest=3))
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = engine.generate([[8, 9, 10]], params)[0].token_ids
    decoding = engine.add_request([3], params)
    engine.step()
    prefilling = engine.add_request([4] * 40, params)
    engine.step()
    left = engine.add_request([8, 9, 10], params)
    engine.step()
    engine.abort(decoding)
    engine.step()  # the last request is admitted, and the next step's tokens are all planned for the one before it
    engine.abort(prefilling)
    tokens: list[int] = []
    while engine.has_work():
        for output in engine.step():
            assert output.request_id == left
            tokens += output.new_token_ids
    assert tuple(tokens) == expected


def test_generate_leaves_no_request_behind(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    each = [SamplingParams(max_tokens=3)]
    for prompts, words in (("hello", "takes a list of prompts"), (["a", "b"], "1 params for 2 prompts")):
        with pytest.raises(UserError, match=words) as error:
            engine.generate(prompts, each)
        refused(str(error.value))
    with monkeypatch.context() as patched:
        patched.setattr(engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(["a", "b"])
    assert not engine.has_work()
    assert len(engine.generate(["a"], each)) == 1


def test_a_look_up_of_ones_own_may_be_empty(llama: Pair) -> None:
    class Empty(NGramLookup):
        def __len__(self) -> int:
            return 0

    lookup, plans = Empty(), RandomPlans()
    engine = Engine(llama.config(max_draft=3, max_lookup=9), plans, lookup=lookup)
    assert engine.lookup is lookup
    engine.generate(["the cat"], SamplingParams(max_tokens=3))
    assert plans.views[0].max_draft == 9


def test_stop_string_is_cut(engine: Engine) -> None:
    free = engine.generate(["the cat"], SamplingParams(max_tokens=30, ignore_eos=True))[0]
    stop = free.text[8:11]
    at = free.text.index(stop)
    outputs = list(engine.stream("the cat", SamplingParams(max_tokens=30, ignore_eos=True, stop=(stop,))))
    assert "".join(output.new_text for output in outputs) == free.text[:at]
    assert outputs[-1].finish_reason == "stop"


def test_max_tokens_is_exact(engine: Engine) -> None:
    for length in (1, 2, 7):
        output = engine.generate([[4, 5, 6]], SamplingParams(max_tokens=length, ignore_eos=True))[0]
        assert len(output.token_ids) == length
        assert output.finish_reason == "length"


def test_allowed_tokens_bind_the_target_alone(llama: Pair) -> None:
    plans = FixedPlans(longest=4)
    engine = Engine(llama.config(), plans)
    params = SamplingParams(max_tokens=20, allowed_token_ids=(11, 12, 13), ignore_eos=True)
    output = engine.generate([[4, 5, 6]], params)[0]
    assert set(output.token_ids) <= {11, 12, 13}
    assert sum(int(outcome.drafted.sum()) for outcome in plans.outcomes) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_forced_tokens_are_the_output_under_any_drafts(temperature: float, llama: Pair) -> None:
    forced = (11, 12, 13, 11, 12, 13, 11, 12, 13, 14)
    for drafter in (None, "ngram"):
        plans = FixedPlans(longest=4)
        engine = Engine(llama.config() if drafter is None else llama.config(drafter=drafter), plans)
        params = SamplingParams(
            max_tokens=20, forced_token_ids=forced, ignore_eos=True, temperature=temperature, allowed_token_ids=(7, 8)
        )
        output = engine.generate([[4, 5, 6]], params)[0]
        assert output.token_ids[:10] == forced
        assert set(output.token_ids[10:]) <= {7, 8}
        assert sum(int(outcome.drafted.sum()) for outcome in plans.outcomes) > 0


def test_a_requests_own_draft_limit(llama: Pair) -> None:
    plans = FixedPlans(longest=4)
    engine = Engine(llama.config(), plans)
    engine.generate([[4, 5, 6]], SamplingParams(max_tokens=20, max_draft=0, ignore_eos=True))
    assert sum(int(outcome.drafted.sum()) for outcome in plans.outcomes) == 0


def test_engines_share_models(llama: Pair) -> None:
    config = llama.config()
    models = Models.load(config)
    first, second = (Engine(config, RandomPlans(seed), models=models) for seed in range(2))
    assert first.target.model is second.target.model
    params = SamplingParams(max_tokens=10)
    assert first.generate(["the"], params)[0].token_ids == second.generate(["the"], params)[0].token_ids


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"dtype": "bfloat16"}, "dtype='bfloat16', but the models were loaded with 'float32'"),
        ({"drafter": "elsewhere"}, "drafter='elsewhere', but the models were loaded with"),
    ],
)
def test_an_engine_gets_the_models_that_its_configuration_names(
    settings: dict[str, Any], match: str, llama: Pair
) -> None:
    models = Models.load(llama.config())
    Engine(llama.config(drafter=None), RandomPlans(), models=models)
    with pytest.raises(UserError, match=match):
        Engine(llama.config(**settings), RandomPlans(), models=models)


def test_a_plan_whose_requests_were_all_aborted_is_dropped(llama: Pair) -> None:
    """The next request would begin with the plan of another controller."""
    engine = Engine(llama.config(emit="after_draft"), FixedPlans(longest=2))
    engine.add_request([4, 5, 6], SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.abort_all()
    engine.controller = plans = FixedPlans(longest=0)
    engine.generate([[7, 8, 9]], SamplingParams(max_tokens=8, ignore_eos=True))
    assert [outcome.step for outcome in plans.outcomes] == [view.step for view in plans.views]


def test_an_error_in_planning_the_next_step_does_not_lose_the_tokens_of_this_one(llama: Pair) -> None:
    class Failing(FixedPlans):
        def plan(self, view: StepView) -> StepPlan:
            if len(self.outcomes) == 3:
                raise RuntimeError("on purpose")
            return super().plan(view)

    engine = Engine(llama.config(emit="after_draft"), Failing(longest=2))
    engine.add_request([4, 5, 6], SamplingParams(max_tokens=20, ignore_eos=True))
    emitted = [token for _ in range(3) for output in engine.step() for token in output.new_token_ids]
    assert len(emitted) >= 3
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.step()


def test_an_error_in_planning_for_requests_that_were_all_aborted_is_dropped(llama: Pair) -> None:
    class Failing(FixedPlans):
        def plan(self, view: StepView) -> StepPlan:
            if self.outcomes:
                raise RuntimeError("on purpose")
            return super().plan(view)

    engine = Engine(llama.config(emit="after_draft"), Failing(longest=2))
    engine.add_request([4, 5, 6], SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    engine.abort_all()
    engine.controller = FixedPlans(longest=2)
    assert len(engine.generate([[7, 8]], SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4


def test_a_request_ends_where_the_kv_cache_does(llama: Pair) -> None:
    """A longer one would wait for blocks for ever."""
    engine = Engine(llama.config(num_blocks=4, block_size=4), FixedPlans(longest=2))
    with pytest.raises(UserError, match="KV cache hold 16"):
        engine.add_request([1] * 16)
    (output,) = engine.generate([[1] * 13], SamplingParams(max_tokens=10, ignore_eos=True))
    assert (len(output.token_ids), output.finish_reason) == (3, "length")


def test_profile(llama: Pair) -> None:
    ticks: list[tuple[int, int]] = []
    controller = RandomPlans()
    engine = Engine(llama.config(max_num_seqs=4), controller)
    profile = measure(engine, lambda done, total: ticks.append((done, total)), max_seconds=20)
    assert engine.controller is controller
    assert not engine.has_work()
    assert [done for done, _ in ticks] == list(range(1, len(ticks) + 1))
    assert len({total for _, total in ticks}) == 1
    assert ticks[-1][0] <= ticks[-1][1]
    assert any(sample.catch_up_tokens for sample in profile.samples)
    assert any(sample.prefill_tokens for sample in profile.samples)
    assert {len(sample.draft_rows) for sample in profile.samples} >= {0, 1, 2, 3, 5}


def test_a_profile_is_prompted_and_sampled_as_asked(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(llama.config(max_num_seqs=1), FixedPlans())
    added: list[tuple[list[int], SamplingParams]] = []
    add_request = engine.add_request

    def noting(prompt: list[int], params: SamplingParams) -> str:
        added.append((prompt, params))
        return add_request(prompt, params)

    monkeypatch.setattr(engine, "add_request", noting)
    text = [number % 7 for number in range(50)]
    profile = measure(engine, max_seconds=0.0, sampling=SamplingParams(temperature=0.5, top_p=0.9), text=text)
    assert (profile.meta["temperature"], profile.meta["top_p"]) == (0.5, 0.9)
    for prompt, params in added:
        assert (params.temperature, params.top_p, params.ignore_eos) == (0.5, 0.9, True)
        if len(prompt) <= len(text):
            assert all((later - earlier) % 7 == 1 for earlier, later in pairwise(prompt))
    assert any(len(prompt) <= len(text) for prompt, _ in added)


def test_controller_out_of_limits_is_refused(llama: Pair) -> None:
    class TooLong(FixedPlans):
        def plan(self, view):
            plan = super().plan(view)
            plan.draft_lengths = plan.draft_lengths + 100
            return plan

    with pytest.raises(UserError, match="draft lengths"):
        Engine(llama.config(), TooLong()).generate([[1, 2]], SamplingParams(max_tokens=4))


def refused(message: str) -> None:
    assert "\n" not in message
    assert ";" in message, "says what and how to mend it"


@pytest.mark.parametrize(
    ("prompt", "params", "match"),
    [
        ([], {}, "empty"),
        ("", {}, "empty"),
        ("x" * 10**7, {}, "shorten"),
        ("half a pair \ud800", {}, "no Unicode text"),
        ([1] * 256, {}, "shorten"),
        (["the"], {}, "neither a text nor token ids"),
        ({1, 2}, {}, "neither a text nor token ids"),
        (np.array(1), {}, "neither a text nor token ids"),
        ([3.9], {}, "neither a text nor token ids"),
        ([100_000], {}, "outside"),
        ([1], {"allowed_token_ids": (100_000,)}, "outside"),
        ([1], {"forced_token_ids": (100_000,)}, "outside"),
        ([1], {"max_draft": 7}, "above the engine's 6"),
    ],
)
def test_bad_requests(prompt: Any, params: dict, match: str, engine: Engine) -> None:
    with pytest.raises(UserError, match=match) as error:
        engine.add_request(prompt, SamplingParams(**params))
    refused(str(error.value))
    assert not engine.has_work()


def test_the_first_token_past_the_vocabulary_is_refused(engine: Engine) -> None:
    with pytest.raises(UserError, match="outside"):
        engine.add_request([engine.models.vocab_size])


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"allowed_token_ids": ()},
        {"max_draft": -1},
        {"stop": ("",)},
        {"stop": "word"},
        {"stop": (5,)},
        {"stop": None},
        {"allowed_token_ids": (1.5,)},
        {"forced_token_ids": (1.5,)},
        {"forced_token_ids": {5}},
        {"forced_token_ids": np.array([5, 6])},
        {"forced_token_ids": b"ab"},
        {"allowed_token_ids": np.array([5, 6])},
        {"allowed_token_ids": 5},
        {"service_class": ["a"]},
        {"stop": ("x" * 10**6,)},
        {"max_tokens": 10**30},
        {"max_tokens": 2.5},
        {"max_tokens": True},
        {"temperature": 1e-320},
        {"temperature": float("inf")},
        {"temperature": 1e300},
        {"temperature": 10**400},
        {"temperature": "warm"},
        {"top_p": float("nan")},
        {"top_p": 1.5},
        {"top_k": 10**20},
        {"seed": -1},
        {"seed": 10**20},
    ],
)
def test_bad_sampling_params(params: dict) -> None:
    with pytest.raises(UserError) as error:
        SamplingParams(**params)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 5e-324, "temperature": 0.8},
        {"top_p": 1e-30, "temperature": 1e-3},
        {"top_k": 2**63 - 1, "temperature": 1e6},
        {"top_k": 2**62, "top_p": 1e-9, "temperature": 1.0},
        {"max_tokens": 2**63 - 1, "stop": ("e",)},
    ],
)
def test_extreme_sampling_params_are_served(params: dict, llama: Pair) -> None:
    engine = Engine(llama.config(max_model_len=48), RandomPlans())
    (done,) = engine.generate(["the \0 cat"], SamplingParams(**({"max_tokens": 8, "seed": 2**63 - 1} | params)))
    assert done.token_ids


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 3},
        {"emit": "sometimes"},
        {"dtype": "int3"},
        {"device": "abacus"},
        {"device": "meta"},
        {"max_draft": -1},
        {"max_draft": 256},
        {"max_draft": 10**9},
        {"num_threads": 10**6},
        {"num_threads": 0},
        {"num_blocks": 10**12},
        {"block_size": 10**15},
        {"max_num_seqs": "many"},
        {"seed": -1},
        {"device": "cpu:1"},
        {"device": "cuda:99"},
        {"device": 3},
        {"max_model_len": 100_000},
        {"drafter": "/nowhere"},
        pytest.param(
            {"device": "cuda"}, marks=pytest.mark.skipif(DEVICE == "cuda", reason="there is a CUDA device here")
        ),
    ],
)
def test_bad_configurations(settings: dict, llama: Pair) -> None:
    with pytest.raises(UserError) as error:
        Engine(llama.config(**settings), RandomPlans())
    refused(str(error.value))


def test_missing_target(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no target checkpoint") as error:
        Models.load(EngineConfig(tmp_path / "nothing"))
    refused(str(error.value))


def test_drafter_of_another_vocabulary(llama: Pair, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "drafter"
    shutil.copytree(llama.drafter, folder)
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["<other>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match="vocabulary differs") as error:
        Models.load(llama.config(drafter=folder))
    refused(str(error.value))
