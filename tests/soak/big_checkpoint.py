"""Writes a synthetic llama checkpoint of any size, for memory and time: `python -m tests.soak.big_checkpoint OUT --gigabytes 8`.

Out: a Hugging Face folder with bf16 weights, normal with deviation 1 / sqrt(columns), in shards; a config; and pico's tokenizer, whose vocabulary
is smaller than the model's. Streamed: no tensor is held whole. The same seed and size give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thinlm.artifacts.formats.floats import f32_to_bf16

PICO = Path(__file__).resolve().parents[2] / "examples" / "pico"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
SHARD_BYTES = 1 << 30
CHUNK = 4 << 20  # weights made at a time
BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a llama; the head is not tied to the embedding."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int = 4096

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes as a checkpoint has them."""
        h, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocabulary, h)
        for n in range(self.layers):
            attention = (("q_proj", (q, h)), ("k_proj", (kv, h)), ("v_proj", (kv, h)), ("o_proj", (h, q)))
            ffn = (("gate_proj", (self.ffn, h)), ("up_proj", (self.ffn, h)), ("down_proj", (h, self.ffn)))
            yield from ((f"model.layers.{n}.self_attn.{name}.weight", shape) for name, shape in attention)
            yield from ((f"model.layers.{n}.mlp.{name}.weight", shape) for name, shape in ffn)
            yield from ((f"model.layers.{n}.{name}.weight", (h,)) for name in ("input_layernorm", "post_attention_layernorm"))
        yield "model.norm.weight", (h,)
        yield "lm_head.weight", (self.vocabulary, h)

    def config(self) -> dict[str, object]:
        """config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": 0,
        }


def shape_of(gigabytes: float, vocabulary: int = 128256) -> Shape:
    """A llama of about that many GB (10^9 bytes) in bf16, one layer at least."""
    wide = gigabytes >= 4
    one = Shape(
        hidden=3072 if wide else 1024,
        ffn=8192 if wide else 4096,
        layers=1,
        heads=24 if wide else 8,
        kv_heads=8 if wide else 4,
        head_dim=128,
        vocabulary=vocabulary,
    )
    sizes = {name: BF16 * int(np.prod(shape)) for name, shape in one.tensors()}
    layer = sum(size for name, size in sizes.items() if ".layers." in name)
    layers = max(1, round((gigabytes * 1e9 - (sum(sizes.values()) - layer)) / layer))
    return Shape(**{name: getattr(one, name) for name in Shape.__slots__ if name != "layers"}, layers=layers)


def write(folder: Path, shape: Shape, seed: int = 0, shard_bytes: int = SHARD_BYTES) -> int:
    """Write the folder, which must not exist; returns the bytes of its weights."""
    folder.mkdir(parents=True)
    shards = list(_shards(shape, shard_bytes))
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    for name, tensors in zip(names, shards, strict=True):
        _write_shard(folder / name, tensors, seed)
    where = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor, _ in tensors}
    total = sum(BF16 * int(np.prod(dims)) for _, dims in shape.tensors())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2))
    for name in TOKENIZER:
        shutil.copyfile(PICO / name, folder / name)
    return total


def _shards(shape: Shape, limit: int) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    held, size = [], 0
    for name, dims in shape.tensors():
        nbytes = BF16 * int(np.prod(dims))
        if held and size + nbytes > limit:
            yield held
            held, size = [], 0
        held.append((name, dims))
        size += nbytes
    yield held


def _write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]], seed: int) -> None:
    header, at = {}, 0
    for name, dims in tensors:
        stop = at + BF16 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dims in tensors:
            for chunk in _weights(name, dims, seed):
                file.write(chunk.tobytes())


def _weights(name: str, dims: tuple[int, ...], seed: int) -> Iterator[np.ndarray]:
    """bf16 bit patterns in runs of at most CHUNK; norms are ones."""
    count = int(np.prod(dims))
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    for start in range(0, count, CHUNK):
        n = min(CHUNK, count - start)
        values = np.ones(n, np.float32) if len(dims) == 1 else rng.standard_normal(n, np.float32) * np.float32(dims[-1] ** -0.5)
        yield f32_to_bf16(values)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    shape = shape_of(given.gigabytes, given.vocabulary)
    total = write(given.out, shape, given.seed)
    sys.stdout.write(f"{given.out}: {total / 1e9:.2f} GB, {shape}\n")


if __name__ == "__main__":
    main()
