"""Folders: what is refused and why, what opening costs on huge checkpoints, and the weights that a source checkpoint hands out."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import checkpoints
from thinlm.artifacts.formats import get_format
from thinlm.compiler.frontends import Binding, SourceCheckpoint, open_checkpoint
from thinlm.schemas.errors import FrontendError, InputError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    names = ("llama", "llama-scaled", "qwen2", "mistral")
    return {name: checkpoints.write(name, tmp_path_factory.mktemp(name)) for name in names}


@pytest.fixture
def llama(originals: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of one checkpoint in a single file."""
    return shutil.copytree(originals["llama"], tmp_path / "llama")


@pytest.fixture
def sharded(originals: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(originals["llama-scaled"], tmp_path / "sharded")


def tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    """Rewrite the single file's tensors."""

    def edit(folder: Path) -> None:
        table = {name: array.astype(np.float32) for name, array in _load(folder / SINGLE).items()}
        change(table)
        save_file(table, folder / SINGLE)

    return edit


def _load(path: Path) -> dict[str, np.ndarray]:
    from safetensors.torch import load_file as load_torch

    return {name: t.float().numpy() for name, t in load_torch(path).items()}


def index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Rewrite the index."""

    def edit(folder: Path) -> None:
        table = json.loads((folder / INDEX).read_text())
        change(table)
        (folder / INDEX).write_text(json.dumps(table))

    return edit


def file(name: str, content: str | bytes | None) -> Callable[[Path], None]:
    """Write, or with None remove, a file."""

    def edit(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return edit


def pickled(folder: Path) -> None:
    (folder / SINGLE).rename(folder / "pytorch_model.bin")


def pipe(folder: Path) -> None:
    (folder / SINGLE).unlink()
    os.mkfifo(folder / SINGLE)


Q = "model.layers.0.self_attn.q_proj.weight"
SINGLE_FILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (file("config.json", None), "no config.json"),
    "config is a list": (file("config.json", "[]"), "not a JSON object"),
    "config with a duplicate key": (file("config.json", '{"hidden_size": 60, "hidden_size": 60}'), "'hidden_size' occurs twice"),
    "config with NaN": (file("config.json", '{"rms_norm_eps": NaN}'), "NaN"),
    "config of 33 MiB": (file("config.json", " " * (33 << 20)), "at most"),
    "empty config": (file("config.json", "{}"), "known: LlamaForCausalLM (llama)"),
    "no weights": (file(SINGLE, None), "no model.safetensors"),
    "pickled weights": (pickled, "pytorch_model.bin, a pickle"),
    "weights are a pipe": (pipe, "not a regular file"),
    "weights are text": (file(SINGLE, "version https://git-lfs.github.com/spec/v1\n"), "header of"),
    "stale index": (file(INDEX, '{"weight_map": {"a": "model-00001-of-00001.safetensors"}}'), "remove the stale one"),
    "a missing tensor": (tensors(lambda t: t.pop(Q)), "1 slots are missing: blk.0.attn.q"),
    "a surplus tensor": (tensors(lambda t: t.update(odd=t[Q])), "1 tensors match no row of the name table: odd"),
    "many of each": (tensors(lambda t: [t.update({f"x{i}": t.pop(k)}) for i, k in enumerate(list(t)[:7])]), "7 tensors match no row"),
    "a name with an escape": (tensors(lambda t: t.update({"a\n\x1b[31m": t[Q]})), "a\\n\\x1b[31m"),
    "a layer too many": (tensors(lambda t: t.update({Q.replace("0", "3"): t[Q]})), "have no place in the model: " + Q.replace("0", "3")),
    "a layer number with a zero": (tensors(lambda t: t.update({Q.replace("0", "00"): t.pop(Q)})), "match no row"),
    "a bias without its key": (tensors(lambda t: t.update({Q.replace("weight", "bias"): t[Q][:, 0].copy()})), "have no place in the model"),
    "a transposed matrix": (tensors(lambda t: t.update({Q: t[Q].T.copy()})), "[60, 108], expected [108, 60]"),
    "a vector for a matrix": (tensors(lambda t: t.update({Q: t[Q].reshape(-1)})), "[6480], expected [108, 60]"),
    "float64": (tensors(lambda t: t.update({Q: t[Q].astype(np.float64)})), "f64, expected one of bf16, f16, f32"),
    "integers": (tensors(lambda t: t.update({Q: t[Q].astype(np.int8)})), "i8, expected one of"),
    "no tensors": (tensors(lambda t: t.clear()), "but only 0 tensors"),
    "generation config": (file("generation_config.json", '{"eos_token_id": "</s>"}'), "eos_token_id"),
    "generation config is a list": (file("generation_config.json", "[1]"), "not a JSON object"),
}
SHARDED: dict[str, tuple[Callable[[Path], None], str]] = {
    "index without a map": (index(lambda t: t.pop("weight_map")), "weight_map"),
    "path upwards": (index(lambda t: t["weight_map"].update(odd="../model.safetensors")), "not the plain name"),
    "absolute path": (index(lambda t: t["weight_map"].update(odd="/etc/model.safetensors")), "not the plain name"),
    "path inside": (index(lambda t: t["weight_map"].update(odd="sub/model.safetensors")), "not the plain name"),
    "hidden file": (index(lambda t: t["weight_map"].update(odd=".model.safetensors")), "not the plain name"),
    "a number": (index(lambda t: t["weight_map"].update(odd=7)), "not the plain name"),
    "a shard that is missing": (index(lambda t: t["weight_map"].update(odd="model-9.safetensors")), "can't be read"),
    "a tensor that no shard has": (index(lambda t: t["weight_map"].update(odd="model-extra.safetensors")), "the shards say None"),
    "a tensor that the index lacks": (index(lambda t: t["weight_map"].pop("model.norm.weight")), "the index says None"),
    "a tensor in another shard": (
        index(lambda t: t["weight_map"].update({"model.norm.weight": "model-extra.safetensors"})),
        "the index says model-extra.safetensors",
    ),
    "a tensor in two shards": (
        lambda folder: save_file({"model.norm.weight": np.ones(60, np.float32)}, folder / "model-extra.safetensors"),
        "'model.norm.weight' is in",
    ),
}


def refused(folder: Path | str, reason: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError) as error:
        open_checkpoint(folder)
    assert time.process_time() - start < 1
    assert error.value.exit_code == 5
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", SINGLE_FILE)
def test_hostile_folder(case: str, llama: Path) -> None:
    edit, reason = SINGLE_FILE[case]
    edit(llama)
    refused(llama, reason)


@pytest.mark.parametrize("case", SHARDED)
def test_hostile_shards(case: str, sharded: Path) -> None:
    edit, reason = SHARDED[case]
    edit(sharded)
    refused(sharded, reason)


def test_paths_that_are_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused("mistralai/Mistral-7B-v0.3", "hf download mistralai/Mistral-7B-v0.3 --local-dir Mistral-7B-v0.3")
    for text in ("nothing", "a/b/c", "../x", str(tmp_path / "absent")):
        with pytest.raises(InputError) as error:
            open_checkpoint(text)
        assert "no such folder" in str(error.value)
        assert "hf download" not in str(error.value)
    (tmp_path / "model.gguf").touch()
    refused(tmp_path / "model.gguf", "not a folder")


def test_cache_folder_of_links(llama: Path, tmp_path: Path) -> None:
    """As the hub's cache stores it: links into the blobs beside the snapshots."""
    linked = tmp_path / "models--a--b" / "snapshots" / "0123abcd"
    blobs = tmp_path / "models--a--b" / "blobs"
    linked.mkdir(parents=True)
    blobs.mkdir()
    for n, path in enumerate(sorted(llama.iterdir())):
        shutil.copy(path, blobs / f"{n:064x}")
        (linked / path.name).symlink_to(f"../../blobs/{n:064x}")
    assert open_checkpoint(linked)[0] == open_checkpoint(llama)[0]


def test_index_over_one_file(llama: Path) -> None:
    names = _load(llama / SINGLE)
    (llama / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, SINGLE)}))
    open_checkpoint(llama)


def test_wrapper_saved_by_module_names(tmp_path: Path) -> None:
    folder = checkpoints.write("gemma3-wrapper", tmp_path / "a")
    other = shutil.copytree(folder, tmp_path / "b")
    table = {f"model.{name}".replace("model.language_model.model.", "model.language_model."): t for name, t in _load(folder / SINGLE).items()}
    save_file(table, other / SINGLE)
    (graph, weights, _), (again, renamed, _) = open_checkpoint(folder), open_checkpoint(other)
    assert [(p.name, p.shape) for p in again.params] == [(p.name, p.shape) for p in graph.params]
    assert all(np.array_equal(weights.f32(p.name), renamed.f32(p.name)) for p in graph.params)
    assert len(renamed.dropped) == len(weights.dropped)


def test_head_stored_beside_a_tied_embedding(originals: dict[str, Path], tmp_path: Path) -> None:
    """Equal bytes are one tensor; other bytes contradict the config."""
    folder = shutil.copytree(originals["qwen2"], tmp_path / "q")
    table = _load(folder / SINGLE)
    save_file({**table, "lm_head.weight": table["model.embed_tokens.weight"]}, folder / SINGLE)
    graph, weights, _ = open_checkpoint(folder)
    assert weights.dropped == ("lm_head.weight",)
    assert not any(p.role == "head" for p in graph.params)
    other = table["model.embed_tokens.weight"].copy()
    other[-1, -1] += 1
    for head in (other, other[:-1], other.astype(np.float16)):
        save_file({**table, "lm_head.weight": head}, folder / SINGLE)
        refused(folder, "set tie_word_embeddings to false")


def test_eos_ids(llama: Path) -> None:
    assert open_checkpoint(llama)[2].eos_ids == (2,)
    (llama / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert open_checkpoint(llama)[2].eos_ids == (7, 9)
    (llama / "generation_config.json").unlink()
    checkpoints.rewrite(llama, lambda c: c | {"eos_token_id": None})
    assert open_checkpoint(llama)[2].eos_ids == ()


def test_tokenizer_files(llama: Path) -> None:
    def found() -> dict[str, bytes]:
        return open_checkpoint(llama)[1].tokenizer_files()

    assert set(found()) == {"generation_config.json"}
    (llama / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(InputError, match=r"only there as tokenizer\.model; write a tokenizer\.json"):
        found()
    (llama / "tokenizer.json").write_text('{"é": 1}\r\n')
    (llama / "chat_template.jinja").write_text("{{ x }}")
    assert found()["tokenizer.json"] == '{"é": 1}\r\n'.encode()
    assert set(found()) == {"generation_config.json", "tokenizer.json", "chat_template.jinja"}


@pytest.mark.parametrize("name", ["llama-scaled", "mistral"])
def test_slabs_tile_and_decode(name: str, originals: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinlm.compiler.frontends.source.SLAB_BYTES", 1000)
    graph, weights, _ = open_checkpoint(originals[name])
    want = checkpoints.load(originals[name]).state_dict()
    assert weights.kind == "source"
    for p in graph.params:
        slabs, fmt = list(weights.slabs(p.name)), get_format(weights.encoding(p.name))
        rows, cols = p.shape if len(p.shape) == 2 else (1, p.shape[0])
        assert [s.row0 for s in slabs] + [rows] == [0] + [s.row1 for s in slabs]
        assert all((s.col0, s.col1, s.raw.shape) == (0, cols, (s.row1 - s.row0, fmt.row_bytes(cols))) for s in slabs)
        assert all(s.raw.nbytes <= 1000 or s.row1 - s.row0 == 1 for s in slabs)
        assert len(slabs) > 1 or rows * fmt.row_bytes(cols) <= 1000 or rows == 1
        decoded = np.concatenate([fmt.decode(s.raw, cols) for s in slabs]).reshape(p.shape)
        np.testing.assert_array_equal(decoded, want[weights.bindings[p.name].tensor].numpy())
        value = weights.f32(p.name)
        np.testing.assert_array_equal(value, decoded)
        assert (value.dtype, value.flags.writeable, value.flags.owndata) == (np.float32, True, True)
    with pytest.raises(InputError, match=r"no weight 'blk\.9'"):
        weights.f32("blk.9")


def test_bindings_may_be_parts_of_a_tensor(originals: dict[str, Path]) -> None:
    _, whole, _ = open_checkpoint(originals["llama"])
    parts = {"a": Binding(Q, rows=(10, 30)), "b": Binding(Q, cols=(7, 20)), "c": Binding(Q, rows=(3, 4), cols=(0, 1))}
    weights, full = SourceCheckpoint(whole.folder, parts), whole.f32("blk.0.attn.q")
    for name, want in {"a": full[10:30], "b": full[:, 7:20], "c": full[3:4, :1]}.items():
        assert weights.shape(name) == want.shape
        np.testing.assert_array_equal(weights.f32(name), want)


def test_identity_and_digest(llama: Path) -> None:
    """The identity follows config and headers, the digest every byte."""
    one = open_checkpoint(llama)[1]
    content = (llama / SINGLE).read_bytes()
    assert one.file_digests[SINGLE] == hashlib.sha256(content).hexdigest()
    (llama / SINGLE).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    two = open_checkpoint(llama)[1]
    assert (one.identity == two.identity, one.digest() == two.digest()) == (True, False)
    checkpoints.rewrite(llama, lambda c: c | {"rms_norm_eps": 1e-5})
    three = open_checkpoint(llama)[1]
    assert len({one.identity, three.identity}) == len({one.digest(), two.digest(), three.digest()}) - 1 == 2


def test_hidden_size_of_trillions_allocates_nothing(llama: Path) -> None:
    checkpoints.rewrite(llama, lambda c: c | {"vocab_size": 2**31 - 1, "intermediate_size": 2**31 - 1, "num_attention_heads": 3 * 2**29})
    with pytest.raises(FrontendError, match="expected"):
        open_checkpoint(llama)


def huge(folder: Path, layers: int, shards: int) -> int:
    """A bfloat16 checkpoint with holes for data, of the sizes of a 70-billion-parameter model; its bytes."""
    hidden, kv, ffn, vocab = 8192, 1024, 28672, 128256
    names = {"model.embed_tokens.weight": [vocab, hidden], "lm_head.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for i in range(layers):
        p = f"model.layers.{i}."
        names |= {f"{p}input_layernorm.weight": [hidden], f"{p}post_attention_layernorm.weight": [hidden]}
        names |= {f"{p}self_attn.{n}_proj.weight": [kv if n in "kv" else hidden, hidden] for n in "qkvo"}
        names |= {f"{p}mlp.{n}_proj.weight": [hidden, ffn] if n == "down" else [ffn, hidden] for n in ("gate", "up", "down")}
    folder.mkdir()
    total, owner, items = 0, {}, list(names.items())
    for shard in range(shards):
        file_name = SINGLE if shards == 1 else f"model-{shard:05}.safetensors"
        header, at = {}, 0
        for name, shape in items[shard::shards]:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * int(np.prod(shape))]}
            owner[name], at = file_name, header[name]["data_offsets"][1]
        text = json.dumps(header).encode()
        with (folder / file_name).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + at)
        total += at
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": owner}))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn, "vocab_size": vocab}
    sizes = {"num_hidden_layers": layers, "num_attention_heads": 64, "num_key_value_heads": 8, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config | sizes))
    return total


PROBE = """
import sys, time
start = time.process_time()
from thinlm.compiler.frontends import open_checkpoint
graph, weights, info = open_checkpoint(sys.argv[1])
weights.identity
seconds = time.process_time() - start
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss counts the parent's fork
print(seconds, peak // 1024, sum(p.size for p in graph.params), "torch" in sys.modules)
"""


@pytest.mark.parametrize(("layers", "shards"), [(80, 30), (60, 1)])
def test_opening_a_huge_checkpoint(layers: int, shards: int, tmp_path: Path) -> None:
    """100 GB and more open in under 2 s (of this process, whatever else runs) and 300 MiB, imports included, without torch."""
    total = huge(tmp_path / "huge", layers, shards)
    assert total > 100 * 10**9
    done = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path / "huge")], capture_output=True, text=True, check=True)
    seconds, mebibytes, weights, torch = done.stdout.split()
    assert (2 * int(weights), torch) == (total, "False")
    assert float(seconds) < 2
    assert int(mebibytes) < 300


VERB = """
import sys, time
start = time.process_time()
from thinlm.compiler.cli import run
code = run(sys.argv[1:])
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(code, time.process_time() - start, peak // 1024, "torch" in sys.modules)
"""


@pytest.mark.parametrize("arguments", [("plan", "--budget", "40GiB"), ("inspect",)], ids=lambda a: a[0])
def test_verbs_on_a_huge_checkpoint(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """`plan` and `inspect` answer from headers alone: under 2 s of processor time and 300 MiB, without torch."""
    huge(tmp_path / "huge", 60, 30)
    command = [sys.executable, "-c", VERB, arguments[0], str(tmp_path / "huge"), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, seconds, mebibytes, torch = done.stdout.splitlines()[-1].split()
    assert (code, torch) == ("0", "False"), done.stderr
    assert float(seconds) < 2
    assert int(mebibytes) < 300
