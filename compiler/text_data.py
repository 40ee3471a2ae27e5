"""Users' own text for calibration or certification: `--calibration FILE|FOLDER`.

In: a path. Out: `Document`s in a fixed order, with ids and sources relative to that path, so that no machine path is recorded.
1. `.txt`: one document.
2. `.jsonl`: one document a line, {"text": ..., "domain": optional}; other keys are ignored, blank lines skipped.
3. A folder: every such file below it, by relative path; names that begin with a dot are skipped.
Documents of white space alone are left out. A byte order mark is dropped; line ends stay as they are.
Refused (InputError): a missing path, another suffix (in a folder, too), text that is not UTF-8, a line that is not such an object, more
than 256 MiB or 100,000 documents, nothing to read, and calibration text that overlaps the certification text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..schemas.errors import InputError
from ..schemas.texts import NEAR, Document, overlaps

SUFFIXES = (".txt", ".jsonl")
MAX_BYTES = 256 << 20
MAX_DOCUMENTS = 100_000
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
        documents += _documents(name, file)
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
        below = ((file.relative_to(path), file) for file in path.rglob("*") if file.is_file())
        files = sorted((name.as_posix(), file) for name, file in below if not any(part.startswith(".") for part in name.parts))
    elif path.is_file():
        files = [(path.name, path)]
    else:
        raise InputError(f"{path}: no such file or folder")
    strange = [name for name, file in files if file.suffix not in SUFFIXES]
    if strange:
        raise InputError(f"{path}: text comes from {' or '.join(SUFFIXES)} files, not {', '.join(strange[:3])}")
    return files


def _documents(name: str, file: Path) -> Iterator[Document]:
    raw = file.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; convert it, for example with iconv -t UTF-8") from error
    rows = [(name, _Row(text))] if file.suffix == ".txt" else _rows(name, text)
    for identity, row in rows:
        if row.text.strip():
            yield Document.of(row.text, id=identity, domain=row.domain, source=name)


def _rows(name: str, text: str) -> Iterator[tuple[str, _Row]]:
    # Not splitlines(): JSON strings may hold U+2028 and its like, which are no line ends of JSON Lines.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"{name}:{number}", msgspec.json.decode(line, type=_Row)
            except msgspec.DecodeError as error:
                raise InputError(f'{name}: line {number}: {error}; expected an object like {{"text": "..."}}') from error
