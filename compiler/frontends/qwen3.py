"""Qwen3 (dense): no bias by default, q and k normalised per head before the rope, Qwen2's window switch."""

from __future__ import annotations

from dataclasses import replace

from .blocks import Config
from .config_reader import ConfigReader
from .llama import LLAMA
from .qwen2 import DEFAULTS
from .readings import read_decoder, read_switched_windows


def _config(c: ConfigReader) -> Config:
    config, bias = read_decoder(c), c.get("attention_bias", bool)
    return replace(config, qk_norm=True, qkv_bias=bias, o_bias=bias, windows=read_switched_windows(c, config.layers))


QWEN3 = replace(
    LLAMA,
    family="qwen3",
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    defaults={**DEFAULTS, "head_dim": 128},
    config=_config,
    names=(
        *LLAMA.names,
        ("model.layers.{L}.self_attn.q_norm.weight", "blk.{L}.attn.q_norm"),
        ("model.layers.{L}.self_attn.k_norm.weight", "blk.{L}.attn.k_norm"),
    ),
)
