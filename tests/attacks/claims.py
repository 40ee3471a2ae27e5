"""Attacks on what manifest.json says: rules A-05 to A-07, A-15, A-17, A-18."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from attacks.tamper import edit, put, put_manifest


def _raw(folder: Path, old: bytes, new: bytes) -> None:
    data = (folder / "manifest.json").read_bytes()
    assert old in data
    put_manifest(folder, data.replace(old, new, 1))


def _text(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        put_manifest(folder, change((folder / "manifest.json").read_bytes()))

    return attack


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def key_twice(folder: Path) -> None:
    _raw(folder, b'{"build_key":', b'{"build_key":"","build_key":')


def spaces(folder: Path) -> None:
    _raw(folder, b'"dropped":[]', b'"dropped": []')


def keys_not_sorted(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"b":1,"a":2}')


def not_a_number(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"a":NaN}')


def endless_number(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"a":1e999}')


def long_spelling_of_a_number(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"a":1.50}')


def escaped_letter(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"\\u0061":1}')


def lone_surrogate(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"a":"\\ud800"}')


def nested_too_deep(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"a":' + b"[" * 100 + b"]" * 100 + b"}")


def nested_beyond_the_stack(folder: Path) -> None:
    _raw(folder, b'"optional":{}', b'"optional":{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")


newline_at_the_end = _text(lambda data: data + b"\n")
cut_off = _text(lambda data: data[:-1])
byte_order_mark = _text(lambda data: b"\xef\xbb\xbf" + data)
not_utf8 = _text(lambda data: data.replace(b'"Test"', b'"T\xffst"'))
a_list = _text(lambda data: b"[]")
zero_bytes = _text(lambda data: b"")


def other_schema(folder: Path) -> None:
    edit(folder, put("schema", to="thinc.manifest/2"))


def unknown_feature(folder: Path) -> None:
    edit(folder, put("requires", to=["time-travel"]))


def unknown_field(folder: Path) -> None:
    edit(folder, put("model", "colour", to="red"))


def missing_field(folder: Path) -> None:
    edit(folder, lambda m: m.pop("source"))


def negative_bytes(folder: Path) -> None:
    edit(folder, put("weights", 0, "bytes", to=-1))


def negative_dim(folder: Path) -> None:
    edit(folder, put("tensors", 0, "shape", 0, to=-1500))


def number_beyond_64_bits(folder: Path) -> None:
    edit(folder, put("tensors", 0, "shape", 0, to=1 << 70))


def text_for_a_number(folder: Path) -> None:
    edit(folder, put("model", "layers", to="2"))


def fraction_for_a_number(folder: Path) -> None:
    edit(folder, put("model", "layers", to=2.5))


def upper_case_digest(folder: Path) -> None:
    edit(folder, put("graph", "sha256", to="AB" * 32))


def short_root(folder: Path) -> None:
    edit(folder, put("payload_root", to="ab"))


def third_axis(folder: Path) -> None:
    edit(folder, put("tensors", 0, "layout", "axis", to=2))


def unknown_operation(folder: Path) -> None:
    edit(folder, put("formats", "bf16/1", "value", to=["div", "value", 0]))


def unknown_element_type(folder: Path) -> None:
    edit(folder, put("formats", "bf16/1", "parts", 0, "type", to="u64"))


def endless_expression(folder: Path) -> None:
    value: object = "value"
    for _ in range(40):
        value = ["add", value, value] if _ < 10 else ["add", value, 1]
    edit(folder, put("formats", "bf16/1", "value", to=value))


def tensor_twice(folder: Path) -> None:
    edit(folder, lambda m: m["tensors"].append(m["tensors"][0]))


def encoding_without_a_format(folder: Path) -> None:
    edit(folder, put("tensors", 0, "encoding", to="int4-sym-g32/1"))


def format_without_a_tensor(folder: Path) -> None:
    edit(folder, lambda m: m["formats"].update({"spare/1": m["formats"]["bf16/1"] | {"name": "spare/1"}}))


def format_under_another_name(folder: Path) -> None:
    edit(folder, put("formats", "bf16/1", "name", to="bf16/2"))


def known_format_redefined(folder: Path) -> None:
    edit(folder, put("formats", "int8-sym-g64/1", "value", 1, 2, to=127))


def unknown_dtype(folder: Path) -> None:
    edit(folder, put("tensors", 0, "dtype", to="object"))


def encoded_bytes_wrong(folder: Path) -> None:
    edit(folder, lambda m: m["ledger"].update(encoded_weight_bytes=m["ledger"]["encoded_weight_bytes"] - 1))


def total_does_not_add_up(folder: Path) -> None:
    edit(folder, lambda m: m["ledger"].update(kv_bytes=1))


def budget_exceeded(folder: Path) -> None:
    edit(folder, lambda m: m["ledger"]["budgets"].update(budget=m["ledger"]["budgets"]["budget"] - 1))


def weights_budget_exceeded(folder: Path) -> None:
    edit(folder, put("ledger", "budgets", to={"weights_budget": 1}))


def other_root(folder: Path) -> None:
    edit(folder, put("payload_root", to="0" * 64))


def tokenizer_exchanged_without_the_root(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"tokenz")
    edit(folder, put("files", 1, "sha256", to=hashlib.sha256(b"tokenz").hexdigest()))


ATTACKS: dict[str, tuple[Callable[[Path], Path | None], ...]] = {
    "A-05": (
        *(no_manifest, key_twice, spaces, keys_not_sorted, not_a_number, endless_number, long_spelling_of_a_number, escaped_letter),
        *(lone_surrogate, nested_too_deep, nested_beyond_the_stack, newline_at_the_end, cut_off, byte_order_mark, not_utf8, zero_bytes),
    ),
    "A-06": (other_schema, unknown_feature, a_list),
    "A-07": (
        *(unknown_field, missing_field, negative_bytes, negative_dim, number_beyond_64_bits, text_for_a_number, fraction_for_a_number),
        *(upper_case_digest, short_root, third_axis, unknown_operation, unknown_element_type, endless_expression),
    ),
    "A-15": (
        *(tensor_twice, encoding_without_a_format, format_without_a_tensor, format_under_another_name, known_format_redefined),
        unknown_dtype,
    ),
    "A-17": (encoded_bytes_wrong, total_does_not_add_up, budget_exceeded, weights_budget_exceeded),
    "A-18": (other_root, tokenizer_exchanged_without_the_root),
}
