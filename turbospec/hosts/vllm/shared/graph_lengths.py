"""The draft lengths for which vLLM captures full CUDA graphs.

Model runner V2 captures every length that occurs in `num_speculative_tokens_per_batch_size` up to `max_num_seqs`, at
each capture size rounded up to whole requests, within `max_num_seqs` requests and `max_cudagraph_capture_size` tokens.
A batch whose requests all have one of these lengths then replays a full graph; other batches run piecewise.
"""

from __future__ import annotations

GRAPH_LENGTHS = (0, 1, 2, 3, 5, 8)
"""Besides the longest. Each length costs the memory and the start-up time of one set of decode graphs."""
LARGEST_BATCH = 1024


def graph_lengths(longest: int) -> tuple[int, ...]:
    """Lengths with full graphs, longest first, then from 0."""
    return (longest, *(length for length in GRAPH_LENGTHS if length < longest))


def graph_schedule(longest: int) -> list[tuple[int, int, int]]:
    """A table (smallest batch, largest batch, draft length) for vLLM that names every length of `graph_lengths`.

    vLLM derives its capture sizes from the largest batch that the table gives each length. The lengths take turns, so
    that this is nearly `max_num_seqs`, which is not known yet. TurboSpec's scheduler overrides the table.

    Args:
        longest: vLLM's `num_speculative_tokens`.
    """
    lengths = graph_lengths(longest)
    return [(batch, batch, lengths[(batch - 1) % len(lengths)]) for batch in range(1, LARGEST_BATCH + 1)]


def lacking_graphs(longest: int, max_requests: int) -> str | None:
    """Which graphs a server of few requests lacks, and the mend; None where its requests suffice for `graph_schedule`.

    Args:
        longest: vLLM's `num_speculative_tokens`.
        max_requests: vLLM's `max_num_seqs`.
    """
    lengths = graph_lengths(longest)
    if max_requests >= len(lengths):
        return None
    captured = ", ".join(map(str, sorted(lengths[:max_requests])))
    return (
        f"max_num_seqs is {max_requests}, so that vLLM captures full CUDA graphs for draft lengths {captured} only; "
        f"set it to {len(lengths)} or more"
    )
