"""Fuzz targets in what a compile reads: model folders, statistics, recipes, scores, texts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .mutate import bytes_case, json_case
from .targets import USAGE, Target, of_both, of_bytes


def model(work: Path) -> Path:
    """A tiny checkpoint."""
    from attacks_hf import folder

    return work / "model" if (work / "model").exists() else folder.write(work / "model")


def _model_file(name: str) -> Callable[[Path], list[bytes]]:
    return lambda work: [(model(work) / name).read_bytes()]


def _open_with(name: str) -> Callable[[Path, bytes], object]:
    def read(work: Path, case: bytes) -> object:
        from thinlm.compiler.frontends import open_checkpoint

        (work / "model" / name).write_bytes(case)
        return open_checkpoint(work / "model")

    return read


def _configs(work: Path) -> list[bytes]:
    """One of every family's spelling."""
    from attacks_hf import folder

    model(work)
    llama = folder.CONFIG
    rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 32}
    qwen = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "layer_types": ["full_attention"]}
    gemma = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "layer_types": ["sliding_attention"], "query_pre_attn_scalar": 16}
    wrapper = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {**llama, **gemma}, "vision_config": {}}
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    return [json.dumps(c).encode() for c in (llama, llama | {"rope_scaling": rope}, llama | new, llama | qwen, llama | gemma, wrapper)]


def _read_safetensors(work: Path, case: bytes) -> object:
    from thinlm.artifacts.safetensors_file import open_safetensors

    (work / "x.safetensors").write_bytes(case)
    file = open_safetensors(work / "x.safetensors")
    return [np.array(file.array(name)) for name in file.tensors]


def _safetensors_case(rng: random.Random, seeds: list[bytes]) -> bytes:
    if rng.random() < 0.4:
        return bytes_case(rng, seeds)
    raw = rng.choice(seeds)
    size = int.from_bytes(raw[:8], "little")
    header = json_case(rng, raw[8 : 8 + size], compact=False)
    return len(header).to_bytes(8, "little") + header + raw[8 + size :]


def _safetensors(work: Path) -> list[bytes]:
    from safetensors.numpy import save

    rng = np.random.default_rng(0)
    table = {"a": rng.normal(size=(3, 4)).astype(np.float16), "b": rng.normal(size=9).astype(np.float32), "empty": np.empty((0, 2), np.int8)}
    return [save(table), save({f"layer.{n}.w": np.ones((2, 2), np.float16) for n in range(20)}, {"format": "pt"}), save({})]


def _shards(work: Path) -> list[bytes]:
    """model.safetensors.index.json over the one file."""
    from attacks_hf import folder

    names, _ = folder.read_header(model(work) / folder.WEIGHTS)
    return [json.dumps({"metadata": {"total_size": 1}, "weight_map": {n: folder.WEIGHTS for n in names if n != "__metadata__"}}).encode()]


def _stats(work: Path) -> list[bytes]:
    from thinlm.passes.calibrate.stats import InputMoments, Stats, StatsHeader, TableMoments, save_stats

    header = StatsHeader(source="0" * 64, text="1" * 64, tokens=9, gradient_tokens=9, seed=0, inputs={"w": "k"})
    moments = {"k": InputMoments(np.ones(3), np.eye(3, dtype=np.float32))}
    save_stats(Stats(header, moments, {"w": np.ones(2)}, {"embed": TableMoments(np.ones(5, np.int64), np.ones(3))}), work / "good.npz")
    return [(work / "good.npz").read_bytes()]


def _read_stats(work: Path, case: bytes) -> object:
    from thinlm.passes.calibrate import load_stats

    (work / "x.npz").write_bytes(case)
    return load_stats(work / "x.npz").digest()


RECIPE = b"""{"budget": "6.6GiB", "weights_budget": "36%", "max_artifact": 1000000000, "context": 512, "batch": 2, "target": "cpu", "kv_dtype": "f16",
"candidates": ["int4-sym-g64/1", "int8-sym-g64/1"], "gate": {"kl": 0.1, "top1": 0.9}, "seed": 7, "calibration_tokens": 100}"""
YAML = b"budget: 6.6GiB\nbase: &g {kl: 0.1}\ngate: *g\ncandidates:\n  - int4-sym-g64/1\n  - 'x'\n# note\ncontext: !!int 512\nseed: 0x7\n"


def _read_recipe(work: Path, case: bytes) -> object:
    from thinlm.schemas.recipe import read_recipe

    path = work / ("r.json" if case.lstrip()[:1] in (b"{", b"[") else "r.yaml")
    path.write_bytes(case)
    return read_recipe(path)


def _scores(work: Path) -> list[bytes]:
    from thinlm.schemas.scores import GroupScores, Option, ScoreTable, encode_scores

    options = tuple(Option(format=f"int{n}-sym-g64/1", encoded_bytes=n, resident_bytes=n, predicted_kl=0.5 / n) for n in (4, 8))
    return [encode_scores(ScoreTable(scored=True, stats="0" * 64, logical_parameters=8, groups=(GroupScores(params=("a", "b"), options=options),)))]


def _read_scores(work: Path, case: bytes) -> object:
    from thinlm.schemas.scores import decode_scores

    return decode_scores(case)


def _read_texts(work: Path, case: bytes) -> object:
    from thinlm.compiler.text_data import read_documents

    path = work / ("t.jsonl" if case[:1] in (b"{", b"\xef") else "t.txt")
    path.write_bytes(case)
    return read_documents(path)


def _texts(work: Path) -> list[bytes]:
    return [b'{"text":"one","domain":"law"}\n{"text":"two\\u2028"}\n\n', "prose é 🙂\n".encode() * 9, b"\xef\xbb\xbfBOM"]


TARGETS: dict[str, Target] = {
    "safetensors": Target(start=_safetensors, make=_safetensors_case, read=_read_safetensors),
    "checkpoint": Target(start=_model_file("model.safetensors"), make=_safetensors_case, read=_open_with("model.safetensors")),
    "shards": Target(start=_shards, make=of_both, read=_open_with("model.safetensors.index.json")),
    "config": Target(start=_configs, make=of_both, read=_open_with("config.json")),
    "generation": Target(start=_model_file("generation_config.json"), make=of_both, read=_open_with("generation_config.json")),
    "stats": Target(start=_stats, make=of_bytes, read=_read_stats),
    "recipe": Target(start=lambda work: [RECIPE], make=of_both, read=_read_recipe, codes=USAGE),
    "yaml": Target(start=lambda work: [YAML, RECIPE], make=of_bytes, read=_read_recipe, codes=USAGE),
    "scores": Target(start=_scores, make=of_both, read=_read_scores, codes=USAGE),
    "texts": Target(start=_texts, make=of_bytes, read=_read_texts),
}
