"""Mistral: llama without biases, one sliding window for all layers (or none: `sliding_window` null)."""

from __future__ import annotations

from dataclasses import replace

from .blocks import Config
from .config_reader import ConfigReader
from .llama import DEFAULTS, LLAMA
from .readings import read_decoder


def _config(c: ConfigReader) -> Config:
    config = read_decoder(c)
    return replace(config, windows=(c.optional_size("sliding_window") or 0,) * config.layers)


MISTRAL = replace(
    LLAMA,
    family="mistral",
    architecture="MistralForCausalLM",
    model_type="mistral",
    defaults={
        **DEFAULTS,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    config=_config,
)
