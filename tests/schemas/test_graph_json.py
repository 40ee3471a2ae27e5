"""The JSON form: what is not exactly a graph document is refused as InputError, naming the place."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from graphs import small_graph
from thinlm.schemas.errors import InputError
from thinlm.schemas.graph_json import from_json, to_json
from thinlm.schemas.verify import verify

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
        from_json(change(deepcopy(to_json(small_graph()))))
    assert str(caught.value).startswith("graph.json: ")
    assert message in str(caught.value)


def test_the_order_of_keys_is_free() -> None:
    data = to_json(small_graph())
    data["nodes"][1]["attrs"] = dict(reversed(data["nodes"][1]["attrs"].items()))
    assert from_json(dict(reversed(data.items()))) == small_graph()


def test_an_int_for_a_float_attribute_is_a_violation() -> None:
    data = to_json(small_graph())
    data["nodes"][1]["attrs"]["eps"] = 1
    assert "node %n norm: attribute eps must be a finite float, not 1" in verify(from_json(data))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.data(), json_values)
def test_any_value_at_any_place(data: st.DataObject, value: Any) -> None:
    """Refused as InputError, or a graph that says the same again; the verifier takes whatever came through."""
    document = deepcopy(to_json(small_graph()))
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
