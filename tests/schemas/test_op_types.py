"""The type rules: what each op refuses, with the exact text; every refusal in the source has a row here."""

from __future__ import annotations

from typing import Any

import pytest

from thinlm.schemas import op_types
from thinlm.schemas.verify import infer
from violations import op_graph, said_of, templates, untested

HEADS = ((4, 6), (2, 6), (2, 3), "positions")
ATTENTION = {"scale": 1.0, "cache": 0}

# op, inputs (as graphs.one_op takes them), attributes -> what is said about node %out
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("embedding", ("ids", ("w", 3)), {}, "table must be [V, H], not [3]"),
    ("linear", ((4,), (4,)), {}, "weight must be [out, in], not [B, T, 4]"),
    ("linear", ((4,), ("w", 4, 2)), {}, "weight [out, in] = [4, 2] does not take inputs of last dim 4"),
    ("linear", ((4,), ("w", 2, 4), ("w", 4)), {}, "bias [4] != [out] = [2]"),
    ("matmul", ((4,), (4,)), {}, "matmul of [B, T, 4] and [B, T, 4]"),
    ("matmul", ((4,), ("w", 4)), {}, "matmul of [B, T, 4] and [4]"),
    ("add", ((4,), (3,)), {}, "shapes [B, T, 4] and [B, T, 3] don't broadcast"),
    ("mul", ((4,), ("w", 2, 4)), {}, "shapes [B, T, 4] and [2, 4] don't broadcast"),
    ("norm", ((4,),), {"eps": 0.1, "kind": "max"}, "kind 'max' is none of rms, layer, l2"),
    ("norm", ((4,),), {"eps": -0.1}, "eps -0.1 must be >= 0"),
    ("norm", ((4,),), {"eps": 0.1, "groups": 3}, "last dim 4 is not 3 equal groups"),
    ("norm", ((4,),), {"eps": 0.1, "groups": 0}, "last dim 4 is not 0 equal groups"),
    ("norm", ((4,),), {"eps": 0.1, "groups": -2}, "last dim 4 is not -2 equal groups"),
    ("norm", ((4,), ("w", 3)), {"eps": 0.1}, "weight [3] != last dim [4]"),
    ("norm", ((4,), "", ("w", 1, 4)), {"eps": 0.1}, "weight [1, 4] != last dim [4]"),
    ("softcap", ((4,),), {"cap": 0.0}, "cap 0.0 must be > 0"),
    ("rope", ((4,), "positions", ("c", 1.0)), {}, "x must be [B, T, N, D], not [B, T, 4]"),
    ("rope", (("w", 1, 2, 2, 4), "positions", ("c", 1.0)), {}, "positions [B, T] != [1, 2]"),
    ("rope", ((2, 4), "positions", ("w", 1, 1)), {}, "freqs must be one vector, not [1, 1]"),
    ("rope", ((2, 4), "positions", ("c", 1.0, 1.0, 1.0)), {}, "3 frequencies rotate 6 dims, more than D = 4"),
    ("attention", ((4,), (4,), (4,), "positions"), ATTENTION, "q, k, v must be [B, T, heads, dim], not [B, T, 4], [B, T, 4], [B, T, 4]"),
    (
        "attention",
        ((4, 6), ("w", 1, 5, 2, 6), ("w", 1, 5, 2, 6), "positions"),
        ATTENTION,
        "q [B, T, 4, 6], k [1, 5, 2, 6] and positions [B, T] differ in [B, T]",
    ),
    ("attention", ((4, 5), *HEADS[1:]), ATTENTION, "q dim 5 != k dim 6"),
    ("attention", ((4, 6), (2, 6), (4, 6), "positions"), ATTENTION, "k [B, T, 2, 6] and v [B, T, 4, 6] differ in heads"),
    ("attention", ((3, 6), *HEADS[1:]), ATTENTION, "3 query heads over 2 kv heads"),
    ("attention", (*HEADS, ("w", 2)), ATTENTION, "sinks and slopes are one per query head, not [2]"),
    ("attention", (*HEADS, "", ("w", 4, 1)), ATTENTION, "sinks and slopes are one per query head, not [4, 1]"),
    ("attention", HEADS, {**ATTENTION, "window": -1}, "window and cache must be >= 0"),
    ("attention", HEADS, {**ATTENTION, "window": 1 << 31}, "window 2147483648 reaches beyond any position, which is an i32"),
    ("attention", HEADS, {**ATTENTION, "cache": -1}, "window and cache must be >= 0"),
    ("attention", HEADS, {**ATTENTION, "softcap": -1.0}, "softcap -1.0 must be >= 0"),
    ("reshape", ((4,),), {"shape": ("B", "T", 3)}, "[B, T, 4] can't become [B, T, 3]"),
    ("reshape", ((4,),), {"shape": ("B", 4)}, "[B, T, 4] can't become [B, 4]"),
    ("reshape", ((4,),), {"shape": ("T", "B", 4)}, "shape[0] = 'T' is no size, and not dim 0 of [B, T, 4]"),
    ("reshape", ((4,),), {"shape": ("B", "T", -2, -2)}, "shape[2] = -2 is no size, and not dim 2 of [B, T, 4]"),
    ("reshape", ((4,),), {"shape": ("B", "T", 4, "S")}, "shape[3] = 'S' is no size, and not dim 3 of [B, T, 4]"),
    ("transpose", ((4,),), {"perm": (0, 1)}, "perm [0, 1] does not permute [B, T, 4]"),
    ("slice", ((4,),), {"axis": -2, "stop": 1}, "sliced dim must be a number, not T"),
    ("slice", ((4,),), {"axis": -4, "stop": 1}, "axis -4 must lie in [-3, -1]"),
    ("slice", ((4,),), {"axis": 0, "stop": 1}, "axis 0 must lie in [-3, -1]"),
    ("slice", ((4,),), {"stop": 5}, "slice 0:5:1 of a dim of 4"),
    ("slice", ((4,),), {"start": 2, "stop": 2}, "slice 2:2:1 of a dim of 4"),
    ("slice", ((4,),), {"start": -1, "stop": 2}, "slice -1:2:1 of a dim of 4"),
    ("slice", ((4,),), {"stop": 2, "step": 0}, "slice 0:2:0 of a dim of 4"),
    ("concat", ((4,), (4, 1)), {}, "concat of [B, T, 4] and [B, T, 4, 1] along -1"),
    ("concat", ((4, 2), (3, 2)), {}, "concat of [B, T, 4, 2] and [B, T, 3, 2] along -1"),
    ("softmax_sink", ((4,), ("w", 4)), {}, "sink [4] must give one logit per row of [B, T, 4]"),
    ("softmax_sink", ((4,), (1, 1)), {}, "sink [B, T, 1, 1] must give one logit per row of [B, T, 4]"),
    ("repeat", ((4,),), {"times": 0}, "times 0 must be >= 1"),
    ("repeat", ((4,),), {"axis": -3, "times": 2}, "repeated dim must be a number, not B"),
    ("causal_mask", ("ids3",), {}, "positions must be [B, T], not [B, T, 4]"),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "message"), CASES)
def test_broken_nodes(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any], message: str) -> None:
    types, broken = infer(op_graph(op, inputs, attrs))
    assert broken == (said_of(op, message),)
    assert "out" not in types


def test_every_refusal_is_tested() -> None:
    assert len(set(templates(op_types))) > 30
    assert untested(op_types, (message for _, _, _, message in CASES)) == []
