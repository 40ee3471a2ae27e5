"""Nothing is keyed by where an object lies, and zero is a number like any other: token 0, step 0, seed 0, position 0, layer 0, sizes of 0."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thinlm.compiler.runner import Execution
from thinlm.runtime_min.backends.torch_cpu import TorchBackend, ops
from thinlm.runtime_min.lockstep import continue_texts
from thinlm.runtime_min.model import Model, ModelOptions
from thinlm.runtime_min.sample import SamplingParams
from thinlm.schemas.errors import UsageError
from thinlm.schemas.recipe import Recipe, parse_bytes, recipe_from_dict, resolve
from tiny import Dims, MemoryWeights, tiny_graph

ROOT = Path(__file__).parents[2]
OPTIONS = ModelOptions(context=32, vocab=53, block=8, prefill_chunk=8)


def model(options: ModelOptions = OPTIONS, ties: bool = False) -> Model:
    """The tiny model; with `ties` all logits are equal, so that the lowest id wins."""
    graph = tiny_graph(Dims(tied=False))
    weights = MemoryWeights(graph)
    if ties:
        weights.arrays["head"][:] = 0
    return Model(graph, weights, TorchBackend(), options)


REFUSED: dict[str, Callable[[], object]] = {
    "context": lambda: ModelOptions(context=0, vocab=1),
    "vocab": lambda: ModelOptions(context=1, vocab=0),
    "batch": lambda: replace(OPTIONS, batch=0),
    "block": lambda: replace(OPTIONS, block=0),
    "prefill_chunk": lambda: replace(OPTIONS, prefill_chunk=0),
    "context ": lambda: Execution(context=0).applied(OPTIONS),
    "max_new_tokens": lambda: model().generate([0], -1),
    "top_p": lambda: SamplingParams(top_p=0.0),
    "ids: empty": lambda: model().forward([]),
    "ids: int64 of shape": lambda: model().forward(0),  # pyright: ignore[reportArgumentType]
    "ids: int64 of shape ": lambda: model().forward([[0, 1]]),  # pyright: ignore[reportArgumentType]
    "ids: float64": lambda: model().forward([0.0, 1.5]),  # pyright: ignore[reportArgumentType]
    "ids: bool": lambda: model().forward([False, True]),
    "ids: object": lambda: model().forward([2**80]),
    "outside": lambda: model().forward(np.array([2**64 - 1], np.uint64)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_zero_is_refused_where_it_means_nothing(words: str) -> None:
    with pytest.raises(UsageError, match=words.strip()):
        REFUSED[words]()


@pytest.mark.parametrize("field", ["context", "batch", "block", "prefill_chunk", "calibration_tokens"])
def test_a_recipe_has_no_sizes_of_zero(field: str) -> None:
    with pytest.raises(UsageError, match=f"{field}: 0"):
        recipe_from_dict({field: 0})


ZERO: dict[str, tuple[Callable[[], Any], Any]] = {  # what is asked, what it gives
    "no new tokens": (lambda: model().generate([1], 0), []),
    "no new tokens in step": (lambda: continue_texts(model(), [[1], [2]], 0), [[], []]),
    "no new tokens store nothing": (lambda: _length_after_stream(0), 0),
    "id 0 wins a tie": (lambda: model(ties=True).generate([1], 3), [0, 0, 0]),
    "id 0 ends a text": (lambda: model(replace(OPTIONS, eos=(0,)), ties=True).generate([1], 3), [0]),
    "id 0 ends a text in step": (lambda: continue_texts(model(replace(OPTIONS, eos=(0,)), ties=True), [[1], [0]], 3), [[0], [0]]),
    "position 0 is the first": (lambda: model().session().append([0], position=0).shape, (1, 53)),
    "seed 0 is a seed": (lambda: _drawn(0) == _drawn(0) != _drawn(1), True),
    "temperature 0 is greedy": (lambda: model().generate([1], 5, temperature=0.0, seed=3), [int(x) for x in model().generate([1], 5)]),
    "no switch leaves the plan's": (lambda: Execution().applied(OPTIONS), OPTIONS),
    "a budget of nothing is a budget": (lambda: parse_bytes("0"), 0),
    "a budget of nothing stays one": (lambda: resolve(Recipe(budget=0), logical_parameters=9, context=9, candidates=()).budget, 0),
}


def _drawn(seed: int) -> list[int]:
    return model().generate([1], 12, temperature=2.0, seed=seed)


def _length_after_stream(count: int) -> int:
    session = model().session()
    assert list(session.stream([1, 2], count, SamplingParams())) == []
    return session.length


@pytest.mark.parametrize("case", ZERO)
def test_zero_is_a_number(case: str) -> None:
    ask, expected = ZERO[case]
    assert ask() == expected


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_every_layer_counts(layer: int) -> None:
    """Windows, KV slots and weights of the first layer are no less its own than those of the others."""
    dims = Dims(windows=tuple(4 if i == layer else 0 for i in range(3)))
    graph = tiny_graph(dims)
    weights, text = MemoryWeights(graph), np.arange(20) % 53
    got = Model(graph, weights, TorchBackend(), OPTIONS)
    plain = Model(tiny_graph(Dims(windows=(0, 0, 0))), weights, TorchBackend(), OPTIONS)
    expected, traced = plain.trace(text), got.trace(text)
    for i in range(3):
        assert (traced[f"hidden.{i}"] == expected[f"hidden.{i}"]).all() == (i < layer)
    with got.session() as s:
        assert np.abs(s.append(text) - traced["logits"]).max() < 1e-4


def test_rotation_tables_follow_from_numbers_alone() -> None:
    """One backend, one thread: frequencies, positions, shapes and scales that come and go at the same addresses."""
    backend, rng, room = TorchBackend(), np.random.default_rng(0), torch.zeros(2, dtype=torch.float64)
    for n in range(60):
        batch, count = ((1, 2), (2, 1))[n % 2]
        positions = torch.tensor(rng.integers(0, 2, (batch, count)), dtype=torch.int32)
        for _ in range(8):  # as layers of one step
            half, wide = int(rng.integers(1, 3)), int(rng.integers(0, 2)) * 2
            freqs = room[:half].copy_(torch.tensor(rng.integers(0, 2, half)))  # other numbers in the same place
            attrs = {"scale": float(rng.integers(1, 3)), "interleaved": bool(rng.integers(0, 2))}
            x = torch.tensor(rng.normal(size=(batch, count, 1, 2 * half + wide)), dtype=torch.float32)
            torch.testing.assert_close(backend.kernel("rope", attrs)(x, positions, freqs), ops.rope((x, positions, freqs), attrs))


def test_no_key_is_an_address() -> None:
    """`id()` nowhere; `data_ptr` only to see how memory is aligned."""
    for folder in ("artifacts", "certify", "compiler", "passes", "runtime_min", "schemas"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            aligned = {id(n.left) for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)}
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
                name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""
                assert not (isinstance(call.func, ast.Name) and name == "id"), f"{path}:{call.lineno}: id()"
                assert name != "data_ptr" or id(call) in aligned, f"{path}:{call.lineno}: data_ptr()"
