"""The draft lengths for which vLLM captures full CUDA graphs.

Model runner V2 captures every length that occurs in `num_speculative_tokens_per_batch_size` up to `max_num_seqs`, at
each capture size rounded up to whole requests, within `max_num_seqs` requests and `max_cudagraph_capture_size` tokens.
A batch whose requests all have one of these lengths then replays a full graph; other batches run piecewise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

GRAPH_LENGTHS = (0, 1, 2, 3, 5, 8)
"""Besides the longest. Each length costs the memory and the start-up time of one set of decode graphs."""
LARGEST_BATCH = 1024
WITHOUT = {
    "NONE": "no step replays a CUDA graph; leave out --enforce-eager, or set it to FULL_AND_PIECEWISE",
    "PIECEWISE": "no step replays a full CUDA graph; set it to FULL_AND_PIECEWISE",
    "FULL_DECODE_ONLY": "steps with drafts of different lengths run without CUDA graphs; set it to FULL_AND_PIECEWISE",
}
"""What steps lack, and the mend, by vLLM's `cudagraph_mode`."""


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


def largest_batches(lengths: Iterable[int], max_requests: int, capture_sizes: Collection[int]) -> dict[int, int]:
    """The most requests that have a full graph for each draft length, rising; 0 for a length without one.

    Args:
        lengths: that the table names.
        max_requests: vLLM's `max_num_seqs`.
        capture_sizes: vLLM's `cudagraph_capture_sizes`, in tokens.
    """
    largest = max(capture_sizes, default=0)
    batches: dict[int, int] = {}
    for length in sorted(lengths):
        sizes = (-(-size // (length + 1)) for size in capture_sizes)
        fitting = (size for size in sizes if size <= max_requests and size * (length + 1) <= largest)
        batches[length] = max(fitting, default=0)
    return batches


def lacking_graphs(
    mode: str,
    wanted: Collection[int],
    captured: Collection[int],
    max_requests: int,
    max_tokens: int,
    capture_sizes: Collection[int],
) -> str | None:
    """Which graphs a server with model runner V2 lacks, and the mend; None where steps of all sizes have one.

    Args:
        mode: name of vLLM's `cudagraph_mode`.
        wanted: draft lengths that should have full graphs.
        captured: those that vLLM's table names up to `max_requests`.
        max_requests: vLLM's `max_num_seqs`.
        max_tokens: of a step.
        capture_sizes: vLLM's `cudagraph_capture_sizes`, in tokens.
    """
    if mode in WITHOUT:
        return f"cudagraph_mode is {mode}, so that {WITHOUT[mode]}, unless vLLM's log says why it is {mode}"
    if mode == "FULL":
        return None  # one graph for all batches of a size, whatever their draft lengths
    if len(captured) < len(wanted):
        return (
            f"max_num_seqs is {max_requests}, so that vLLM captures full CUDA graphs for draft lengths "
            f"{', '.join(map(str, sorted(captured)))} only; set it to {len(wanted)} or more"
        )
    largest, batches = max(capture_sizes, default=0), largest_batches(captured, max_requests, capture_sizes)
    needed = {length: min(max_requests * (length + 1), max_tokens) for length in captured}
    short = [f"{length} up to {batch}" for length, batch in batches.items() if needed[length] > largest]
    if not short:
        return None
    return (
        f"max_cudagraph_capture_size is {largest} tokens, so that vLLM captures full CUDA graphs for drafts of "
        f"{', '.join(short)} of {max_requests} requests; larger batches run without; lower max_num_seqs to what you "
        f"serve at once, or raise the size to {max(needed.values())}, which takes memory and start-up time"
    )
