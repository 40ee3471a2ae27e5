"""A tiny llama checkpoint with tokenizer and chat template, written by hand (no transformers): a whole compile of it takes seconds. And what
may happen to files: one bit of damage, a copy in another order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import tiny_tokenizers

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, DIM, VOCAB = 64, 160, 2, 4, 2, 16, 320
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float16",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
}
TOKENIZER_CONFIG = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant ",
}
OTHERS = {"generation_config.json": {"eos_token_id": 2}, "special_tokens_map.json": {"bos_token": "<s>", "eos_token": "</s>"}}


def write(folder: Path, seed: int = 0, shards: int = 1) -> Path:
    """Write the checkpoint: seeded float16 weights in one file, or in some with an index. Returns the folder."""
    folder.mkdir(parents=True)
    files = {"config.json": CONFIG, "tokenizer_config.json": TOKENIZER_CONFIG, **OTHERS}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    tiny_tokenizers.build("byte-level", VOCAB).save(str(folder / "tokenizer.json"))
    tensors = _weights(np.random.default_rng(seed))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    owner = {name: f"model-{at % shards + 1:05}-of-{shards:05}.safetensors" for at, name in enumerate(sorted(tensors))}
    for file in sorted(set(owner.values())):
        save_file({name: tensors[name] for name in tensors if owner[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": owner}))
    return folder


def _weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Unit-gain matrices; the embedding is large, so that the tied head is sure of its next token."""

    def matrix(rows: int, cols: int, gain: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, cols)) * gain / cols**0.5).astype(np.float16)

    out = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 6.0), "model.norm.weight": _norm(rng)}
    for n in range(LAYERS):
        at = f"model.layers.{n}"
        out |= {
            f"{at}.input_layernorm.weight": _norm(rng),
            f"{at}.post_attention_layernorm.weight": _norm(rng),
            f"{at}.self_attn.q_proj.weight": matrix(HEADS * DIM, HIDDEN),
            f"{at}.self_attn.k_proj.weight": matrix(KV_HEADS * DIM, HIDDEN),
            f"{at}.self_attn.v_proj.weight": matrix(KV_HEADS * DIM, HIDDEN),
            f"{at}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * DIM),
            f"{at}.mlp.gate_proj.weight": matrix(FFN, HIDDEN),
            f"{at}.mlp.up_proj.weight": matrix(FFN, HIDDEN),
            f"{at}.mlp.down_proj.weight": matrix(HIDDEN, FFN),
        }
    return out


def _norm(rng: np.random.Generator) -> np.ndarray:
    """A norm's gain with mixed signs: a tied head would echo its input otherwise."""
    return ((1 + 0.3 * rng.standard_normal(HIDDEN)) * rng.choice([-1, 1], HIDDEN)).astype(np.float16)


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def copy_reversed(folder: Path, target: Path) -> Path:
    """The same files, made in the opposite order, other times, other modes."""
    target.mkdir(parents=True)
    for path in sorted(folder.iterdir(), reverse=True):
        if path.is_dir():
            copy_reversed(path, target / path.name)
        else:
            (target / path.name).write_bytes(path.read_bytes())
            (target / path.name).chmod(0o640)
            os.utime(target / path.name, (1e9, 1e9))
    return target
