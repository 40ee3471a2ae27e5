"""A small good checkpoint, and the tools that break one thing in it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import tiny_tokenizers

Attack = Callable[[Path], object]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
VOCAB, HIDDEN, INNER, HEAD = 420, 64, 96, 16
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"


@cache
def tokenizer() -> bytes:
    """tokenizer.json of a byte-level BPE."""
    return tiny_tokenizers.build("byte-level", VOCAB).to_str().encode()


def write(folder: Path) -> Path:
    """The good checkpoint: one layer, tied, float16."""
    folder.mkdir(parents=True)
    layer, q, kv = "model.layers.0.", (4 * HEAD, HIDDEN), (2 * HEAD, HIDDEN)
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        layer + "self_attn.q_proj.weight": q,
        layer + "self_attn.k_proj.weight": kv,
        layer + "self_attn.v_proj.weight": kv,
        layer + "self_attn.o_proj.weight": q[::-1],
        layer + "mlp.gate_proj.weight": (INNER, HIDDEN),
        layer + "mlp.up_proj.weight": (INNER, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, INNER),
    }
    rng = np.random.default_rng(0)
    save_file({name: rng.normal(0, 0.1, shape).astype(np.float16) for name, shape in shapes.items()}, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2]}')
    (folder / "tokenizer.json").write_bytes(tokenizer())
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}))
    return folder


def put(name: str, content: bytes | str) -> Attack:
    """Another content for a file."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def grown(name: str, size: int) -> Attack:
    """A file of `size` bytes, sparse."""

    def attack(folder: Path) -> None:
        with open(folder / name, "ab") as file:
            file.truncate(size)

    return attack


def instead(name: str, make: Callable[[Path], object]) -> Attack:
    """Something else under the name of a file."""

    def attack(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return attack


def config(**changes: Any) -> Attack:
    """Other values in config.json."""
    return put("config.json", json.dumps(CONFIG | changes))


def edited(name: str, change: Callable[[Any], Any]) -> Attack:
    """`change` works on the parsed JSON in place, or returns what takes its place."""

    def attack(folder: Path) -> None:
        value = json.loads((folder / name).read_bytes())
        changed = change(value)
        (folder / name).write_text(json.dumps(value if changed is None else changed))

    return attack


def tokens(**parts: Any) -> Attack:
    """Other parts of tokenizer.json."""
    return edited("tokenizer.json", lambda t: t.update(parts))


def read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """(header, data) of a safetensors file."""
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def header(change: Callable[[dict[str, Any]], Any]) -> Attack:
    """Another header over the same data."""

    def attack(folder: Path) -> None:
        table, data = read_header(folder / WEIGHTS)
        changed = change(table)
        raw = changed if isinstance(changed, bytes) else json.dumps(table).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(raw)) + raw + data)

    return attack


def entry(**fields: Any) -> Attack:
    """Other fields of the last tensor."""
    return header(lambda t: t[max((k for k in t if k != "__metadata__"), key=lambda k: t[k]["data_offsets"])].update(fields))


def deep(depth: int) -> str:
    """Nested lists."""
    return "[" * depth + "]" * depth
