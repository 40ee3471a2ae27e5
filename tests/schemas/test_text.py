"""Text and JSON forms: both give the same graph back, the text of one graph is golden, and nothing that is not a canonical form is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from graphs import random_graph
from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.canonical import canonical_bytes, parse_canonical
from thinlm.schemas.errors import InputError
from thinlm.schemas.graph import Graph, Param
from thinlm.schemas.text import from_json, parse, print_graph, to_json
from thinlm.schemas.verify import checked, verify

GOLDEN = """\
graph small [checked, folded.2]
input %ids : i32[B, T]
input %positions : i32[B, T]
const $freqs = [1.0, 0.01]
param @embed : bf16[11, 8] role=embed encoding=int4-sym-g64/1
param @norm : f32[8] role=norm layer=0
param @sinks : f32[2] role=bias layer=0
%h = embedding(%ids, @embed) : f32[B, T, 8]
%n = norm(%h, @norm) {eps=1e-05, kind="layer"} : f32[B, T, 8]
%v2 = reshape(%n) {shape=["B", "T", 2, 4]} : f32[B, T, 2, 4]
%q = rope(%v2, %positions, $freqs) {interleaved=true, scale=0.5} : f32[B, T, 2, 4]
%a = attention(%q, %q, %q, %positions, _, @sinks) {cache=0, scale=0.5, window=3} : f32[B, T, 2, 4]
%v5 = reshape(%a) {shape=["B", "T", 8]} : f32[B, T, 8]
%v6 = slice(%v5) {axis=-1, stop=8} : f32[B, T, 8]
%v7 = linear(%v6, @embed) : f32[B, T, 11]
output hidden.0 = %h
output table = @embed
output logits = %v7
""".replace("{axis=-1, stop=8}", "{stop=8}")


def small() -> Graph:
    b = GraphBuilder("small")
    embed = b.param(Param("embed", (11, 8), "bf16", "embed", None, "int4-sym-g64/1"))
    b.const("freqs", (1.0, 0.01))
    h = b.output("hidden.0", b.node("embedding", "ids", embed, name="h"))
    n = b.node("norm", h, b.param(Param("norm", (8,), "f32", "norm", 0)), name="n", eps=1e-5, kind="layer")
    x = b.node("reshape", n, shape=("B", "T", 2, 4))
    q = b.node("rope", x, "positions", "freqs", name="q", scale=0.5, interleaved=True)
    sinks = b.param(Param("sinks", (2,), "f32", "bias", 0))
    a = b.node("attention", q, q, q, "positions", "", sinks, name="a", scale=0.5, cache=0, window=3, softcap=0.0)
    y = b.node("slice", b.node("reshape", a, shape=("B", "T", 8)), start=0, stop=8)
    b.output("table", embed)
    b.output("logits", b.node("linear", y, embed))
    graph = b.finish()
    return checked(Graph(graph.name, graph.inputs, graph.consts, graph.params, graph.nodes, graph.outputs, ("checked", "folded.2")))


def test_golden() -> None:
    assert print_graph(small()) == GOLDEN
    assert parse(GOLDEN) == small()


@given(st.integers(0, 10**6))
@example(0)
def test_round_trips(seed: int) -> None:
    graph = random_graph(seed)
    text = print_graph(graph)
    assert parse(text) == graph
    assert print_graph(parse(text)) == text
    data = to_json(graph)
    assert from_json(data) == graph
    assert from_json(json.loads(json.dumps(data))) == graph
    assert from_json(parse_canonical(canonical_bytes(data), where="graph.json")) == graph


def edit(old: str, new: str) -> str:
    assert GOLDEN.count(old) == 1, old
    return GOLDEN.replace(old, new)


DEEP = "[" * 100_000
TEXTS: dict[str, tuple[str, str]] = {
    "empty": ("", "must start with 'graph NAME [FACTS]' and end with a newline"),
    "no head": (GOLDEN.split("\n", 1)[1], "must start with"),
    "cut": (GOLDEN[:-1], "must start with 'graph NAME [FACTS]' and end with a newline"),
    "cut line": (GOLDEN[:-3] + "\n", "line 18: not a definition: 'output logits = %'"),
    "blank line": (edit("output table", "\noutput table"), "line 17: not a definition: ''"),
    "trailing line": (GOLDEN + "\n", "line 19: not a definition: ''"),
    "two heads": (GOLDEN + GOLDEN, "line 19: not a definition: 'graph small"),
    "carriage return": (edit("\noutput table", "\r\noutput table"), "line 16: not a definition"),
    "indented": (edit("output table", " output table"), "line 17: not a definition: ' output table = @embed'"),
    "comment": (edit("output table", "# output table"), "line 17: not a definition"),
    "wrong type": (
        edit(
            "%q = rope(%v2, %positions, $freqs) {interleaved=true, scale=0.5} : f32[B, T, 2, 4]", "%q = rope(%v2, %positions, $freqs) : f32[B, T, 8]"
        ),
        "line 11: reads '%q = rope(%v2, %positions, $freqs) : f32[B, T, 8]', "
        "its canonical form is '%q = rope(%v2, %positions, $freqs) : f32[B, T, 2, 4]'",
    ),
    "wrong sigil": (edit("rope(%v2, %pos", "rope(@v2, $pos"), "line 11: reads '%q = rope(@v2, $positions"),
    "output's sigil": (edit("table = @embed", "table = $embed"), "line 17: reads 'output table = $embed'"),
    "no sigil": (edit("table = @embed", "table = embed"), "line 17: not a definition"),
    "order": (edit("const $freqs = [1.0, 0.01]\n", "") + "const $freqs = [1.0, 0.01]\n", "line 4: reads 'param @embed"),
    "spaces": (edit("norm(%h, @norm)", "norm(%h,@norm)"), "line 9"),
    "number form": (edit("eps=1e-05", "eps=0.00001"), "line 9"),
    "plain int for float": (edit("[1.0, 0.01]", "[1, 0.01]"), "line 4: reads 'const $freqs = [1, 0.01]'"),
    "NaN": (edit("[1.0, 0.01]", "[NaN, 0.01]"), "line 4: nan is not finite"),
    "infinity": (edit("[1.0, 0.01]", "[1.0, 1e999]"), "line 4: inf is not finite"),
    "NaN attribute": (edit("eps=1e-05", "eps=NaN"), "line 9: nan is not finite"),
    "bool in a list": (edit('["B", "T", 8]', '["B", "T", true]'), "line 13: ['B', 'T', True] is no attribute value"),
    "word in const": (edit("[1.0, 0.01]", "[1.0, one]"), "line 4: could not convert string to float: 'one'"),
    "nested const": (edit("[1.0, 0.01]", f"[{DEEP}]"), "line 4: could not convert"),
    "nested attribute": (edit("eps=1e-05", f"eps={DEEP}"), "line 9: "),
    "null attribute": (edit("eps=1e-05", "eps=null"), "line 9: None is no attribute value"),
    "object attribute": (edit("eps=1e-05", 'eps={"a": 1}'), "line 9: {'a': 1} is no attribute value"),
    "nothing attribute": (edit("eps=1e-05", "eps"), "line 9: "),
    "huge int": (edit("window=3", f"window={'9' * 5000}"), "line 12: "),
    "huge dim": (edit("f32[8] role=norm", f"f32[{'9' * 5000}] role=norm"), "line 6: "),
    "symbol in a param": (edit("bf16[11, 8]", "bf16[V, 8]"), "line 5: reads 'param @embed : bf16[V, 8]"),
    "odd digits": (edit("bf16[11, 8]", "bf16[²², 8]"), "line 5: invalid literal"),
    "leading zero": (edit("bf16[11, 8]", "bf16[011, 8]"), "line 5: reads"),
    "layer": (edit("f32[8] role=norm layer=0", "f32[8] role=norm layer=-0"), "line 6: not a definition"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_texts(name: str) -> None:
    text, message = TEXTS[name]
    with pytest.raises(InputError) as caught:
        parse(text)
    assert str(caught.value).startswith("graph text: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


@given(st.integers(0, len(GOLDEN) - 1), st.sampled_from([*' \n"%@$[]{}()=:,_-0a', "\x85", "\0", "é"]), st.booleans())
def test_a_changed_character_is_refused_or_another_graph(at: int, char: str, insert: bool) -> None:
    text = GOLDEN[:at] + char + GOLDEN[at + (not insert) :]
    try:
        graph = parse(text)
    except InputError:
        return
    verify(graph)
    assert print_graph(graph) == text


# JSON

Change = Callable[[dict[str, Any]], Any]


def put(*path: str | int, value: Any) -> Change:
    """Set data[path...] = value."""

    def change(data: dict[str, Any]) -> Any:
        at: Any = data
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return data

    return change


def drop(*path: str | int) -> Change:
    """Delete data[path...]."""

    def change(data: dict[str, Any]) -> Any:
        at: Any = data
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
        return data

    return change


def nested(levels: int) -> Any:
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    return deep


DOCUMENTS: dict[str, tuple[Change, str]] = {
    "not an object": (lambda data: [data], "Expected `object`, got `array`"),
    "nothing": (lambda data: None, "Expected `object`, got `null`"),
    "schema": (put("schema", value="thinc.graph/2"), "Invalid enum value 'thinc.graph/2' - at `$.schema`"),
    "no schema": (drop("schema"), "missing required field `schema`"),
    "unknown key": (put("code", value=""), "unknown field `code`"),
    "unknown key of a node": (put("nodes", 0, "kernel", value=""), "unknown field `kernel` - at `$.nodes[0]`"),
    "name": (put("name", value=3), "Expected `str`, got `int` - at `$.name`"),
    "facts": (put("facts", value="abc"), "Expected `array`, got `str` - at `$.facts`"),
    "no outputs": (drop("outputs"), "missing required field `outputs`"),
    "shape as text": (put("params", 0, "shape", value="88"), "Expected `array`, got `str` - at `$.params[0].shape`"),
    "float dim": (put("params", 0, "shape", 0, value=8.0), "Expected `int`, got `float` - at `$.params[0].shape[0]`"),
    "bool dim": (put("params", 0, "shape", 0, value=True), "Expected `int`, got `bool` - at `$.params[0].shape[0]`"),
    "symbolic dim of a param": (put("params", 0, "shape", 0, value="V"), "Expected `int`, got `str` - at `$.params[0].shape[0]`"),
    "null dim": (put("inputs", 0, "shape", 0, value=None), "Expected `int | str`, got `null` - at `$.inputs[0].shape[0]`"),
    "role": (put("params", 0, "role", value=None), "Expected `str`, got `null` - at `$.params[0].role`"),
    "bool layer": (put("params", 0, "layer", value=False), "Expected `int | null`, got `bool` - at `$.params[0].layer`"),
    "no layer": (drop("params", 0, "layer"), "missing required field `layer` - at `$.params[0]`"),
    "bool in a const": (put("consts", 0, "values", 0, value=True), "Expected `float`, got `bool` - at `$.consts[0].values[0]`"),
    "NaN": (put("consts", 0, "values", 0, value=float("nan")), "nan is not finite"),
    "huge int": (put("consts", 0, "values", 0, value=10**400), "Number out of range - at `$.consts[0].values[0]`"),
    "attribute list": (put("nodes", 0, "attrs", value=[]), "Expected `object`, got `array` - at `$.nodes[0].attrs`"),
    "attribute null": (put("nodes", 1, "attrs", "eps", value=None), "got `null` - at `$.nodes[1].attrs[...]`"),
    "attribute infinity": (put("nodes", 1, "attrs", "eps", value=float("inf")), "inf is not finite"),
    "bool in an attribute": (put("nodes", 2, "attrs", "shape", 0, value=True), "Expected `int | str`, got `bool` - at `$.nodes[2].attrs[...][0]`"),
    "nesting": (put("nodes", 2, "attrs", "shape", value=nested(100_000)), "Expected `int | str`, got `array`"),
    "number for a name": (put("nodes", 0, "inputs", 0, value=0), "Expected `str`, got `int` - at `$.nodes[0].inputs[0]`"),
    "output as text": (put("outputs", 0, value="logits"), "Expected `object`, got `str` - at `$.outputs[0]`"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_hostile_documents(name: str) -> None:
    change, message = DOCUMENTS[name]
    with pytest.raises(InputError) as caught:
        from_json(change(deepcopy(to_json(small()))))
    assert str(caught.value).startswith("graph.json: ")
    assert message in str(caught.value)


def test_an_int_for_a_float_attribute_is_a_violation() -> None:
    data = to_json(small())
    data["nodes"][1]["attrs"]["eps"] = 1
    assert "node %n norm: attribute eps must be a finite float, not 1" in verify(from_json(data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.data(), json_values)
def test_any_value_at_any_place(data: st.DataObject, value: Any) -> None:
    """Refused as InputError, or a graph that says the same again; the verifier takes whatever came through."""
    document = deepcopy(to_json(small()))
    at: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(at))) if isinstance(at, dict) else data.draw(st.integers(0, len(at) - 1))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.integers(0, 3)) == 0:
            break
        at = at[key]
    at[key] = value
    try:
        graph = from_json(document)
    except InputError:
        return
    verify(graph)
    assert to_json(graph) == document
