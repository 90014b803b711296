"""What users name is bounded: masks of allowed tokens and service classes."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from tests.turbospec_engine.harness import Pair
from turbospec import UserError
from turbospec.models.logistic import MAX_CLASSES
from turbospec_engine import Models, SamplingParams
from turbospec_engine.input_processor import MAX_MASKS, InputProcessor
from turbospec_engine.request import Request


@pytest.fixture(scope="module")
def models(llama: Pair) -> Models:
    return Models.load(llama.config())


@pytest.fixture
def processor(llama: Pair, models: Models) -> InputProcessor:
    return InputProcessor(llama.config(), models, max_request_tokens=64, max_draft=6)


def process(processor: InputProcessor, **params: object) -> Request:
    return processor.process([1, 2], SamplingParams(**params), "a", 0)  # pyright: ignore


def test_equal_sets_of_allowed_tokens_share_a_mask(processor: InputProcessor) -> None:
    first, second = (process(processor, allowed_token_ids=(3, 4)) for _ in range(2))
    assert first.allowed is second.allowed
    assert process(processor, allowed_token_ids=[3, 4]).allowed is first.allowed
    assert first.allowed is not None
    assert (first.allowed == 0).nonzero().flatten().tolist() == [3, 4]
    assert process(processor).allowed is None


def test_a_prompt_may_be_an_array(processor: InputProcessor) -> None:
    request = processor.process(np.array([3, 4]), SamplingParams(), "a", 0)  # pyright: ignore[reportArgumentType]
    assert request.tokens[: request.num_tokens].tolist() == [3, 4]


def test_requests_without_a_seed_draw_other_numbers_than_those_with_the_engines(processor: InputProcessor) -> None:
    given = process(processor, seed=0).rng.random()
    assert given == np.random.default_rng(0).random()
    assert process(processor).rng.random() != given


def test_old_masks_are_dropped(processor: InputProcessor) -> None:
    served = process(processor, allowed_token_ids=(1,))
    mask = process(processor, allowed_token_ids=(2,)).allowed
    assert mask is not None
    dropped = weakref.ref(mask)
    del mask
    for token in range(3, 3 + MAX_MASKS):
        process(processor, allowed_token_ids=(token,))
    assert dropped() is None
    assert served.allowed is not None, "a request keeps its own"
    assert served.allowed[1] == 0


def test_service_classes_are_as_many_as_the_controller_tells_apart(processor: InputProcessor) -> None:
    names = [f"class {number}" for number in range(1, MAX_CLASSES)]
    ids = [process(processor, service_class=name).class_id for name in ("default", *names)]
    assert ids == list(range(MAX_CLASSES))
    with pytest.raises(UserError, match=f"'one more'.* {MAX_CLASSES} classes.*; use one of default, class 1") as error:
        process(processor, service_class="one more")
    assert "\n" not in str(error.value)
    assert process(processor, service_class="class 7").class_id == 7


def test_a_refused_request_names_no_class(processor: InputProcessor) -> None:
    for number in range(MAX_CLASSES):
        with pytest.raises(UserError, match="max_draft"):
            process(processor, service_class=f"class {number}", max_draft=7)
    assert process(processor, service_class="class 0").class_id == 1
