"""What a stranger's tokenizer.json may ask of the `tokenizers` library, checked on its JSON before the library sees it.

In: the bytes of tokenizer.json. Out: bytes for the library, built from the parts that were checked (so both read the same of repeated keys).
1. Size: MAX_BYTES, MAX_VALUES JSON values, MAX_ENTRIES of vocabulary and merges, MAX_PART bytes for everything else but added tokens.
2. Steps: the known kinds only (STEPS), MAX_STEPS of them; each says by how much it can lengthen a text, and the product is at most GROWTH.
   A step that replaces nothing (the empty text), or a table of replacements that does not hold together, is refused: the library panics.
3. Regular expressions keep tokenizer_regex.py; in a normaliser, which runs while the library loads the added tokens, there are at most
   PLAIN_REGEX, with no groups, no alternatives and one open repetition. Decoders replace plain text only.
4. A text is used once by the post-processor. Nothing is random: no dropout, no sampling.
Not covered: how long a text takes (Tokenizer.encode bounds that). Refused: InputError naming the part.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec

from ..schemas.errors import InputError
from .tokenizer_regex import OPEN, check_regex

MAX_BYTES = 64 << 20  # the largest published tokenizer.json have 35 MB
MAX_VALUES = 4 << 20  # and 2 million values
MAX_PART = 2 << 20
MAX_STEPS = 64
GROWTH = 256
MAX_TEXT = 256  # bytes that a step may insert
PLAIN_REGEX = 4
MAX_ADDED, MAX_ADDED_TEXT, LONGEST_ADDED = 1 << 16, 1 << 20, 256  # tokens, characters of all, characters of one; published: 7,000 tokens
MAX_PRECOMPILED = 1 << 20
LONGEST = 64  # bytes of one entry of a Precompiled table; NFKC's longest has 33
_NAME = "tokenizer.json"
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_ENTRIES = {"vocab": 1 << 19, "merges": 600_000}  # published: 262,144 and 515,000; each takes up to 1 KiB of memory while it loads
_RANDOM = ("dropout", "alpha", "nbest_size")

Step = dict[str, Any]
Growth = Callable[[Step, str], int]


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
    require_modest(raw, _NAME, MAX_BYTES)
    file = _decode(raw, _File, _NAME)
    parts = {name: _part(name, getattr(file, name)) for name in _PARTS}
    model = _model(file.model)
    added = _decode(bytes(file.added_tokens), list[_Added], f"{_NAME}: added_tokens")
    checked = {name: list(_steps(value, name)) for name, value in parts.items() if name != "post_processor"}
    _check_normalizer(checked["normalizer"])
    _check_growth([*checked["normalizer"], *checked["pre_tokenizer"]])
    _check_growth(checked["decoder"])
    _check_post(parts["post_processor"])
    check_added([token.content for token in added], _NAME)
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
        _refuse(name, f"{len(bytes(raw))} bytes, at most {MAX_PART} are read")
    value = _decode(bytes(raw), Any, f"{_NAME}: {name}")
    if not isinstance(value, dict | None):
        _refuse(name, "not an object")
    return value


def _model(model: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    for key, value in model.items():
        if key in MAX_ENTRIES:
            if (entries := _entries(bytes(value))) > MAX_ENTRIES[key]:
                _refuse(f"model.{key}", f"{entries} entries, at most {MAX_ENTRIES[key]} are read")
        elif len(bytes(value)) > MAX_TEXT:
            _refuse(f"model.{key[:40]!r}", f"longer than {MAX_TEXT} bytes")
        if key in _RANDOM and bytes(value) not in (b"null", b"0", b"0.0"):
            _refuse(f"model.{key}", "is set: the ids of a text would be drawn at random")
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
            _refuse(where, f"{len(inner)} steps, at most {MAX_STEPS} are done")
        for n, step in enumerate(inner):
            yield from _steps(step, f"{where}.{n}", depth + 1)
    elif isinstance(kind, str) and kind in STEPS and isinstance(value, dict):
        yield value, where
    else:
        _refuse(where, f"{str(kind)[:40]!r} is no kind of step that is known here")


def _check_growth(steps: list[tuple[Step, str]]) -> None:
    total = 1
    for n, (step, where) in enumerate(steps):
        total *= max(1, STEPS[step["type"]](step, where))
        if total > GROWTH or n >= MAX_STEPS:
            _refuse(where, f"the steps up to here could lengthen a text {GROWTH} times or more, or are more than {MAX_STEPS}")


def _check_normalizer(steps: list[tuple[Step, str]]) -> None:
    """Regular expressions that cost a text of n characters n^2 at most, and that are few."""
    found = [(where, text) for step, where in steps if isinstance(p := step.get("pattern"), dict) and isinstance(text := p.get("Regex"), str)]
    for where, text in found:
        if "(" in text or "|" in text or check_regex(text, f"{_NAME}: {where}") > OPEN:
            _refuse(where, "a normaliser's regular expression has no groups, no alternatives and one repetition")
    if len(found) > PLAIN_REGEX:
        _refuse(found[-1][0], f"{len(found)} regular expressions, at most {PLAIN_REGEX} are used")


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
                _refuse("post_processor", f"a list of {len(item)}, at most {MAX_STEPS} are used")


def _check_template(pieces: Any, described: Any) -> None:
    """A text used twice doubles; a token that is not described makes the library panic."""
    found = [next(iter(p.items())) for p in pieces if isinstance(p, dict) and p] if isinstance(pieces, list) else []
    names = [(kind, str(piece.get("id"))) for kind, piece in found if isinstance(piece, dict)]
    texts = [name for kind, name in names if kind == "Sequence"]
    if len(texts) != len(set(texts)):
        _refuse("post_processor", "a text is repeated")
    for kind, name in names:
        if kind == "SpecialToken" and not (isinstance(described, dict) and name in described):
            _refuse("post_processor", f"no token {name[:40]!r} is described")


def _replace(step: Step, where: str) -> int:
    """`pattern` is {"String"} or {"Regex"}; an expression may match nothing, before every character."""
    pattern, content = step.get("pattern"), step.get("content")
    if not isinstance(pattern, dict) or not isinstance(content, str) or len(pattern) != 1:
        _refuse(where, "a replacement has a pattern and a content")
    kind, text = next(iter(pattern.items()))
    if not isinstance(text, str) or not text:
        _refuse(where, "the empty text is replaced")
    size = _inserted(content, where)
    if kind != "String":
        if where.startswith("decoder"):
            _refuse(where, "a decoder replaces plain text only")
        return 1 + size
    return -(-size // len(text.encode("utf-8", "replace")))


def _inserted(text: Any, where: str) -> int:
    size = len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0
    if size > MAX_TEXT:
        _refuse(where, f"{size} bytes are inserted, at most {MAX_TEXT}")
    return size


def _split(step: Step, where: str) -> int:
    pattern = step.get("pattern")
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(text, str):
        check_regex(text, f"{_NAME}: {where}")
    return 1


def _precompiled(step: Step, where: str) -> int:
    """u32 size of a double-array trie, its units, then replacements that end in NUL; the library indexes it without looking."""
    text = step.get("precompiled_charsmap")
    try:
        data = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{_NAME}: {where}: precompiled_charsmap is not base64: {error}") from error
    size = int.from_bytes(data[:4], "little")
    if not 4 + 4 <= 4 + size <= len(data) <= MAX_PRECOMPILED or size % 4:
        _refuse(where, "precompiled_charsmap is not a table of replacements")
    if max(map(len, data[4 + size :].split(b"\0"))) > LONGEST:
        _refuse(where, f"precompiled_charsmap replaces a character by more than {LONGEST} bytes")
    return LONGEST // 2


def _short(step: Step, where: str) -> int:
    """Steps that insert a text of their own, once."""
    for value in step.values():
        _inserted(value, where)
    return 1


def _twice(step: Step, where: str) -> int:
    """Bytes as characters of two bytes."""
    return 2


_SEQUENCES = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_PLAIN = """
    NFC NFD NFKC NFKD Nmt Lowercase StripAccents Strip BertNormalizer Prepend
    BertPreTokenizer CharDelimiterSplit Digits FixedLength Metaspace Punctuation UnicodeScripts Whitespace WhitespaceSplit
    BPEDecoder ByteFallback CTC Fuse WordPiece
    """.split()  # noqa: SIM905
STEPS: dict[str, Growth] = {
    **dict.fromkeys(_PLAIN, _short),
    "ByteLevel": _twice,
    "Precompiled": _precompiled,
    "Replace": _replace,
    "Split": _split,
}


def _refuse(part: str, why: str) -> NoReturn:
    raise InputError(f"{_NAME}: {part}: {why}")
