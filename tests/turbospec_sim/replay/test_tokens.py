from __future__ import annotations

import numpy as np

from turbospec_sim.replay.tokens import ANYWHERE, Draft, KnownTokens, count_judged


def known() -> KnownTokens:
    """One request of 7 tokens: 1 and 2 accepted, 3 missed, 4 the target's own, 5 accepted, 6 not judged."""
    drafts = [Draft(1, 3, 2, True), Draft(5, 2, 1, False)]
    return KnownTokens.of(np.array([7]), [drafts], max_draft=3)


def judged(tokens: KnownTokens, position: int, length: int) -> tuple[int, int]:
    return count_judged(np.array([0]), np.array([position]), np.array([length]), *tokens)


def test_a_token_is_known_on_one_side_of_where_it_was_judged() -> None:
    tokens = known()
    assert tokens.lines.tolist() == [[0, 10]]
    assert tokens.certain[:7].tolist() == [0, 1, 2, 0, 0, 1, 0]
    assert tokens.possible[:7].tolist() == [ANYWHERE, ANYWHERE, ANYWHERE, 2, ANYWHERE, ANYWHERE, ANYWHERE]
    assert tokens.drafted[:7].tolist() == [0, 3, 0, 0, 0, 2, 0]


def test_beyond_the_end_no_draft_fails() -> None:
    assert (known().certain[7:] == ANYWHERE).all()
    assert (known().possible[7:] == ANYWHERE).all()


def test_drafts_are_judged_up_to_the_first_token_that_is_unknown() -> None:
    tokens = known()
    assert judged(tokens, 1, 2) == (2, 2)
    assert judged(tokens, 1, 3) == (3, 3)
    assert judged(tokens, 1, 5) == (5, 5)  # behind a known rejection all is known
    assert judged(tokens, 2, 2) == (1, 2)  # token 3 was missed at the third place; at the second it may be guessed
    assert judged(tokens, 4, 3) == (0, 3)
    assert judged(tokens, 5, 9) == (1, 2)  # what lies beyond the end does not count


def test_a_drafter_that_sees_tokens_alone_is_known_at_every_place() -> None:
    tokens = known().same_at_any_position()
    assert judged(tokens, 2, 2) == (2, 2)
    assert judged(tokens, 4, 3) == (0, 3)
    assert (tokens.certain[[1, 2, 5]] == ANYWHERE).all()
    assert tokens.possible[3] == 0
