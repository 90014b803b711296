"""The benchmark: every policy over the same requests, in interleaved rounds, with honest statistics."""
