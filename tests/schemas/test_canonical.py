"""Canonical JSON: one spelling per value, everything else refused; structs; the JSON Schemas on the disk are current."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, strategies as st

from thinlm.schemas.canonical import MAX_DEPTH, as_struct, canonical_bytes, decode_canonical, parse_canonical
from thinlm.schemas.errors import InputError
from thinlm.schemas.json_schema import FOLDER, all_schemas, schema_text
from thinlm.schemas.manifest import FileEntry, Manifest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_round_trip(value: object) -> None:
    try:
        data = canonical_bytes(value)
    except InputError:
        assert "\\ud" in json.dumps(value)  # lone surrogates have no UTF-8
        return
    again = parse_canonical(data, where="x")
    assert again == value
    assert canonical_bytes(again) == data
    assert json.loads(data) == value


GOLDEN = [
    ({"b": 1, "a": [1.0, -0.0, 1e-7, 1e22, True, None]}, b'{"a":[1.0,-0.0,1e-07,1e+22,true,null],"b":1}'),
    ({"é": '\u2028\n"\\/', "\U0001f600": 1, "\uff5e": 2}, '{"é":"\u2028\\n\\"\\\\/","\uff5e":2,"\U0001f600":1}'.encode()),
    (FileEntry(path="a", bytes=1, sha256="00"), b'{"bytes":1,"path":"a","sha256":"00"}'),
]


@pytest.mark.parametrize(("value", "text"), GOLDEN)
def test_the_form_is_settled(value: object, text: bytes) -> None:
    assert canonical_bytes(value) == text


REFUSED = [b"", b" {}", b"{}\n", b'{"a": 1}', b'{"b":1,"a":1}', b'{"a":1,"a":1}', b'{"a":1.50}', b'{"a":1E5}', b'{"a":NaN}', b'{"a":1e999}',
           b'{"a":"\\u0061"}', b'{"a":"\\ud800"}', b"\xef\xbb\xbf{}", b'{"a":"\xff"}', b"{}{}", b"[1,]", b"[" * 100 + b"]" * 100,
           b"[" * 10**6]  # fmt: skip


@pytest.mark.parametrize("data", REFUSED, ids=lambda data: repr(data[:16]))
def test_other_spellings_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^file\.json: "):
        parse_canonical(data, where="file.json")


def test_depth_and_size_are_bounded() -> None:
    nested: object = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert parse_canonical(canonical_bytes(nested), where="x") == nested
    with pytest.raises(InputError, match="nested"):
        parse_canonical(canonical_bytes([nested]), where="x")
    with pytest.raises(InputError, match="at most 3"):
        parse_canonical(b"1234", where="x", max_bytes=3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": {2: 1}}, {"a": object()}, "\ud800"])
def test_values_without_a_form_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="no canonical"):
        canonical_bytes(value)


def test_structs_name_the_field_that_does_not_fit() -> None:
    good = FileEntry(path="a", bytes=1, sha256="00")
    assert decode_canonical(canonical_bytes(good), FileEntry, where="x") == good
    for change, words in (({"bytes": "1"}, "bytes"), ({"extra": 1}, "extra"), ({"bytes": 1.5}, "bytes")):
        with pytest.raises(InputError, match=words):
            as_struct(msgspec.to_builtins(good) | change, FileEntry, where="x")


@pytest.mark.parametrize("name", all_schemas())
def test_schema_files_are_current(name: str) -> None:
    """Run `python -m thinlm.schemas.json_schema` after changing a struct."""
    assert (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") == schema_text(all_schemas()[name])


def test_manifest_fields_are_settled() -> None:
    """Later versions only add fields, with defaults."""
    required = {f.name for f in msgspec.structs.fields(Manifest) if f.required}
    assert required == {
        *("schema", "requires", "model", "source", "formats", "tensors", "dropped", "page_kinds", "page_index", "weights"),
        *("graph", "plan", "files", "ledger", "provenance", "build_key", "payload_root"),
    }
