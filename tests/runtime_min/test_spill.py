"""Spilled memory and streamed matrices: the same bits where they are the same arrays, nothing left on the disk, and a full disk is an error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from thinlm.artifacts import open_artifact
from thinlm.certify.checks.torch_memory import StorageMeter
from thinlm.runtime_min.backends.torch_cpu import TorchBackend, memory
from thinlm.runtime_min.backends.torch_cpu.linear import PackedLinear
from thinlm.runtime_min.backends.torch_cpu.linear_mapped import MappedMatrix
from thinlm.runtime_min.backends.torch_cpu.linear_streamed import StreamedMatrix
from thinlm.runtime_min.backends.torch_cpu.memory import SPILLED, Spill, ordinary
from thinlm.runtime_min.devices import open_backend
from thinlm.runtime_min.model import Model, ModelOptions
from thinlm.runtime_min.targets import resident_bytes
from thinlm.schemas.graph import Graph
from tiny import Dims, MemoryWeights, tiny_graph
from tiny_compiled import Recipe, build
from tiny_packed import Packed

DIMS = Dims(hidden=64, ffn=160, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=97, windows=(0, 12))
IDS = np.random.default_rng(0).integers(0, 97, 40)
CASES = [  # every way in which a matrix is held: one per element type, with and without minima, two KV types
    ("bf16/1", None),
    ("f16/1", "f16"),
    ("f32/1", "f16"),
    ("fp8-row/1", None),
    ("int2-sym-g32/1", "bf16"),
    ("int3-aff-g64/1", None),
    ("int4-aff-g32/1", "f16"),
    ("int8-sym-g128/1", None),
]


@pytest.fixture
def spill_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny arrays are spilled too."""
    monkeypatch.setattr(memory, "SPILLED", 1)


def options(**given: object) -> ModelOptions:
    return ModelOptions(**{"context": 48, "vocab": 97, "block": 8, "prefill_chunk": 8, **given})  # type: ignore[arg-type]


def packed(name: str) -> tuple[Graph, Packed]:
    graph = tiny_graph(DIMS)
    encoded = graph.with_encodings({p.name: "f32/1" if len(p.shape) == 1 else name for p in graph.params})
    return encoded, Packed(encoded, MemoryWeights(graph))


def everything(model: Model) -> list[np.ndarray]:
    """Logits whole, in pieces through the cache, and one id at a time."""
    with model.session() as s:
        return [model.forward(IDS), s.append(IDS[:21]), *(s.append(IDS[i : i + 1]) for i in range(21, 27))]


@pytest.mark.usefixtures("spill_everything")
@pytest.mark.parametrize(("name", "kv"), CASES)
def test_spilled_packed_models_have_the_same_bits_and_bytes(tmp_path: Path, name: str, kv: str | None) -> None:
    graph, weights = packed(name)
    found, peaks = [], []
    for backend in (TorchBackend(), TorchBackend(), open_backend("cpu", tmp_path)):  # the first run also fills the kernels' tables
        with StorageMeter() as meter:
            found.append(everything(Model(graph, weights, backend, options(kv_dtype=kv))))
        peaks.append(meter.peak)
    for a, b in zip(found[1], found[2], strict=True):
        np.testing.assert_array_equal(a, b)
    assert peaks[1] == peaks[2]
    assert not list(tmp_path.iterdir())


def test_what_is_large_is_spilled_and_nothing_else(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    small, large = (SPILLED // 2 - 1,), (SPILLED // 64, 32)
    assert not _maps_a_file(spill(small, torch.float16))
    for dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn):
        got = spill((4 * large[0], 32), dtype)
        assert _maps_a_file(got)
        assert (got.shape, got.dtype, got.data_ptr() % 64) == ((4 * large[0], 32), dtype, 0)
        assert got.untyped_storage().nbytes() == ordinary((4 * large[0], 32), dtype).untyped_storage().nbytes()
        assert not got.view(torch.uint8).any()
    assert not list(tmp_path.iterdir())
    assert not [fd for fd in os.listdir("/proc/self/fd") if str(tmp_path) in _link(fd)], "no descriptor is held"


def _link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _file_of(x: torch.Tensor) -> str:
    """The mapped file that its memory belongs to, "" for none."""
    at = x.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= at < high:
            return " ".join(line.split()[5:])
    return ""


def _maps_a_file(x: torch.Tensor) -> bool:
    """Does its memory belong to a mapped and deleted file?"""
    return _file_of(x).endswith("(deleted)")


def test_half_precision_pages_are_not_copied(tmp_path: Path) -> None:
    artifact = open_artifact(build(tmp_path, Recipe(matrices="bf16/1", predicted=1 << 30)))
    rows, cols = artifact.shape("blk.0.ffn.down")
    linear = PackedLinear.from_slabs("bf16/1", [(rows, cols)], [artifact.slabs("blk.0.ffn.down")], Spill(tmp_path))
    assert isinstance(linear._matrix, MappedMatrix)
    assert {Path(_file_of(values)).name for _, _, values in linear._matrix._parts} == {"00000.safetensors"}
    assert linear.nbytes == resident_bytes("bf16/1", rows, cols)
    del artifact
    np.testing.assert_array_equal(linear.rows(torch.arange(4)).numpy(), open_artifact(tmp_path / "tiny.thin").block("blk.0.ffn.down", slice(0, 4)))


def test_a_dead_tensor_gives_its_space_back(tmp_path: Path) -> None:
    """By name there is nothing to see: count the mappings."""
    spill = Spill(tmp_path)

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    before, held = mapped(), [spill((SPILLED,), torch.uint8) for _ in range(5)]
    assert mapped() == before + 5
    view = held[0][:3]
    del held
    assert mapped() == before + 1
    del view
    assert mapped() == before


def test_a_full_disk_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=rf"bytes of spilled memory.*{tmp_path.name}") as refused:
        Spill(tmp_path)((1 << 50,), torch.uint8)  # more than any disk
    assert refused.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert refused.value.filename == str(tmp_path)

    def full(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    graph, weights = packed("int4-sym-g32/1")
    monkeypatch.setattr(memory, "SPILLED", 1)
    with pytest.raises(OSError, match="No space left on device"):
        Model(graph, weights, open_backend("cpu", tmp_path), options())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dims", [DIMS, Dims(tied=False, bias=False)])
def test_a_streamed_source_equals_the_dense_one(tmp_path: Path, dims: Dims, monkeypatch: pytest.MonkeyPatch) -> None:
    from thinlm.runtime_min.backends.torch_cpu import linear_streamed

    graph = tiny_graph(dims)
    ids = IDS % dims.vocab
    dense = Model(graph, MemoryWeights(graph), TorchBackend(), options(vocab=dims.vocab)).forward(ids)
    for scratch in (linear_streamed.SCRATCH, 4 * 7 * dims.hidden):
        monkeypatch.setattr(linear_streamed, "SCRATCH", scratch)
        streamed = Model(graph, MemoryWeights(graph), open_backend("cpu", tmp_path), options(vocab=dims.vocab))
        np.testing.assert_allclose(streamed.forward(ids), dense, atol=1e-5 * np.abs(dense).max())


@pytest.mark.parametrize("name", ["bf16/1", "f16/1", "f32/1", "fp8-row/1"])
def test_streamed_matrices_multiply_by_what_is_decoded(name: str) -> None:
    """Any format, any cut, read-only pages included; several matrices at once."""
    _, weights = packed(name)
    for matrices in (("blk.0.ffn.down",), ("blk.0.attn.q", "blk.0.attn.k"), ("blk.1.ffn.gate", "blk.1.ffn.up")):
        w = np.concatenate([weights.f32(n) for n in matrices]).astype(np.float64)
        x = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (2, 5, w.shape[1])).astype(np.float32))
        y = StreamedMatrix(weights, matrices)(x)
        got = y.numpy() if isinstance(y, torch.Tensor) else np.concatenate([part.numpy() for part in y], -1)
        np.testing.assert_allclose(got, x.numpy() @ w.T, atol=1e-5)
    ids = torch.tensor([3, 96, 3, 0])
    np.testing.assert_array_equal(StreamedMatrix(weights, ["embed"]).rows(ids).numpy(), weights.f32("embed")[ids.numpy()])


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from thinlm.runtime_min.backends.torch_cpu.memory import Spill
held = Spill(Path(sys.argv[1]))((1 << 22,), torch.uint8)
held.fill_(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60, check=False)
    assert done.returncode < 0
    assert not list(tmp_path.iterdir())
