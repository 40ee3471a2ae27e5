"""Users' own text for calibration or certification: `--calibration FILE|FOLDER`.

In: a path. Out: `Document`s in a fixed order, with ids and sources relative to that path, so that no machine path is recorded.
1. `.txt`: one document.
2. `.jsonl`: one document a line, {"text": ..., "domain": optional}; other keys are ignored, blank lines skipped.
3. A folder: every such file below it, by relative path; names that begin with a dot are skipped.
Documents of white space alone are left out. A byte order mark is dropped; line ends stay as they are.
Refused (InputError): a missing path, another suffix (in a folder, too), pipes and devices, links that leave the folder, text that is not
UTF-8, a line that is not such an object, more than 16 MiB or 100,000 documents or files, nothing to read, and calibration text that overlaps
the certification text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from ..artifacts.foreign import read_small, resolve_inside
from ..schemas.canonical import NOT_JSON
from ..schemas.errors import InputError
from ..schemas.texts import NEAR, Document, overlaps

SUFFIXES = (".txt", ".jsonl")
MAX_BYTES = 16 << 20  # calibration reads far less; comparing texts takes up to 30 bytes of memory per byte
MAX_DOCUMENTS = 100_000
MAX_FILES = 100_000
DOMAIN = "user"


class _Row(msgspec.Struct, frozen=True):
    text: str
    domain: str = DOMAIN


def read_documents(path: Path) -> tuple[Document, ...]:
    """The documents of a file or folder. Raises InputError as the module says."""
    files = _files(path)
    size = sum(file.stat().st_size for _, file in files)
    if size > MAX_BYTES:
        raise InputError(f"{path}: {size} bytes of text, more than {MAX_BYTES} allowed; calibration needs about a million")
    documents: list[Document] = []
    for name, file in files:
        documents += islice(_documents(name, file), MAX_DOCUMENTS + 1)
        if len(documents) > MAX_DOCUMENTS:
            raise InputError(f"{path}: more than {MAX_DOCUMENTS} documents; join short ones")
    if not documents:
        raise InputError(f"{path}: no text in it")
    return tuple(documents)


def require_disjoint(calibration: Sequence[Document], certification: Sequence[Document]) -> None:
    """Raises InputError naming up to three pairs when calibration text says what certification text says (schemas/texts.py)."""
    found = overlaps(calibration, certification)
    if found:
        pairs = "; ".join(f"{o.a} and {o.b} ({o.containment:.0%})" for o in found[:3])
        raise InputError(
            f"{len(found)} calibration documents overlap certification documents ({NEAR:.0%} of 8-word runs or more): {pairs}. A model "
            "certified on text that chose its precision would be praised for memory; take them out of one of the two"
        )


def _files(path: Path) -> list[tuple[str, Path]]:
    """(name relative to `path`, file) in the order of names."""
    if path.is_dir():
        files = sorted(_below(path))
    elif path.exists():
        files = [(path.name, path)]
    else:
        raise InputError(f"{path}: no such file or folder")
    if irregular := next((name for name, file in files if not file.is_file()), None):
        raise InputError(f"{path}: {irregular!a} is not a regular file")
    strange = [name for name, file in files if file.suffix not in SUFFIXES]
    if strange:
        raise InputError(f"{path}: text comes from {' or '.join(SUFFIXES)} files, not {', '.join(strange[:3])}")
    return files


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """(relative name, file without links) of everything in the folder that is no folder and not hidden."""
    root = Path(os.path.realpath(folder))
    for n, entry in enumerate(root.rglob("*")):
        if n >= MAX_FILES:
            raise InputError(f"{folder}: more than {MAX_FILES} files; join short ones")
        name = entry.relative_to(root)
        if (entry.is_symlink() or not entry.is_dir()) and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix(), resolve_inside(entry, (root,))


def _documents(name: str, file: Path) -> Iterator[Document]:
    raw = read_small(file, MAX_BYTES)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; convert it, for example with iconv -t UTF-8") from error
    rows = [(name, _Row(text))] if file.suffix == ".txt" else _rows(name, text)
    for identity, row in rows:
        if row.text.strip():
            yield Document.of(row.text, id=identity, domain=row.domain, source=name)


def _rows(name: str, text: str) -> Iterator[tuple[str, _Row]]:
    for number, line in enumerate(_lines(text), 1):
        if line.strip():
            try:
                yield f"{name}:{number}", msgspec.json.decode(line, type=_Row)
            except NOT_JSON as error:
                raise InputError(f'{name}: line {number}: {error}; expected an object like {{"text": "..."}}') from error


def _lines(text: str) -> Iterator[str]:
    """Not splitlines(): JSON strings may hold U+2028 and its like, which are no line ends of JSON Lines. One line in memory at a time."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1
