"""Record types of a simulated engine's arrays, so that compiled code reads fields by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec.models.logistic import MAX_CLASSES

Records = Any
"""A numpy array of records; type checkers do not know the fields of records."""
Record = Any
"""One of them, a view into its array."""

OFFERED = np.dtype(
    [
        ("sent", "f8"),  # seconds, when the client sends it; infinite until a closed loop's client does
        ("ttft", "f8"),  # seconds from `sent` to the first token; NaN until then, and for refused requests
        ("latency", "f8"),  # seconds from `sent` to the last token; NaN likewise
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),  # after which EOS follows
        ("class_id", "i4"),
    ],
    align=True,
)
"""A request as its client sees it; one for each request of a run."""

REQUEST = np.dtype(
    [
        ("index", "i8"),  # among the offered requests
        ("key", "u8"),  # of the random stream that decides which draft tokens are accepted
        ("class_id", "i8"),
        ("told_class", "i8"),  # class id in the view
        ("prompt_tokens", "i8"),
        ("output_tokens", "i8"),
        ("max_tokens", "i8"),  # limit of the output that the engine knows
        ("cached_tokens", "i8"),  # prompt tokens found in the prefix cache
        ("shared_tokens", "i8"),  # of these, tokens in KV blocks that all requests share
        ("emitted", "i8"),
        ("computed", "i8"),  # tokens in the target's KV cache
        ("draft_computed", "i8"),  # tokens in the drafter's KV cache
        ("kept_since", "i8"),  # the engine's `kept` when the request's drafter KV lag began; -1 without lag
        ("gap_end", "i8"),  # position after the last gap in the drafter's KV cache; 0 for none
        ("blocks", "i8"),  # KV blocks held
        ("draft_blocks", "i8"),  # of the drafter
        ("drafted_at", "i8"),  # `decode_steps` when the drafter was last to draft for it
        ("may_draft", "i8"),  # whether its draft limit in the last view was above 0
        ("decode_steps", "i8"),
        ("drafts", "i8"),  # draft tokens that are not verified yet
        ("selected", "i8"),  # most of its next draft tokens that will be verified
        ("last_emission", "f8"),  # simulated time of it
        ("step", "i8"),  # the last engine step that the request was in; its outcome there:
        ("step_tokens", "i8"),  # tokens computed, rejected drafts not counted
        ("step_drafted", "i8"),
        ("step_accepted", "i8"),
        ("step_emitted", "i8"),
        ("mix", "f8"),  # weight of its class's second acceptance table
        ("bad", "i8"),  # Markov acceptance: whether the current stretch is a bad one
        ("switch_at", "i8"),  # output position where the stretch ends
        ("switches", "i8"),  # stretches that have ended
        ("repeating", "i8"),  # whether its output repeats earlier text at its next position
        ("stretch_from", "i8"),  # output position where this repeat, or the gap after one, began
        ("stretch_until", "i8"),  # and where it ends
        ("stretches", "i8"),  # repeats and gaps that have ended
        ("matched", "i8"),  # in a gap: length of the repeat before it
        ("source", "i8"),  # `Source` of its drafts
        ("appended", "i8"),  # of its drafts, tokens that the look-up appended to the drafter's
        ("step_appended", "i8"),
    ],
    align=True,
)
"""A request that the engine has admitted. Its row is its batch slot, which the next request takes over."""

TIMES = np.dtype(
    [
        ("host", "f8"),
        ("host_request", "f8"),
        ("lookup_request", "f8"),
        ("decision", "f8"),
        ("kv_token", "f8"),
        ("attention_pair", "f8"),
        ("sampled_token", "f8"),
        ("prompt", "f8"),
        ("ungraphed", "f8"),
        ("draft_start", "f8"),
        ("draft_pass", "f8"),
        ("draft_row", "f8"),
        ("draft_kv_token", "f8"),
        ("catch_up_token", "f8"),
        ("catch_up", "f8"),
        ("cold_draft", "f8"),
        ("piecewise", "f8"),
        ("piecewise_request", "f8"),
        ("selection", "f8"),
        ("noise", "f8"),
        ("cold_target_factor", "f8"),
        ("cold_target_steps", "f8"),
        ("cold_drafter_factor", "f8"),
        ("cold_drafter_steps", "f8"),
        ("stall_probability", "f8"),
        ("stall_steps", "f8"),
        ("stall_factor", "f8"),
    ],
    align=True,
)
"""Coefficients of a step's time, in seconds where they are times, as `step_time.StepTimes` describes them."""

ENGINE = np.dtype(
    [
        ("max_num_seqs", "i8"),
        ("max_num_batched_tokens", "i8"),
        ("long_prefill_token_threshold", "i8"),
        ("block_size", "i8"),
        ("num_blocks", "i8"),
        ("max_draft", "i8"),  # of the drafter
        ("max_lookup", "i8"),  # longest draft of the look-up; 0 for an engine without one
        ("times", TIMES),
        ("frontend_seconds", "f8"),
        ("draft_before_emit", "i8"),
        ("parallel_drafter", "i8"),
        ("batch_drafter", "i8"),
        ("first_pass_every_step", "i8"),
        ("padded_length", "i8"),  # of the plan whose drafts are verified next
        ("selection", "i8"),  # whether what is verified next was selected after drafting
        ("draft_steps", "i8"),  # in which the drafter drafted, since the start
        ("stalled_until", "i8"),  # first step after the stall that began last
        ("kept_limit", "i8"),  # most tokens kept for the drafter to catch up; 0 for no limit
        ("kept", "i8"),  # tokens kept since the start
        ("gap_acceptance", "f8"),  # share of acceptance right after a gap in the drafter's KV cache; 0: no drafts
        ("gap_tokens", "i8"),  # over which that share rises back to 1
        ("draft_kv_share", "f8"),  # memory of a drafter's KV block, in blocks of the target; 0: not counted
        ("gives_back", "i8"),  # whether a drafter that is off for long gives its blocks back
        ("drafting_share", "f8"),  # of the requests that could draft, those that did; mean over recent steps
        ("drafts_lack_blocks", "i8"),  # whether the last plan drafted for a request that found no drafter KV blocks
        ("draft_blocks", "i8"),  # of the drafter, held by requests
        ("given_back", "i8"),  # times that a request gave back the drafter's blocks
        ("closed_loop", "i8"),  # whether a finished request makes its client send the next one
        ("seed", "i8"),
        ("origin", "f8"),  # simulated time when the measured part began
        ("first_measured", "i8"),  # index of the first request after the warm-up
        ("admissible", "i8"),  # queued requests that lacked nothing but room in the last step's token budget
        ("kv_limited", "i8"),  # whether there were none because KV blocks were lacking
        ("running", "i8"),  # length of each queue
        ("preempted", "i8"),
        ("free_slots", "i8"),
        ("free_blocks", "i8"),
        ("shared_blocks", "i8", (MAX_CLASSES,)),  # KV blocks of the prefix that a class's running requests share
        ("head", "i8"),  # index of the first request that was never admitted
        ("tail", "i8"),  # one past the last request in the waiting queue
        ("sent", "i8"),  # one past the last request whose sending time is known
        ("finished", "i8"),
        ("failed", "i8"),  # measured requests that were refused
        ("preemptions", "i8"),
        ("step", "i8"),
        ("snapshots", "i8"),  # kept of the totals, for the timeline
        ("snapshot_seconds", "f8"),  # least time between two of them
        ("next_snapshot", "f8"),  # when the next is due
    ],
    align=True,
)
"""Settings and state of an engine."""

RUNNING, PREEMPTED, FREE_SLOTS = 0, 1, 2
"""Rows of the queues: running requests, oldest first; preempted ones, the next to resume last; free batch slots."""

SLOT, TOKENS = 0, 1
"""Rows of the batch: a request's batch slot, and the tokens that it computes in the step, drafts not counted."""

TOTALS = np.dtype(
    [
        ("at", "f8"),  # simulated time of the last step's end
        ("steps", "i8"),
        ("prefill_tokens", "i8"),
        ("decode_rows", "i8"),  # decoding requests, summed over steps
        ("drafts", "i8"),  # of these, requests with at least one draft token
        ("drafted", "i8"),
        ("accepted", "i8"),
        ("host_seconds", "f8"),
        ("draft_seconds", "f8"),
        ("verify_seconds", "f8"),
        ("prefill_seconds", "f8"),  # of `verify_seconds`, what prompts added to the target's pass
        ("running_seconds", "f8"),  # running requests times the step's duration
        ("waiting_seconds", "f8"),  # waiting requests times the step's duration
        ("gaps", "i8"),  # pairs of successive emissions of a request
        ("gap_seconds", "f8"),
        ("gap_seconds_squared", "f8"),
    ],
    align=True,
)
"""Sums over the measured steps of a run, and over the gaps between the emissions of measured requests.

An engine's totals are an array of them: the sums so far, then the snapshots that `timeline` keeps.
"""

LENGTHS = np.dtype(
    [
        ("mean", "f8"),  # tokens
        ("median", "f8"),  # of a log-normal distribution, before clipping
        ("sigma", "f8"),  # standard deviation of the logarithm; below 0 for a geometric distribution
        ("low", "f8"),
        ("high", "f8"),
    ],
    align=True,
)
"""Lengths of repeats, or of the text between them."""

CLASS = np.dtype(
    [
        ("begin", "f8"),  # requests that arrive from here on mix in the second table,
        ("end", "f8"),  # from here on they use it alone,
        ("until", "f8"),  # and from here on no more
        ("good_tokens", "f8"),  # mean lengths of Markov stretches; 0 for other processes
        ("bad_tokens", "f8"),
        ("first_line", "i8"),  # recorded acceptance: first of the class's lines in the table of lines
        ("lines", "i8"),  # number of its lines; 0 for other processes
        ("by_reach", "i8"),  # whether a line gives, for each token, the first draft position that rejects it
        ("cached_share", "f8"),
        ("cached_in_common", "i8"),
        ("max_tokens", "i8"),  # limit of the output; 0 for the output's own length
        ("told_class", "i8"),
        ("repeats", "i8"),  # whether a look-up finds repeats; the fields below are then set
        ("repeat_lengths", LENGTHS),
        ("gap_lengths", LENGTHS),
        ("min_match", "i8"),  # tokens of a repeat that the look-up needs to find it
        ("false_match", "f8"),  # share of other positions at which it finds something
        ("false_acceptance", "f8"),  # of each token drafted there
        ("drafter_differs", "i8"),  # whether the third table is the drafter's acceptance in repeats
    ],
    align=True,
)
"""A request class. Its acceptance tables are in `acceptance.AcceptanceTables.rates`."""
