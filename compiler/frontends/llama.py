"""Llama and its many relatives that kept its form: pre-norm, grouped queries, gated silu MLP, one rope; biases by config."""

from __future__ import annotations

from dataclasses import replace

from .adapter import Adapter
from .blocks import Config
from .config_reader import ConfigReader
from .readings import read_decoder

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # as many as query heads
    "head_dim": None,  # hidden_size / num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "partial_rotary_factor": None,
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
}


def _config(c: ConfigReader) -> Config:
    c.expect("pretraining_tp", (1, None))
    bias = c.get("attention_bias", bool)
    return replace(read_decoder(c), qkv_bias=bias, o_bias=bias, mlp_bias=c.get("mlp_bias", bool))


LLAMA = Adapter(
    family="llama",
    architecture="LlamaForCausalLM",
    model_type="llama",
    defaults=DEFAULTS,
    config=_config,
    names=(
        ("model.embed_tokens.weight", "embed"),
        ("model.norm.weight", "final_norm"),
        ("lm_head.weight", "head"),
        ("model.layers.{L}.input_layernorm.weight", "blk.{L}.attn_norm"),
        ("model.layers.{L}.self_attn.q_proj.weight", "blk.{L}.attn.q"),
        ("model.layers.{L}.self_attn.q_proj.bias", "blk.{L}.attn.q.bias"),
        ("model.layers.{L}.self_attn.k_proj.weight", "blk.{L}.attn.k"),
        ("model.layers.{L}.self_attn.k_proj.bias", "blk.{L}.attn.k.bias"),
        ("model.layers.{L}.self_attn.v_proj.weight", "blk.{L}.attn.v"),
        ("model.layers.{L}.self_attn.v_proj.bias", "blk.{L}.attn.v.bias"),
        ("model.layers.{L}.self_attn.o_proj.weight", "blk.{L}.attn.o"),
        ("model.layers.{L}.self_attn.o_proj.bias", "blk.{L}.attn.o.bias"),
        ("model.layers.{L}.self_attn.rotary_emb.inv_freq", None),  # recomputed from the config
        ("model.rotary_emb.inv_freq", None),
        ("model.layers.{L}.post_attention_layernorm.weight", "blk.{L}.ffn_norm"),
        ("model.layers.{L}.mlp.gate_proj.weight", "blk.{L}.ffn.gate"),
        ("model.layers.{L}.mlp.gate_proj.bias", "blk.{L}.ffn.gate.bias"),
        ("model.layers.{L}.mlp.up_proj.weight", "blk.{L}.ffn.up"),
        ("model.layers.{L}.mlp.up_proj.bias", "blk.{L}.ffn.up.bias"),
        ("model.layers.{L}.mlp.down_proj.weight", "blk.{L}.ffn.down"),
        ("model.layers.{L}.mlp.down_proj.bias", "blk.{L}.ffn.down.bias"),
    ),
)
