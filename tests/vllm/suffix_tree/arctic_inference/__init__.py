"""Stands in for Arctic Inference, which vLLM's suffix decoding needs and which has no wheel."""
