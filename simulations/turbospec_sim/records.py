"""The arrays that a simulated engine works on. Records, so that compiled code reads like the fields' names."""

from __future__ import annotations

from typing import Any

import numpy as np

Records = Any
"""A numpy array of records; type checkers do not know records' fields."""
Record = Any
"""One of them: a view into its array."""

OFFERED = np.dtype(
    [
        ("sent", "f8"),  # seconds, when the client sends it; infinite until a closed loop's client does
        ("ttft", "f8"),  # seconds from then to the first token; NaN before it, and where the server refused
        ("latency", "f8"),  # seconds from then to the last token
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),  # where the text ends
        ("class_id", "i4"),
    ],
    align=True,
)
"""A request as the client sees it; one for each request of a run."""

REQUEST = np.dtype(
    [
        ("index", "i8"),  # in the offered requests
        ("key", "u8"),  # of the stream of uniforms that belongs to its text
        ("class_id", "i8"),
        ("told_class", "i8"),  # what the controller is told
        ("prompt_tokens", "i8"),
        ("output_tokens", "i8"),
        ("max_tokens", "i8"),  # what the engine knows of the output's end
        ("cached_tokens", "i8"),  # of the prompt, found in the prefix cache
        ("shared_tokens", "i8"),  # of these, in blocks that are not the request's own
        ("emitted", "i8"),
        ("computed", "i8"),  # tokens in the target's KV cache
        ("draft_computed", "i8"),  # tokens in the drafter's
        ("blocks", "i8"),  # KV blocks held
        ("decode_steps", "i8"),
        ("drafts", "i8"),  # draft tokens that wait to be verified
        ("last_emission", "f8"),
        ("step", "i8"),  # the last engine step it was in, and what came of it there:
        ("step_tokens", "i8"),  # computed, drafts not counted
        ("step_drafted", "i8"),
        ("step_accepted", "i8"),
        ("step_emitted", "i8"),
        ("mix", "f8"),  # weight of its class's second table of acceptance
        ("bad", "i8"),  # Markov text: whether the current stretch is a hard one,
        ("switch_at", "i8"),  # the output position where it ends,
        ("switches", "i8"),  # and how many ended before it
    ],
    align=True,
)
"""A request that the engine has started; rows are recycled, at most `max_num_seqs` are in use."""

ENGINE = np.dtype(
    [
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("long_prefill_token_threshold", "i8"),
        ("block_size", "i8"),
        ("num_blocks", "i8"),
        ("max_draft", "i8"),
        ("frontend_seconds", "f8"),
        ("draft_before_emit", "i8"),
        ("parallel_drafter", "i8"),
        ("batch_drafter", "i8"),
        ("first_pass_every_step", "i8"),
        ("drafter_warm", "i8"),  # it has drafted before
        ("closed_loop", "i8"),  # a finished request makes its client send the next one
        ("seed", "i8"),
        ("origin", "f8"),  # simulated time at which the measured part began
        ("first_measured", "i8"),  # index of the first request that is not a warm-up
        ("running", "i8"),  # lengths of the queues
        ("preempted", "i8"),
        ("free_rows", "i8"),
        ("free_blocks", "i8"),
        ("head", "i8"),  # index of the first request that the engine has not started
        ("tail", "i8"),  # index after the last that has arrived
        ("sent", "i8"),  # index after the last whose sending time is known
        ("finished", "i8"),
        ("failed", "i8"),
        ("preemptions", "i8"),
        ("step", "i8"),
        ("marks", "i8"),  # kept of the run's timeline
        ("mark_seconds", "f8"),  # from one of them to the next, at least
        ("next_mark", "f8"),  # when the next is due
    ],
    align=True,
)
"""What an engine is and where it stands."""

RUNNING, PREEMPTED, FREE_ROWS = 0, 1, 2
"""Rows of the queues: requests being served, oldest first; preempted ones, the next to resume last; unused rows."""

SLOT, TOKENS = 0, 1
"""Rows of the batch: a request's row, and the tokens it computes in the step, drafts not counted."""

TOTALS = np.dtype(
    [
        ("at", "f8"),  # simulated time of the last step's end
        ("steps", "i8"),
        ("prefill_tokens", "i8"),
        ("decode_rows", "i8"),  # requests that were decoding, summed over steps
        ("drafts", "i8"),  # of these, those with at least one draft token
        ("drafted", "i8"),
        ("accepted", "i8"),
        ("host_seconds", "f8"),
        ("draft_seconds", "f8"),
        ("verify_seconds", "f8"),
        ("prefill_seconds", "f8"),  # of these, what prompts added to the target's pass
        ("running_seconds", "f8"),  # requests in the step, times its duration
        ("waiting_seconds", "f8"),  # requests that waited, times its duration
        ("gaps", "i8"),
        ("gap_seconds", "f8"),
        ("gap_seconds_squared", "f8"),
    ],
    align=True,
)
"""Sums over the measured steps of a run, and over the gaps between the emissions of measured requests.

An engine's totals are an array of them: the sums so far, and then the same at moments before, as `timeline` keeps them.
"""

CLASS = np.dtype(
    [
        ("begin", "f8"),  # arrivals from here on mix the second table in,
        ("end", "f8"),  # fully from here,
        ("until", "f8"),  # and no more from here
        ("good_tokens", "f8"),  # mean stretches of Markov text; 0 for other processes
        ("bad_tokens", "f8"),
        ("first_line", "i8"),  # recorded acceptance: lines in the table of lines
        ("lines", "i8"),  # 0 for other processes
        ("by_reach", "i8"),  # the lines say in how many of a draft's first positions each token is guessed
        ("cached_share", "f8"),
        ("cached_in_common", "i8"),
        ("max_tokens", "i8"),  # 0: the output's own length
        ("told_class", "i8"),
    ],
    align=True,
)
"""A request class. Its two acceptance tables are rows of a (classes, 2, MAX_POSITIONS) array beside it."""

VIEW_SLOT = 0
"""Row of a view's columns that has the requests' rows; those after it are a `StepView`'s."""
