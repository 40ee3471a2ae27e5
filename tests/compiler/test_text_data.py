"""Reading users' text: files, folders and JSON lines, what is refused, and calibration kept apart from certification."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thinlm.compiler import text_data
from thinlm.compiler.text_data import read_documents, require_disjoint
from thinlm.schemas.errors import InputError
from thinlm.schemas.texts import Document


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, raw in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    return folder


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": "\ufeffé\r\nline\n".encode()}) / "a.txt"
    assert read_documents(path) == (Document.of("é\r\nline\n", id="a.txt", domain="user", source="a.txt"),)


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"text": "one\u2028two", "id": 7}, {"text": "three", "domain": "law"}, {"text": " \n"}]
    raw = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    found = read_documents(write(tmp_path, {"b.jsonl": raw.encode()}) / "b.jsonl")
    assert [(d.id, d.domain, d.text) for d in found] == [("b.jsonl:1", "user", "one\u2028two"), ("b.jsonl:2", "law", "three")]


def test_a_folder_in_a_fixed_order_without_machine_paths(tmp_path: Path) -> None:
    files = {"z.txt": b"z", "sub/a.jsonl": b'{"text": "a"}', "b.txt": b"b", "empty.txt": b"", ".hidden/x.pdf": b"%", ".DS_Store": b"\0"}
    found = read_documents(write(tmp_path, files))
    assert [d.id for d in found] == ["b.txt", "sub/a.jsonl:1", "z.txt"]
    assert not any(str(tmp_path) in d.id + d.source for d in found)


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        ({}, "none.txt", "none.txt: no such file"),
        ({}, ".", "no text in it"),
        ({"a.txt": b" \n"}, "a.txt", "no text in it"),
        ({"a.csv": b"x"}, "a.csv", r"from \.txt or \.jsonl files, not a\.csv"),
        ({"a.txt": b"x", "b.md": b"x"}, ".", r"not b\.md"),
        ({"a.txt": b"abc\xff"}, "a.txt", r"a\.txt: byte 3 is not UTF-8"),
        ({"a.txt": "x".encode("utf-16")}, "a.txt", "byte 0 is not UTF-8"),
        ({"a.jsonl": b'{"text": "x"}\n{"txt": "y"}'}, "a.jsonl", "line 2: Object missing required field `text`"),
        ({"a.jsonl": b'{"text": 1}'}, "a.jsonl", "line 1: Expected `str`, got `int`"),
        ({"a.jsonl": b"x"}, "a.jsonl", "line 1: .*expected an object like"),
    ],
)
def test_refusals(files: dict[str, bytes], name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_documents(write(tmp_path, files) / name)


def test_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write(tmp_path, {f"{i}.txt": b"four" for i in range(5)})
    monkeypatch.setattr(text_data, "MAX_DOCUMENTS", 4)
    with pytest.raises(InputError, match="more than 4 documents"):
        read_documents(folder)
    monkeypatch.setattr(text_data, "MAX_BYTES", 19)
    with pytest.raises(InputError, match="20 bytes of text, more than 19"):
        read_documents(folder)


def test_overlapping_sets_are_refused(tmp_path: Path) -> None:
    prose = " ".join(f"word{i}" for i in range(80))
    own = read_documents(write(tmp_path, {"mine.txt": prose.upper().encode(), "other.txt": b"something else"}))
    shipped = Document.of(f"Before. {prose} After.", id="shipped", domain="prose", source="s")
    with pytest.raises(InputError, match=r"1 calibration documents overlap .*mine\.txt and shipped \(100%\)"):
        require_disjoint(own, [shipped])
    require_disjoint(own[1:], [shipped])
    require_disjoint((), [shipped])
