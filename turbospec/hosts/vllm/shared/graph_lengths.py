"""The draft lengths for which vLLM captures full CUDA graphs.

Model runner V2 captures graphs for every length that `num_speculative_tokens_per_batch_size` names, in all batch sizes.
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

    vLLM sizes the graphs of a length by the largest batch that the table gives it. The lengths take turns, so that each
    of them has graphs up to nearly `max_num_seqs`, which is not known yet. TurboSpec's scheduler overrides the table.

    Args:
        longest: vLLM's `num_speculative_tokens`.
    """
    lengths = graph_lengths(longest)
    return [(batch, batch, lengths[(batch - 1) % len(lengths)]) for batch in range(1, LARGEST_BATCH + 1)]
