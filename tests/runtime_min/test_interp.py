"""The reference functions against oracles that share nothing with them: torch's own functions, complex numbers for rope, and plain loops over
scalars for attention; then padding, empty cache slots, extreme values, and evaluate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphs import VOCAB, one_op, random_graph, random_ids, weights_of
from op_cases import CASES, POSITIONS, Case, uncovered
from thinlm.runtime_min.interp import REFERENCE, evaluate, run_op
from thinlm.schemas.errors import InputError
from thinlm.schemas.ops import OPS, REQUIRED

# the oracles


def torch_norm(args: list[Any], a: dict[str, Any]) -> Tensor:
    x, w, b = (*args, None, None)[:3]
    parts = x.unflatten(-1, (a["groups"], -1))
    size = parts.shape[-1:]
    if a["kind"] == "rms":
        y = F.rms_norm(parts, size, eps=a["eps"])
    elif a["kind"] == "layer":
        y = F.layer_norm(parts, size, eps=a["eps"])
    else:
        y = parts / torch.hypot(torch.linalg.vector_norm(parts, dim=-1, keepdim=True), torch.tensor(a["eps"]).double().sqrt())
    y = y.flatten(-2)
    y = y if w is None else y * (a["offset"] + w)
    return y if b is None else y + b


def complex_rope(args: list[Any], a: dict[str, Any]) -> Tensor:
    """A pair is a complex number, turned by multiplying with scale e^(i angle)."""
    x, positions, freqs = args
    n = len(freqs)
    turn = a["scale"] * torch.exp(1j * (positions.double()[..., None] * freqs))[:, :, None]
    turned, rest = x[..., : 2 * n], x[..., 2 * n :]
    pairs = turned.unflatten(-1, (n, 2)) if a["interleaved"] else turned.unflatten(-1, (2, n)).transpose(-1, -2)
    y = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    y = y if a["interleaved"] else y.transpose(-1, -2)
    return torch.cat((y.flatten(-2), rest), -1)


def loop_attention(args: list[Any], a: dict[str, Any]) -> Tensor:
    """One query, one head, one key at a time."""
    q, k, v, positions, sinks, slopes = (None if x is None else x.tolist() for x in (*args, None, None)[:6])
    batch, tokens, n, m = len(q), len(q[0]), len(q[0][0]), len(k[0][0])
    out = torch.zeros(batch, tokens, n, len(v[0][0][0]), dtype=torch.float64)
    for b, i, h in np.ndindex(batch, tokens, n):
        kv, at = h * m // n, positions[b][i]
        seen = [j for j in range(tokens) if 0 <= positions[b][j] <= at and (not a["window"] or at - positions[b][j] < a["window"])]
        scores = []
        for j in seen:
            s = a["scale"] * sum(x * y for x, y in zip(q[b][i][h], k[b][j][kv], strict=True))
            s = a["softcap"] * math.tanh(s / a["softcap"]) if a["softcap"] else s
            scores.append(s - (slopes[h] * (at - positions[b][j]) if slopes else 0))
        total = sum(map(math.exp, scores)) + (math.exp(sinks[h]) if sinks else 0)
        for s, j in zip(scores, seen, strict=True):
            out[b, i, h] += math.exp(s) / total * torch.tensor(v[b][j][kv], dtype=torch.float64)
    return out


def loop_mask(args: list[Any], a: dict[str, Any]) -> Tensor:
    p = args[0].tolist()
    t = len(p[0])
    out = torch.full((len(p), 1, t, t), -math.inf, dtype=torch.float64)
    for b, i, j in np.ndindex(len(p), t, t):
        if p[b][j] >= 0 and 0 <= p[b][i] - p[b][j] < (a["window"] or math.inf):
            out[b, 0, i, j] = 0
    return out


def with_sink(args: list[Any], a: dict[str, Any]) -> Tensor:
    x, sink = args
    return torch.cat((x, sink.expand(*x.shape[:-1], 1)), -1).softmax(-1)[..., :-1]


def plain(fn: Callable[..., Tensor]) -> Callable[[list[Any], dict[str, Any]], Tensor]:
    return lambda args, a: fn(*args)


ORACLES: dict[str, Callable[[list[Any], dict[str, Any]], Tensor]] = {
    "embedding": plain(lambda ids, table: F.embedding(ids.long(), table)),
    **{op: plain(getattr(F, op)) for op in ("linear", "silu", "gelu", "relu", "sigmoid", "tanh", "softplus")},
    **{op: plain(getattr(torch, op)) for op in ("matmul", "add", "sub", "mul", "neg", "exp", "square", "rsqrt", "cos", "sin")},
    "gelu_tanh": plain(lambda x: F.gelu(x, approximate="tanh")),
    "scale": lambda args, a: args[0] * a["by"],
    "shift": lambda args, a: args[0] + a["by"],
    "cast": plain(Tensor.double),
    "softmax": plain(lambda x: x.softmax(-1)),
    "softmax_sink": with_sink,
    "mean": lambda args, a: args[0].mean(a["axis"], keepdim=True),
    "sum": lambda args, a: args[0].sum(a["axis"], keepdim=True),
    "reshape": lambda args, a: args[0].unflatten(-1, a["shape"][2:]),
    "transpose": lambda args, a: args[0].permute(a["perm"]),
    "slice": lambda args, a: args[0].index_select(a["axis"], torch.arange(a["start"], a["stop"], a["step"])),
    "concat": lambda args, a: torch.cat(args, a["axis"]),
    "repeat": lambda args, a: args[0].repeat_interleave(a["times"], a["axis"]),
    "causal_mask": loop_mask,
    "distance": plain(lambda p: (p[:, None, None, :] - p[:, None, :, None]).double()),
    "softcap": lambda args, a: a["cap"] * torch.tanh(args[0] / a["cap"]),
    "norm": torch_norm,
    "rope": complex_rope,
    "attention": loop_attention,
}


def complete(c: Case) -> dict[str, Any]:
    return {k: a.default for k, a in OPS[c.op].attrs.items() if a.default is not REQUIRED} | c.attrs


def test_every_op_has_a_reference_an_oracle_and_cases_for_all_it_takes() -> None:
    assert REFERENCE.keys() == OPS.keys() == ORACLES.keys()
    assert uncovered() == []


@pytest.mark.parametrize("c", CASES, ids=str)
def test_reference_equals_oracle(c: Case) -> None:
    args = c.args()
    got = run_op(c.op, args, c.attrs)
    expected = ORACLES[c.op]([None if x is None else torch.from_numpy(x) for x in args], complete(c)).numpy()
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("c", [c for c in CASES if c.op not in ("cast", "distance", "causal_mask")], ids=str)
def test_float32_in_float32_out(c: Case) -> None:
    args = c.args()
    single = [x.astype(np.float32) if x is not None and x.dtype == np.float64 else x for x in args]
    got = run_op(c.op, single, c.attrs)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, run_op(c.op, args, c.attrs), rtol=2e-5, atol=2e-5)


def test_angles_are_float64_at_any_position() -> None:
    x, freqs = np.ones((1, 1, 1, 2), np.float32), np.array([1.0])
    at = 2**24 + 1  # no float32
    got = run_op("rope", [x, np.array([[at]], np.int32), freqs], {})
    np.testing.assert_allclose(got.ravel(), [math.cos(at) - math.sin(at), math.cos(at) + math.sin(at)], atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_sdpa(causal: bool) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 17, h, 8)) for h in (6, 3, 3))
    positions = np.broadcast_to(np.arange(17), (2, 17)) if causal else np.zeros((2, 17), np.int32)
    got = run_op("attention", [q, k, v, positions], {"scale": 8**-0.5, "cache": 0})
    heads = [torch.from_numpy(a).transpose(1, 2) for a in (q, k, v)]
    expected = F.scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=True).transpose(1, 2).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-12)


ATTENTION = [c for c in CASES if c.op == "attention"]


@pytest.mark.parametrize("c", ATTENTION, ids=str)
def test_queries_that_see_nothing_give_zeros(c: Case) -> None:
    got = run_op("attention", c.args(), c.attrs)
    assert (got[1, :2] == 0).all()
    assert (np.abs(got[POSITIONS >= 0]).max((-1, -2)) > 0).all()


@pytest.mark.parametrize("c", ATTENTION, ids=str)
def test_cached_keys_in_any_order_with_empty_slots(c: Case) -> None:
    """The last token of each row over a shuffled cache with holes gives what the whole row gave."""
    q, k, v, positions, *extra = c.args()
    assert q is not None
    assert k is not None
    assert v is not None
    whole = run_op("attention", [q, k, v, positions, *extra], c.attrs)
    order = np.array([3, 0, 4, 2, 1])
    holes = [np.concatenate([a[:, order], np.full_like(a[:, :2], 99.0)], 1) for a in (k, v)]
    keys = np.concatenate([POSITIONS[:, order], np.array([[-1, -7]] * 2)], 1)
    one = run_op("attention", [q[:, 4:], *holes, POSITIONS[:, 4:], *extra], c.attrs, key_positions=keys)
    np.testing.assert_allclose(one, whole[:, 4:], atol=1e-13)


@pytest.mark.parametrize("op", ["sigmoid", "silu", "softplus", "softmax", "gelu", "gelu_tanh", "tanh"])
def test_extreme_values_stay_finite(op: str) -> None:
    x = np.array([[-1e4, -800.0, 0.0, 800.0, 1e4]])
    got = run_op(op, [x], {})
    expected = {"sigmoid": [0, 0, 0.5, 1, 1], "softmax": [0, 0, 0, 0, 1], "tanh": [-1, -1, 0, 1, 1], "softplus": [0, 0, math.log(2), 800, 1e4]}
    np.testing.assert_allclose(got[0], expected.get(op, [0, 0, 0, 800, 1e4]), atol=1e-300, rtol=1e-15)


def test_masked_softmax_rows() -> None:
    x = np.full((2, 3), -np.inf)
    assert (run_op("softmax", [x], {}) == 0).all()
    assert (run_op("softmax_sink", [x, np.array([[-1e4], [1e4]])], {}) == 0).all()
    np.testing.assert_array_equal(run_op("softmax", [np.array([[-np.inf, 1e4]])], {}), [[0, 1]])


@pytest.mark.parametrize("bad", [-1, VOCAB, 10**6])
def test_ids_outside_the_table_are_refused(bad: int) -> None:
    graph = one_op("neg", [(4,)], {})
    with pytest.raises(InputError, match=rf"ids must lie in \[0, {VOCAB}\), got"):
        evaluate(graph, weights_of(graph), np.array([[1, bad]]))


# evaluate


def test_evaluate_random_graphs() -> None:
    """Outputs have the inferred shapes and dtype, keep adds values, and what is published survives its last use."""
    for seed in range(20):
        graph = random_graph(seed)
        weights, ids = weights_of(graph), random_ids(2, 3)
        keep = [n.output for n in graph.nodes]
        with np.errstate(all="ignore"):
            everything = evaluate(graph, weights, ids, np.float32, keep=keep)
            outputs = evaluate(graph, weights, ids, np.float32)
        assert list(outputs) == [name for name, _ in graph.outputs]
        assert set(everything) == {*outputs, *keep}
        for name, value in graph.outputs:
            assert outputs[name].dtype == np.float32
            np.testing.assert_array_equal(outputs[name], everything[value])


def test_padded_rows_equal_rows_alone() -> None:
    graph = one_op("attention", [(4, 6), (2, 6), (2, 6), "positions"], {"scale": 0.4, "cache": 0, "window": 3})
    weights = weights_of(graph)
    ids = random_ids(1, 6)
    alone = evaluate(graph, weights, ids)["out"]
    padded_ids = np.concatenate([np.zeros((1, 3), int), ids], 1)
    padded = evaluate(graph, weights, padded_ids, positions=np.array([[-1] * 3 + [*range(6)]]))["out"]
    np.testing.assert_allclose(padded[:, 3:], alone, atol=1e-14)


def test_default_positions_count_from_zero() -> None:
    graph = one_op("rope", [(2, 6), "positions", ("c", 1.0, 0.25)], {})
    weights, ids = weights_of(graph), random_ids(2, 5)
    expected = evaluate(graph, weights, ids, positions=np.array([[0, 1, 2, 3, 4]] * 2))
    for name, value in evaluate(graph, weights, ids).items():
        np.testing.assert_array_equal(value, expected[name])
