"""What a stranger's tokenizer.json may ask of the `tokenizers` library, checked on its JSON before the library sees it.

In: the bytes of tokenizer.json. Out: bytes for the library, built from the parts that were checked (so both read the same of repeated keys).
1. Size: MAX_BYTES, MAX_VALUES JSON values, MAX_ENTRIES of vocabulary and merges, MAX_PART bytes for everything else but added tokens.
2. Steps: the known kinds only (tokenizer_steps.py), MAX_STEPS of them; each says by how much it can lengthen a text, the product is at most GROWTH.
   A step that replaces nothing (the empty text), or a table of replacements that does not hold together, is refused: the library panics.
3. Regular expressions keep tokenizer_regex.py; in a normaliser, which runs while the library loads the added tokens, there are at most
   PLAIN_REGEX, with no groups, no alternatives and one open repetition. Decoders replace plain text only.
4. A text is used once by the post-processor. Nothing is random: no dropout, no sampling.
Not covered: how long a text takes (Tokenizer.encode bounds that). Refused: InputError naming the part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..schemas.errors import InputError
from .tokenizer_regex import OPEN, check_regex
from .tokenizer_steps import MAX_TEXT, NAME, STEPS, Step, refuse

MAX_BYTES = 64 << 20  # the largest published tokenizer.json have 35 MB
MAX_VALUES = 4 << 20  # and 2 million values
MAX_PART = 2 << 20
MAX_STEPS = 64
GROWTH = 256
PLAIN_REGEX = 4
MAX_ADDED, MAX_ADDED_TEXT, LONGEST_ADDED = 1 << 16, 1 << 20, 256  # tokens, characters of all, characters of one; published: 7,000 tokens
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_ENTRIES = {"vocab": 1 << 19, "merges": 600_000}  # published: 262,144 and 515,000; each takes up to 1 KiB of memory while it loads
_RANDOM = ("dropout", "alpha", "nbest_size")

_SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}


class _File(msgspec.Struct):
    """The parts that are handed on; padding and truncation are not used."""

    model: dict[str, msgspec.Raw]
    version: str = "1.0"
    added_tokens: msgspec.Raw = msgspec.Raw(b"[]")
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")
    post_processor: msgspec.Raw = msgspec.Raw(b"null")
    decoder: msgspec.Raw = msgspec.Raw(b"null")


class _Added(msgspec.Struct):
    """What is asked about an added token here; the library reads the rest."""

    content: str


def checked_json(raw: bytes) -> bytes:
    """tokenizer.json for the library, which a file that keeps the module's rules means; InputError."""
    require_modest(raw, NAME, MAX_BYTES)
    file = _decode(raw, _File, NAME)
    parts = {name: _part(name, getattr(file, name)) for name in _PARTS}
    model = _model(file.model)
    added = _decode(bytes(file.added_tokens), list[_Added], f"{NAME}: added_tokens")
    checked = {name: list(_steps(value, name)) for name, value in parts.items() if name != "post_processor"}
    _check_normalizer(checked["normalizer"])
    _check_growth([*checked["normalizer"], *checked["pre_tokenizer"]])
    _check_growth(checked["decoder"])
    _check_post(parts["post_processor"])
    check_added([token.content for token in added], NAME)
    return msgspec.json.encode({"version": file.version, "added_tokens": file.added_tokens, **parts, "model": model})


def require_modest(raw: bytes, name: str, limit: int) -> None:
    """InputError for more than `limit` bytes, or more values than a parsed file should hold in memory."""
    if len(raw) > limit:
        raise InputError(f"{name}: {len(raw)} bytes, more than {limit} allowed for a tokenizer file")
    if (values := sum(map(raw.count, (b",", b"[", b"{")))) > MAX_VALUES:
        raise InputError(f"{name}: up to {values} values, more than {MAX_VALUES} allowed")


def _decode(raw: bytes, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{where}: nested too deeply") from error


def _part(name: str, raw: msgspec.Raw) -> Any:
    """A part other than the model, parsed."""
    if len(bytes(raw)) > MAX_PART:
        refuse(name, f"{len(bytes(raw))} bytes, at most {MAX_PART} are read")
    value = _decode(bytes(raw), Any, f"{NAME}: {name}")
    if not isinstance(value, dict | None):
        refuse(name, "not an object")
    return value


def _model(model: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    for key, value in model.items():
        if key in MAX_ENTRIES:
            if (entries := _entries(bytes(value))) > MAX_ENTRIES[key]:
                refuse(f"model.{key}", f"{entries} entries, at most {MAX_ENTRIES[key]} are read")
        elif len(bytes(value)) > MAX_TEXT:
            refuse(f"model.{key[:40]!r}", f"longer than {MAX_TEXT} bytes")
        if key in _RANDOM and bytes(value) not in (b"null", b"0", b"0.0"):
            refuse(f"model.{key}", "is set: the ids of a text would be drawn at random")
    return model


def _entries(raw: bytes) -> int:
    """Of an object, a list, or a list of lists; a few more when texts hold commas or brackets."""
    lists = raw.count(b"[") - 1
    return lists if lists > 0 and raw[:1] == b"[" else raw.count(b",") + 1


def _steps(value: Any, where: str, depth: int = 0) -> Iterator[tuple[Step, str]]:
    """Every step of a normaliser, pre-tokeniser or decoder, sequences opened; checked to be of a known kind."""
    if value is None:
        return
    kind = value.get("type") if isinstance(value, dict) else None
    inner = value.get(_SEQUENCES.get(where.partition(".")[0], "")) if kind == "Sequence" else None
    if isinstance(inner, list) and depth < 8:
        if len(inner) > MAX_STEPS:
            refuse(where, f"{len(inner)} steps, at most {MAX_STEPS} are done")
        for n, step in enumerate(inner):
            yield from _steps(step, f"{where}.{n}", depth + 1)
    elif isinstance(kind, str) and kind in STEPS and isinstance(value, dict):
        yield value, where
    else:
        refuse(where, f"{str(kind)[:40]!r} is no kind of step that is known here")


def _check_growth(steps: list[tuple[Step, str]]) -> None:
    total = 1
    for n, (step, where) in enumerate(steps):
        total *= max(1, STEPS[step["type"]](step, where))
        if total > GROWTH or n >= MAX_STEPS:
            refuse(where, f"the steps up to here could lengthen a text {GROWTH} times or more, or are more than {MAX_STEPS}")


def _check_normalizer(steps: list[tuple[Step, str]]) -> None:
    """Regular expressions that cost a text of n characters n^2 at most, and that are few."""
    found = [(where, text) for step, where in steps if isinstance(p := step.get("pattern"), dict) and isinstance(text := p.get("Regex"), str)]
    for where, text in found:
        if "(" in text or "|" in text or check_regex(text, f"{NAME}: {where}") > OPEN:
            refuse(where, "a normaliser's regular expression has no groups, no alternatives and one repetition")
    if len(found) > PLAIN_REGEX:
        refuse(found[-1][0], f"{len(found)} regular expressions, at most {PLAIN_REGEX} are used")


def check_added(contents: list[str], name: str) -> None:
    """InputError for added tokens that are too many or too long: the library normalises each, and builds one table of all."""
    sizes = list(map(len, contents))
    if len(sizes) > MAX_ADDED or sum(sizes) > MAX_ADDED_TEXT or max(sizes, default=0) > LONGEST_ADDED:
        raise InputError(
            f"{name}: {len(sizes)} added tokens of {max(sizes)} characters or less, {sum(sizes)} in all; at most {MAX_ADDED} of "
            f"{LONGEST_ADDED}, {MAX_ADDED_TEXT} in all, are used"
        )


def _check_post(value: Any) -> None:
    """Every template, at any depth, uses each of its texts once, and tokens that it describes; what it puts around them is short."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += item.values()
            for pieces in (item.get("single"), item.get("pair")):
                _check_template(pieces, item.get("special_tokens"))
        elif isinstance(item, list):
            todo += item
            if len(item) > MAX_STEPS:
                refuse("post_processor", f"a list of {len(item)}, at most {MAX_STEPS} are used")


def _check_template(pieces: Any, described: Any) -> None:
    """A text used twice doubles; a token that is not described makes the library panic."""
    found = [next(iter(p.items())) for p in pieces if isinstance(p, dict) and p] if isinstance(pieces, list) else []
    names = [(kind, str(piece.get("id"))) for kind, piece in found if isinstance(piece, dict)]
    texts = [name for kind, name in names if kind == "Sequence"]
    if len(texts) != len(set(texts)):
        refuse("post_processor", "a text is repeated")
    for kind, name in names:
        if kind == "SpecialToken" and not (isinstance(described, dict) and name in described):
            refuse("post_processor", f"no token {name[:40]!r} is described")
