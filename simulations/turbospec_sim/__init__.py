"""The offline simulator: the real controller in front of a simulated engine with continuous batching."""
