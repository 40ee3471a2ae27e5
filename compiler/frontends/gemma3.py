"""Gemma 3, text only: norms of weight 1 + w also after attention and MLP, q/k norms, scaled embedding, two ropes by layer type.

Sliding layers rotate by the local base, unscaled in the older spelling; full layers by `rope_theta` with its scaling.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .blocks import Config
from .config_reader import ConfigReader
from .qwen3 import QWEN3
from .readings import FULL, SLIDING, read_decoder, read_windows
from .rope import Rope, read_typed_rope

DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "partial_rotary_factor": None,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "use_bidirectional_attention": False,
}


def _full_rope(c: ConfigReader, head_dim: int, context: int) -> Rope:
    return read_typed_rope(c, FULL, "rope_theta", head_dim, context, scaled=True)


def read_config(c: ConfigReader) -> Config:
    """The text tower's config, wherever it is nested."""
    config = read_decoder(c, "hidden_activation", _full_rope)
    local = read_typed_rope(c, SLIDING, "rope_local_base_freq", config.head_dim, config.context, scaled=False)
    pattern = c.size("sliding_window_pattern")
    if c.has("layer_types"):
        c.ignore("_sliding_window_pattern")
    windows = read_windows(c, config.layers, c.optional_size("sliding_window"), lambda i: (i + 1) % pattern != 0)
    c.expect("attn_logit_softcapping", (None,))
    c.expect("use_bidirectional_attention", (False, None))
    bias, capped = c.get("attention_bias", bool), c.optional("final_logit_softcapping", float) is not None
    return replace(
        config,
        windows=windows,
        ropes=tuple(local if window else config.ropes[0] for window in windows),
        attn_scale=c.size("query_pre_attn_scalar") ** -0.5,
        embed_scale=float(np.float32(config.hidden**0.5)),
        logit_softcap=c.number("final_logit_softcapping", 1e-3, 1e6) if capped else 0.0,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        post_norms=True,
        norm_offset=1.0,
    )


_NORMS = {"attn_post_norm": "post_attention", "ffn_norm": "pre_feedforward", "ffn_post_norm": "post_feedforward"}
_NAMES = (
    *(row for row in QWEN3.names if row[1] != "blk.{L}.ffn_norm"),
    *((f"model.layers.{{L}}.{theirs}_layernorm.weight", f"blk.{{L}}.{slot}") for slot, theirs in _NORMS.items()),
)

GEMMA3 = replace(
    QWEN3,
    family="gemma3",
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    defaults=DEFAULTS,
    config=read_config,
    names=_NAMES,
)
