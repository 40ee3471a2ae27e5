"""The damage matrix: a tiny compiled model is damaged in one place, and exactly the gates that must see it fail; undamaged ones pass.

Weights are damaged in the artifact before packing, execution in a copy of the backend or of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thinlm.certify import certify
from thinlm.runtime_min import load_artifact, open_artifact, options_of
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.model import Model
from thinlm.schemas.certificate import Certificate
from thinlm.schemas.graph import Graph, Node
from thinlm.schemas.recipe import Gate
from tiny_compiled import FILES, Recipe, build, inputs, open_candidate, open_reference, source_weights


def run(path: Path, candidate: Model | None = None, **changes: Any) -> Certificate:
    return certify(candidate or open_candidate(path), open_reference(), inputs(path, **changes))


def failed(certificate: Certificate) -> dict[str, set[str]]:
    """Gate -> metrics of its failed checks."""
    found = {g.gate: {c.metric for c in g.checks if not c.passed} for g in certificate.predicate.gates}
    return {gate: metrics for gate, metrics in found.items() if metrics}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undamaged int8 artifact."""
    return build(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(("matrices", "kv_dtype"), [("f32/1", "f16"), ("int8-sym-g32/1", "f32"), ("int8-sym-g64/1", "bf16"), ("fp8-row/1", "f16")])
def test_undamaged_models_pass(tmp_path: Path, matrices: str, kv_dtype: Any) -> None:
    gate = Gate(logits_cosine_raw=0.98, logits_cosine_centred=0.98, worst_domain=0.98, p01=0.9, top1=0.8, greedy=0.8)
    certificate = run(build(tmp_path, Recipe(matrices=matrices, kv_dtype=kv_dtype)), gate=gate)
    assert (certificate.predicate.verdict, failed(certificate)) == ("pass", {})


def test_a_lossless_artifact_is_its_source(tmp_path: Path) -> None:
    certificate = run(build(tmp_path, Recipe(matrices="f32/1")))
    assert certificate.predicate.verdict == "pass"
    figures = {c.metric: c for g in certificate.predicate.gates for c in g.checks}
    assert 1 - figures["logits_cosine_centred"].value < 1e-9
    assert figures["row_error_ratio"].value == figures["lossless_differences"].value == 0
    assert figures["greedy"].value == figures["top1"].value == 1


def swap_layers(name: str, w: np.ndarray) -> np.ndarray:
    other = {"blk.0": "blk.1", "blk.1": "blk.0"}.get(name[:5])
    return w if other is None else source_weights().arrays[other + name[5:]]


def flip_a_row(name: str, w: np.ndarray) -> np.ndarray:
    if name != "blk.1.attn.v":
        return w
    w = w.copy()
    w[5] *= -1
    return w


def zero_a_scale(name: str, parts: dict[str, np.ndarray]) -> None:
    if name == "blk.0.ffn.up":
        parts["scale"][7, 1] = 0


def transpose_groups(name: str, parts: dict[str, np.ndarray]) -> None:
    """Scales of one row change places."""
    if name == "blk.1.attn.o":
        parts["scale"][3] = parts["scale"][3] * np.array([3, 1 / 3], np.float16)


def change_a_norm(name: str, w: np.ndarray) -> np.ndarray:
    return np.nextafter(w, np.float32(9)) if name == "final_norm" else w


def rewrite(op: str, **attrs: Any) -> Callable[[Graph], Graph]:
    """A graph whose first `op` has other attributes."""

    def change(graph: Graph) -> Graph:
        at = next(i for i, node in enumerate(graph.nodes) if node.op == op and all(k in dict(node.attrs) for k in attrs))
        node = graph.nodes[at]
        changed = Node(node.op, node.inputs, node.output, tuple(sorted({**dict(node.attrs), **attrs}.items())))
        return Graph(graph.name, graph.inputs, graph.consts, graph.params, (*graph.nodes[:at], changed, *graph.nodes[at + 1 :]), graph.outputs)

    return change


STORED = {
    "layers swapped": (Recipe(edit=swap_layers), {"row_error_ratio", "rows_reversed", "lossless_differences"}),
    "row negated": (Recipe(edit=flip_a_row), {"row_error_ratio", "rows_reversed"}),
    "scale zeroed": (Recipe(scales=zero_a_scale), {"row_error_ratio"}),
    "scales exchanged": (Recipe(scales=transpose_groups), {"row_error_ratio"}),
    "norm moved by one bit": (Recipe(edit=change_a_norm), {"lossless_differences"}),
    "wrong tokenizer": (Recipe(files=FILES | {"tokenizer.json": b"other"}), {"file_differences"}),
    "template left out": (Recipe(files={"tokenizer.json": FILES["tokenizer.json"]}), {"file_differences"}),
    "window off by one": (Recipe(graph=rewrite("attention", window=11)), {"graph_differences"}),
    "eps changed": (Recipe(graph=rewrite("norm", eps=1e-6)), {"graph_differences"}),
}


@pytest.mark.parametrize("damage", STORED)
def test_structure_sees_damage_to_what_is_stored(tmp_path: Path, damage: str) -> None:
    """The backend runs the damaged model faithfully, so CONFORMANCE has nothing to say but that this ledger is a guess."""
    recipe, metrics = STORED[damage]
    certificate = run(build(tmp_path, replace(recipe, predicted=1 << 20)), texts=())
    assert failed(certificate)["STRUCTURE"] == metrics
    assert failed(certificate)["CONFORMANCE"] == {"memory_prediction"}
    assert certificate.predicate.verdict == "fail"


def test_only_structure_sees_a_wrong_tokenizer(tmp_path: Path) -> None:
    assert set(failed(run(build(tmp_path, STORED["wrong tokenizer"][0])))) == {"STRUCTURE"}


def test_only_fidelity_sees_rounding_that_is_too_coarse(tmp_path: Path) -> None:
    found = failed(run(build(tmp_path, Recipe(matrices="int3-sym-g32/1"))))
    assert set(found) == {"FIDELITY"}
    assert {"logits_cosine_raw", "logits_cosine_centred", "kl"} <= found["FIDELITY"]


class WindowOffByOne(TorchBackend):
    def kernel(self, op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
        return super().kernel(op, attrs | {"window": attrs["window"] - 1} if attrs.get("window") else attrs)


class _Store:
    """A KV store whose places are changed on the way; whole-text runs, which store everything at once, are left alone."""

    def __init__(self, store: Any, place: Callable[[np.ndarray], np.ndarray]) -> None:
        self._store, self._place = store, place

    def write(self, index: Any, x: torch.Tensor) -> None:
        self._store.write(self._index(index), x)

    def read(self, index: Any) -> torch.Tensor:
        return self._store.read(self._index(index))

    def _index(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self._place(index)
        return index if index == slice(None) else self._place(np.arange(index.start, index.stop))


class StaleBlockStart(TorchBackend):
    """The first position of each block is never written or read: its neighbour's is."""

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Any:
        return _Store(super().alloc(shape, dtype), lambda places: np.where(places % 8 == 0, places + 1, places))


class SharedStore(TorchBackend):
    """Both sequences of a batch of two live in the first one's blocks."""

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Any:
        return _Store(super().alloc(shape, dtype), lambda places: places % (shape[0] // 2))


class NotANumberWhenDecoding(TorchBackend):
    def read(self, x: torch.Tensor) -> np.ndarray:
        out = super().read(x)
        return np.full_like(out, np.nan) if out.shape[1] == 1 else out


class Half(TorchBackend):
    """One product accumulates in bfloat16."""

    def kernel(self, op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
        fn = super().kernel(op, attrs)
        return (lambda *args: fn(*args).bfloat16().float()) if op == "mul" else fn


class Leaky(TorchBackend):
    """Keeps what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def read(self, x: torch.Tensor) -> np.ndarray:
        self.kept.append(x.repeat(20, 1, 1))
        return super().read(x)


# Damage to a copy of the backend -> the metrics of CONFORMANCE that must fail, and whether no other gate may.
EXECUTED: dict[str, tuple[type[TorchBackend], set[str], bool]] = {
    # One query at a time needs no mask, so decoding is right and differs from prefill.
    "window off by one": (WindowOffByOne, {"backend_cosine", "backend_deviation", "cache_cosine", "cache_deviation"}, False),
    "stale block start": (StaleBlockStart, {"cache_cosine", "cache_deviation"}, True),
    "NaN when decoding": (NotANumberWhenDecoding, {"backend_cosine", "backend_deviation", "cache_cosine", "cache_deviation", "nonfinite"}, True),
    "half precision in one product": (Half, {"backend_deviation"}, True),
}


@pytest.mark.parametrize("damage", EXECUTED)
def test_conformance_sees_damage_to_execution(whole: Path, damage: str) -> None:
    backend, metrics, only = EXECUTED[damage]
    found = failed(run(whole, open_candidate(whole, backend)))
    # A value rounded alike in both ways moves the cached run only where a last bit tips the rounding, so that figure may or may not fail.
    assert metrics <= found["CONFORMANCE"] <= metrics | {"cache_deviation"}
    assert "STRUCTURE" not in found
    assert not only or set(found) == {"CONFORMANCE"}


class LastPositionOnly(Model):
    """Right where generation looks, wrong everywhere else."""

    def forward(self, ids: Any) -> np.ndarray:
        logits = super().forward(ids)
        logits[:-1] = np.roll(logits[:-1], 1, axis=1)
        return logits

    def forward_pieces(self, ids: Any) -> Iterator[np.ndarray]:
        yield self.forward(ids)


def test_conformance_sees_a_model_that_is_right_at_the_last_position_only(whole: Path) -> None:
    artifact = open_artifact(whole)
    right = load_artifact(artifact)
    candidate = LastPositionOnly(right.graph, artifact, TorchBackend(), options_of(artifact))
    assert np.array_equal(candidate.forward([1, 2, 3])[-1], right.forward([1, 2, 3])[-1])
    assert {"backend_cosine", "cache_cosine"} <= failed(run(whole, candidate))["CONFORMANCE"]


def test_conformance_sees_sequences_of_a_batch_mixed_up(tmp_path: Path) -> None:
    path = build(tmp_path, Recipe(batch=2))
    assert run(path).predicate.verdict == "pass"
    certificate = run(path, open_candidate(path, SharedStore))
    assert set(failed(certificate)) == {"CONFORMANCE"}
    assert [c.name.split("-")[0] for g in certificate.predicate.gates for c in g.checks if not c.passed] == ["cache_cosine[worst,chunks=in"]


def test_conformance_sees_memory_that_the_ledger_lacks(whole: Path, tmp_path: Path) -> None:
    found = failed(run(whole, load=lambda: open_candidate(whole, Leaky)))
    assert found == {"CONFORMANCE": {"memory_prediction"}}
    measured = open_artifact(whole).manifest.ledger.total_device_bytes
    tight = build(tmp_path, Recipe(predicted=measured, budget=measured))
    found = failed(run(tight, load=lambda: open_candidate(tight, Leaky)))
    assert found == {"CONFORMANCE": {"memory_prediction", "memory_peak"}}


def test_non_finite_logits_of_text_fail_both_gates(whole: Path) -> None:
    class NotANumber(Model):
        def forward(self, ids: Any) -> np.ndarray:
            logits = super().forward(ids)
            logits[-1, 3] = np.inf
            return logits

        def forward_pieces(self, ids: Any) -> Iterator[np.ndarray]:
            yield self.forward(ids)

    artifact = open_artifact(whole)
    certificate = run(whole, NotANumber(load_artifact(artifact).graph, artifact, TorchBackend(), options_of(artifact)))
    found = failed(certificate)
    assert set(found) == {"CONFORMANCE", "FIDELITY"}
    nonfinite = next(c for g in certificate.predicate.gates for c in g.checks if c.metric == "nonfinite")
    assert nonfinite.value == 3
    assert "artifact: logit inf" in nonfinite.detail
