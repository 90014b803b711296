"""The longest request of targets with a sliding window, and of those whose config names one that no layer uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from transformers import MistralConfig, PretrainedConfig, Qwen2Config, Qwen2MoeConfig

from turbospec import UserError
from turbospec_engine import EngineConfig, sizing

POSITIONS, WINDOW = 256, 64
FULL = ["full_attention"] * 2


def longest(text_config: PretrainedConfig, **settings: Any) -> int:
    models = SimpleNamespace(target=SimpleNamespace(config=text_config))
    return sizing.max_model_len(EngineConfig("target", **settings), cast("Any", models))


def config_of(kind: Any, **fields: Any) -> PretrainedConfig:
    return kind(num_hidden_layers=2, max_position_embeddings=POSITIONS, sliding_window=WINDOW, **fields)


@pytest.mark.parametrize(
    "text_config",
    [
        config_of(Qwen2MoeConfig),  # whose config makes it 0
        config_of(Qwen2Config, use_sliding_window=True, layer_types=FULL),
    ],
    ids=lambda config: config.model_type,
)
def test_a_window_that_no_layer_uses_is_no_limit(text_config: PretrainedConfig) -> None:
    assert longest(text_config) == POSITIONS


@pytest.mark.parametrize(
    "text_config",
    [
        config_of(Qwen2Config, use_sliding_window=True, layer_types=["full_attention", "sliding_attention"]),
        config_of(MistralConfig),
        config_of(MistralConfig, layer_types=FULL),  # which its layers ignore
    ],
    ids=["qwen2", "mistral", "mistral with layer_types"],
)
def test_a_window_limits_the_longest_request(text_config: PretrainedConfig) -> None:
    with pytest.raises(UserError, match=f"sliding-window attention over {WINDOW} tokens"):
        longest(text_config)
    assert longest(text_config, max_model_len=WINDOW) == WINDOW
