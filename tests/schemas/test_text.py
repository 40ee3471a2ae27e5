"""Text and JSON forms: both give the same graph back, the text of one graph is golden, and nothing that is not a canonical form is taken."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, strategies as st

from graphs import random_graph, small_graph
from thinlm.schemas.canonical import canonical_bytes, parse_canonical
from thinlm.schemas.errors import InputError
from thinlm.schemas.text import from_json, parse, print_graph, to_json
from thinlm.schemas.verify import verify

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
%v6 = slice(%v5) {stop=8} : f32[B, T, 8]
%v7 = linear(%v6, @embed) : f32[B, T, 11]
output hidden.0 = %h
output table = @embed
output logits = %v7
"""


def test_golden() -> None:
    assert print_graph(small_graph()) == GOLDEN
    assert parse(GOLDEN) == small_graph()


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
