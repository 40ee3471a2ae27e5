"""The page examples/add_a_pass.md tells the truth: its pass runs, its test holds."""

from __future__ import annotations

import re
import sys
import types

import numpy as np
import pytest

from graphs import random_graph, random_ids, weights_of
from source import ROOT
from thinlm.passes import import_pipeline, print_pipeline, run_pipeline
from thinlm.passes.base import Pass
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.graph import Graph, Param


@pytest.fixture(scope="module")
def example() -> Pass:
    """The class on the page, as a module of the package would define it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "examples/add_a_pass.md").read_text(encoding="utf-8"), re.DOTALL)
    module = types.ModuleType("thinlm.passes.fold_doubles")
    module.__package__ = "thinlm.passes"
    sys.modules[module.__name__] = module
    exec(blocks[0], module.__dict__)
    yield module.FoldDoubles()
    del sys.modules[module.__name__]


def doubling() -> Graph:
    b = GraphBuilder("double")
    x = b.node("embedding", "ids", b.param(Param("embed", (11, 4), "f32", "embed")))
    b.output("logits", b.node("linear", b.node("add", x, x), "embed"))
    return b.finish()


@pytest.mark.parametrize("graph", [doubling(), *map(random_graph, range(20))], ids=lambda g: g.name)
def test_the_example_is_exact(example: Pass, graph: Graph) -> None:
    graph, _ = run_pipeline(graph, import_pipeline())
    folded, _ = run_pipeline(graph, (example,))
    weights, ids = weights_of(graph), random_ids(2, 5)
    with np.errstate(all="ignore"):
        before, after = (evaluate(g, weights, ids) for g in (graph, folded))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    if graph.name == "double":
        assert [n.op for n in folded.nodes] == ["embedding", "scale", "linear"]


def test_it_prints_as_documented(example: Pass) -> None:
    assert print_pipeline((example,)) == "fold-doubles"
