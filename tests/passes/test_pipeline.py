"""The pipeline checks order, gates, the verifier and facts after every pass; records; and its printed form parses back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given, strategies as st

from thinlm.passes import PASSES, encode_pipeline, import_pipeline, parse_pipeline, print_pipeline, run_pipeline
from thinlm.passes.base import Numerics
from thinlm.passes.facts import FACTS
from thinlm.schemas.errors import PassError, UsageError
from thinlm.schemas.graph import Graph
from thinlm.schemas.text import print_graph
from tiny import Dims, tiny_graph


@dataclass(frozen=True, slots=True)
class Vandal:
    """Breaks the graph in a way that its option names."""

    how: str = ""

    name: ClassVar[str] = "vandalise"
    requires: ClassVar[frozenset[str]] = frozenset({"canonical"})
    ensures: ClassVar[frozenset[str]] = frozenset()
    drops: ClassVar[frozenset[str]] = frozenset()
    numerics: ClassVar[Numerics] = "exact"

    def run(self, graph: Graph) -> Graph:
        match self.how:
            case "unverified":
                return replace(graph, nodes=graph.nodes[:-1])
            case "renamed":
                first, *rest = graph.nodes
                rename = {first.output: "other"}
                moved = tuple(replace(n, inputs=tuple(rename.get(i, i) for i in n.inputs)) for n in rest)
                outputs = tuple((name, rename.get(value, value)) for name, value in graph.outputs)
                return replace(graph, nodes=(replace(first, output="other"), *moved), outputs=outputs)
        return graph


GRAPH = tiny_graph(Dims())
ENCODINGS = {p.name: "f32/1" for p in GRAPH.params}


def test_records_and_facts() -> None:
    graph, records = run_pipeline(GRAPH, (*import_pipeline(), *encode_pipeline(ENCODINGS)), gated=True)
    assert graph.facts == ("canonical", "encoded")
    assert [r.name for r in records] == ["canonicalise", "relayout", "assign-encodings"]
    assert records[-1].digest == hashlib.sha256(print_graph(graph).encode()).hexdigest()
    assert records[0].nodes_before == len(GRAPH.nodes)
    assert records[1].options == {}
    assert records[2].numerics == "bounded"
    assert {p.encoding for p in graph.params} == {"f32/1"}


def test_order_is_checked_before_anything_runs() -> None:
    with pytest.raises(PassError, match=r"assign-encodings \(step 0\) requires \['canonical'\]"):
        run_pipeline(GRAPH, encode_pipeline(ENCODINGS), gated=True)
    with pytest.raises(PassError, match=r"assign-encodings \(step 2\) is bounded and may only run in a stage that ends with a gate"):
        run_pipeline(GRAPH, (*import_pipeline(), *encode_pipeline(ENCODINGS)))


@pytest.mark.parametrize(("how", "message"), [("unverified", "is not defined"), ("renamed", "canonical: simplifying would still change it")])
def test_a_pass_that_breaks_the_graph_is_named(how: str, message: str) -> None:
    with pytest.raises(PassError, match=r"after vandalise \(step 1; before it: \['canonicalise'\]\)") as caught:
        run_pipeline(GRAPH, (import_pipeline()[0], Vandal(how)))
    assert message in str(caught.value)


BAD_ENCODINGS = {
    "no format": ({"embed": "int5/1"}, "'int5/1' is not a number format"),
    "a norm that loses": ({"final_norm": "bf16/1"}, "role norm must be lossless"),
    "a split group": ({"blk.0.attn.q": "bf16/1"}, "must share a format"),
}


@pytest.mark.parametrize(("change", "message"), BAD_ENCODINGS.values(), ids=list(BAD_ENCODINGS))
def test_encodings_that_break_a_fact(change: dict[str, str], message: str) -> None:
    with pytest.raises(PassError, match="after assign-encodings") as caught:
        run_pipeline(GRAPH, (*import_pipeline(), *encode_pipeline(ENCODINGS | change)), gated=True)
    assert message in str(caught.value)


def test_encodings_must_cover_the_params_exactly() -> None:
    for change in ({"nobody": "f32/1"}, None):
        given_encodings = ENCODINGS | change if change else {k: v for k, v in ENCODINGS.items() if k != "embed"}
        with pytest.raises(PassError, match=r"embed|nobody"):
            run_pipeline(GRAPH, (*import_pipeline(), *encode_pipeline(given_encodings)), gated=True)


def test_every_pass_states_its_contract() -> None:
    for name, kind in PASSES.items():
        assert (kind.name, kind.__doc__ is not None, kind.__dataclass_params__.frozen) == (name, True, True)  # pyright: ignore[reportAttributeAccessIssue]
        assert kind.requires | kind.ensures | kind.drops <= set(FACTS)
        assert kind.numerics in ("exact", "bounded")


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
ORDERS = st.just("identity") | st.lists(st.tuples(NAMES, st.permutations(range(4)).map(tuple)), max_size=3).map(tuple)
PIPELINES = st.lists(
    st.builds(PASSES["canonicalise"])
    | st.builds(PASSES["relayout"], ORDERS)
    | st.builds(PASSES["assign-encodings"], st.lists(st.tuples(NAMES, NAMES), max_size=3).map(tuple)),
    min_size=1,
    max_size=4,
).map(tuple)


@given(PIPELINES)
def test_the_printed_form_parses_back(passes: tuple) -> None:
    assert parse_pipeline(print_pipeline(passes)) == passes


def test_the_printed_form_is_as_documented() -> None:
    assert print_pipeline(import_pipeline()) == "canonicalise,relayout"
    assert print_pipeline(import_pipeline((("blk.0.ffn", (1, 0)),))) == 'canonicalise,relayout{orders=[["blk.0.ffn",[1,0]]]}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fold",
        "canonicalise,",
        ",canonicalise",
        "canonicalise relayout",
        "relayout{",
        "relayout{orders}",
        "relayout{orders=}",
        'relayout{orders="reversed"}',
        'relayout{orders="identity" orders="identity"}',
        "relayout{order=1}",
        "canonicalise{deep=true}",
        "assign-encodings",
        "canonicalise{}x",
    ],
)
def test_text_that_is_no_pipeline(text: str) -> None:
    with pytest.raises(UsageError, match="pipeline"):
        parse_pipeline(text)
