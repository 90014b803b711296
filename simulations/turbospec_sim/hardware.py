"""Published figures of GPUs and models, for step times by the roofline model."""

from __future__ import annotations

from turbospec.files.settings import Settings
from turbospec_sim.limits import Count, Positive

GIGA, TERA = 1e9, 1e12


class Gpu(Settings):
    """One GPU's peak rates."""

    bandwidth_gb_s: Positive
    """Memory bandwidth, 10⁹ bytes/s."""
    tflops_16bit: Positive
    """Dense tensor-core rate in float16 or bfloat16, 10¹² operations/s."""
    tflops_8bit: Positive | None = None
    """The same in FP8 or INT8; None: 8-bit weights are computed in 16 bits."""


class ModelShape(Settings):
    """Shape of a decoder, by the names of Hugging Face configurations."""

    layers: Count
    hidden_size: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate_size: Count
    vocab_size: Count
    """Rows of the output head; for an EAGLE-3 head, its draft vocabulary."""
    eagle3_target_hidden_size: Count | None = None
    """For an EAGLE-3 head, the target's hidden size: the head fuses three hidden states of the target, and its
    attention reads them together with the token's embedding."""

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: the attention's four projections and a gated MLP's three."""
        read = self.hidden_size * (2 if self.eagle3_target_hidden_size else 1)
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return read * (queries + 2 * keys) + queries * self.hidden_size + 3 * self.hidden_size * self.intermediate_size

    @property
    def head_parameters(self) -> int:
        """Weights of the output head."""
        return self.hidden_size * self.vocab_size

    @property
    def fusion_parameters(self) -> int:
        """Weights that only an EAGLE-3 head's first pass reads."""
        return 3 * (self.eagle3_target_hidden_size or 0) * self.hidden_size

    @property
    def kv_values(self) -> int:
        """Values that a token occupies in the KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim


GPUS = {
    # Peak rates of the SXM modules, without sparsity: NVIDIA's data sheets.
    "v100": Gpu(bandwidth_gb_s=900, tflops_16bit=125),
    "a100": Gpu(bandwidth_gb_s=2039, tflops_16bit=312),
    "h100": Gpu(bandwidth_gb_s=3350, tflops_16bit=989, tflops_8bit=1979),
    "h200": Gpu(bandwidth_gb_s=4800, tflops_16bit=989, tflops_8bit=1979),
}


def _shape(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, vocab: int, eagle: int = 0
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        vocab_size=vocab,
        eagle3_target_hidden_size=eagle or None,
    )


MODELS = {
    # The models' own config.json; EAGLE-3 heads keep 32,000 tokens of the vocabulary.
    "llama-3.3-70b": _shape(80, 8192, 64, 8, 128, 28672, 128256),
    "llama-3.3-70b-eagle3": _shape(1, 6144, 48, 8, 128, 16384, 32000, eagle=8192),
    "llama-3.2-1b": _shape(16, 2048, 32, 8, 64, 8192, 128256),
    "qwen3-32b": _shape(64, 5120, 64, 8, 128, 25600, 151936),
    "qwen3-8b": _shape(36, 4096, 32, 8, 128, 12288, 151936),
    "qwen3-8b-eagle3": _shape(1, 4096, 32, 8, 128, 12288, 32000, eagle=4096),
    "qwen3-4b": _shape(36, 2560, 32, 8, 128, 9728, 151936),
    "qwen3-1.7b": _shape(28, 2048, 16, 8, 128, 6144, 151936),
    "qwen3-0.6b": _shape(28, 1024, 16, 8, 128, 3072, 151936),
}
