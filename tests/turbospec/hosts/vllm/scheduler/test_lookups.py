"""Look-ups in the texts of vLLM's requests."""

from __future__ import annotations

import numpy as np

from tests.turbospec.hosts.vllm.scheduler.test_loop import REPEATED, Request
from turbospec.hosts.vllm.scheduler.lookups import Lookups


def find(lookups: Lookups, request: Request, limit: int) -> tuple[list[int], float]:
    found = lookups.find([request], np.array([limit]))
    return found.tokens[0, : found.lengths[0]].tolist(), float(found.scores[0])


def test_a_text_is_indexed_as_it_grows() -> None:
    lookups, request = Lookups(), Request("a", num_prompt_tokens=8, text=REPEATED)
    assert find(lookups, request, 3) == ([], 0.0)
    request.num_output_tokens, request.text = 3, [*range(20, 28), *REPEATED[8:]]
    assert find(lookups, request, 3) == ([4, 5, 6], 3.0), "what is indexed is not read again"
    assert lookups._texts.size(lookups._rows["a"]) == 11


def test_a_text_that_became_shorter_is_indexed_anew() -> None:
    lookups, request = Lookups(), Request("a", num_prompt_tokens=12, text=REPEATED)
    find(lookups, request, 3)
    before = lookups._rows["a"]
    request.num_prompt_tokens, request.text = 11, [9, 9, 9, *REPEATED]
    assert find(lookups, request, 1) == ([], 0.0)
    assert lookups._rows["a"] == before, "the text before is freed"
    assert lookups._texts.size(lookups._rows["a"]) == 11
    request.num_output_tokens = 3
    assert find(lookups, request, 2) == ([4, 5], 3.0), "of the text as it is now"


def test_what_is_found_has_to_reach_past_the_tokens_that_are_not_known() -> None:
    """Eight tokens follow the last ones; of three unknown ones all may be as found."""
    requests = [Request(name, num_prompt_tokens=11, text=REPEATED) for name in "abc"]
    found = Lookups().view(requests, np.array([9, 2, 0]), np.array([3, 1, 1]))
    assert found.lengths.tolist() == [5, 2, 0]
    assert found.scores.tolist() == [3, 3, 0]
    nothing = Lookups().view(requests, np.array([4, 4, 4]), np.array([8, 8, 7]))
    assert nothing.lengths.tolist() == [0, 0, 1]
    assert nothing.scores.tolist() == [0, 0, 3]


def test_each_request_is_searched_for_past_its_own_unknown_tokens() -> None:
    requests = [Request(name, num_prompt_tokens=11, text=REPEATED) for name in "ab"]
    assert Lookups().view(requests, np.array([0, 3]), np.array([0, 4])).lengths.tolist() == [0, 3]


def test_a_text_that_is_forgotten_makes_room_for_another_and_leaves_the_others() -> None:
    lookups = Lookups()
    a, b, c = (Request(name, num_prompt_tokens=12, text=REPEATED) for name in "abc")
    for request in (a, b):
        find(lookups, request, 3)
    before = dict(lookups._rows)
    lookups.forget(["a", "nobody"])
    find(lookups, c, 3)
    assert lookups._rows == {"b": before["b"], "c": before["a"]}
    b.num_output_tokens, b.text = 1, [*range(20, 32), *REPEATED[12:]]
    assert find(lookups, b, 3) == ([6, 7, 8], 5.0)
