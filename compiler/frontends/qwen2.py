"""Qwen2, Qwen2.5: llama with biases on q, k and v only (no config key says so) and a switch for sliding windows."""

from __future__ import annotations

from dataclasses import replace

from .blocks import Config
from .config_reader import ConfigReader
from .llama import DEFAULTS as LLAMA_DEFAULTS, LLAMA
from .readings import read_decoder, read_switched_windows

DEFAULTS = {
    **LLAMA_DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}


def _config(c: ConfigReader) -> Config:
    config = read_decoder(c)
    c.expect("use_mrope", (False,))
    return replace(config, qkv_bias=True, windows=read_switched_windows(c, config.layers))


QWEN2 = replace(
    LLAMA,
    family="qwen2",
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    defaults={**DEFAULTS, "use_mrope": False},  # some published files say so; the multimodal ones have another model_type
    config=_config,
)
