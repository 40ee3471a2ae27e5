"""What is fuzzed, as a table: how a case is made, what reads it, and with which exit codes it may be refused.

A target works in a folder of its own: `start` fills it and returns seeds, `make` turns a seed into a case, `read` hands the case to the code.
`read` may return normally (the case was harmless), or raise a ThincError of one of `codes`; all else is a finding.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from thinlm.schemas.errors import ThincError

from .mutate import bytes_case, json_case

REFUSED = frozenset({5, 6})
Make = Callable[[random.Random, list[bytes]], bytes]


class Finding(Exception):
    """A wrong outcome that is no exception by itself."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """See the module."""

    start: Callable[[Path], list[bytes]]
    make: Make
    read: Callable[[Path, bytes], object]
    codes: frozenset[int] = field(default=REFUSED)


def of_json(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A changed JSON document."""
    return json_case(rng, rng.choice(seeds))


def of_both(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A changed document or changed bytes."""
    return json_case(rng, rng.choice(seeds), compact=False) if rng.random() < 0.8 else bytes_case(rng, seeds)


# Artifacts


def artifact(work: Path) -> Path:
    """A tiny artifact, and a copy to damage."""
    import tiny_artifact

    if not (work / "good.thin").exists():
        tiny_artifact.build(work / "good.thin")
        shutil.copytree(work / "good.thin", work / "bad.thin")
    return work / "bad.thin"


def _manifest(work: Path) -> list[bytes]:
    return [(artifact(work) / "manifest.json").read_bytes()]


def _read_manifest(work: Path, case: bytes) -> object:
    from thinlm.artifacts import open_artifact

    (work / "bad.thin" / "manifest.json").write_bytes(case)
    return open_artifact(work / "bad.thin")


def _index(work: Path) -> list[bytes]:
    return [(artifact(work) / "pages.idx").read_bytes()]


def _read_index(work: Path, case: bytes) -> object:
    """The manifest is made to agree, so that the index itself is read."""
    from attacks.tamper import write_index
    from thinlm.artifacts import open_artifact

    write_index(work / "bad.thin", case)
    return open_artifact(work / "bad.thin")


def _small(name: str) -> Callable[[Path], list[bytes]]:
    return lambda work: [(artifact(work) / name).read_bytes()]


def _read_small(name: str) -> Callable[[Path, bytes], object]:
    """graph.json or plan.json, with everything else made to agree."""

    def read(work: Path, case: bytes) -> object:
        from attacks.tamper import seal
        from thinlm.artifacts import open_artifact
        from thinlm.runtime_min import graph_of, options_of

        (work / "bad.thin" / name).write_bytes(case)
        seal(work / "bad.thin")
        opened = open_artifact(work / "bad.thin")
        return graph_of(opened), options_of(opened)

    return read


def _files(work: Path) -> list[bytes]:
    """Every file of the folder as NAME, NUL, bytes."""
    folder = artifact(work)
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [name.encode() + b"\0" + (folder / name).read_bytes() for name in names]


def _one_file(rng: random.Random, seeds: list[bytes]) -> bytes:
    name, _, data = rng.choice(seeds).partition(b"\0")
    return name + b"\0" + bytes_case(rng, [data])


def _read_folder(work: Path, case: bytes) -> None:
    """A changed byte anywhere must be noticed."""
    name, _, data = case.partition(b"\0")
    path = work / "bad.thin" / name.decode()
    good = (work / "good.thin" / name.decode()).read_bytes()
    try:
        path.write_bytes(data)
        _must_notice(work / "bad.thin", data != good)
    finally:
        path.write_bytes(good)


def _packed(work: Path) -> list[bytes]:
    from thinlm.artifacts import pack

    return [pack(artifact(work), work / "good.thin.zip", force=True).read_bytes()]


def _read_packed(work: Path, case: bytes) -> None:
    (work / "bad.thin.zip").write_bytes(case)
    _must_notice(work / "bad.thin.zip", case != (work / "good.thin.zip").read_bytes())


def _must_notice(path: Path, changed: bool) -> None:
    from thinlm.artifacts import verify_artifact

    errors = verify_artifact(path, threads=1)
    if changed and not errors:
        raise Finding("changed bytes pass verification")
    if errors:
        raise errors[0]


def _certificate(work: Path) -> list[bytes]:
    if not (work / "certificate.json").exists():
        import tiny_compiled
        from thinlm.certify import certify, write_certificate
        from thinlm.runtime_min import open_artifact

        path = tiny_compiled.build(work, name="certified")
        certificate = certify(tiny_compiled.open_candidate(path), tiny_compiled.open_reference(), tiny_compiled.inputs(path))
        shutil.copy(path / "attest" / write_certificate(open_artifact(path), certificate), work / "certificate.json")
    return [(work / "certificate.json").read_bytes()]


def _read_certificate(work: Path, case: bytes) -> object:
    from thinlm.certify import rejudge, summary
    from thinlm.certify.certificate import contradiction
    from thinlm.schemas.certificate import decode_certificate

    certificate = decode_certificate(case, where="certificate")
    return contradiction(certificate), rejudge(certificate), summary(certificate)


# What a compile reads


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
    import json

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
    import json

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


def refusal(target: Target, error: BaseException) -> str:
    """"" when `error` is an allowed refusal, else what is wrong with it."""
    if not isinstance(error, ThincError):
        return f"{type(error).__name__}: {error}"
    if error.exit_code not in target.codes:
        return f"exit code {error.exit_code}: {error}"
    if len(str(error)) > 2000 or "\n" in str(error):
        return f"not one short line: {str(error)[:200]!r}"
    return ""


def _any(rng: random.Random, seeds: list[bytes]) -> bytes:
    return bytes_case(rng, seeds)


def table() -> dict[str, Target]:
    """All targets by name."""
    from . import tokens

    found: dict[str, Any] = {
        "manifest": Target(start=_manifest, make=of_json, read=_read_manifest),
        "index": Target(start=_index, make=_any, read=_read_index),
        "graph": Target(start=_small("graph.json"), make=of_json, read=_read_small("graph.json")),
        "plan": Target(start=_small("plan.json"), make=of_json, read=_read_small("plan.json")),
        "artifact": Target(start=_files, make=_one_file, read=_read_folder),
        "packed": Target(start=_packed, make=_any, read=_read_packed),
        "certificate": Target(start=_certificate, make=of_json, read=_read_certificate),
        "safetensors": Target(start=_safetensors, make=_safetensors_case, read=_read_safetensors),
        "checkpoint": Target(start=_model_file("model.safetensors"), make=_safetensors_case, read=_open_with("model.safetensors")),
        "shards": Target(start=_shards, make=of_both, read=_open_with("model.safetensors.index.json")),
        "config": Target(start=_configs, make=of_both, read=_open_with("config.json")),
        "generation": Target(start=_model_file("generation_config.json"), make=of_both, read=_open_with("generation_config.json")),
        "stats": Target(start=_stats, make=_any, read=_read_stats),
        "recipe": Target(start=lambda work: [RECIPE], make=of_both, read=_read_recipe, codes=frozenset({2})),
        "yaml": Target(start=lambda work: [YAML, RECIPE], make=_any, read=_read_recipe, codes=frozenset({2})),
        "scores": Target(start=_scores, make=of_both, read=_read_scores, codes=frozenset({2})),
        "texts": Target(start=_texts, make=_any, read=_read_texts),
    }
    return found | tokens.table()
