"""The steps that a stranger's tokenizer.json may consist of: what each is checked for, and by how much it can lengthen a text.

In: a step as JSON, and where it stands. Out: a factor. Refused: InputError naming the place.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, NoReturn

from ..schemas.errors import InputError
from .tokenizer_regex import check_regex

NAME = "tokenizer.json"
MAX_TEXT = 256  # bytes that a step may insert
MAX_PRECOMPILED = 1 << 20
LONGEST = 64  # bytes of one entry of a Precompiled table; NFKC's longest has 33

Step = dict[str, Any]
Growth = Callable[[Step, str], int]


def refuse(part: str, why: str) -> NoReturn:
    """InputError about a part of the file."""
    raise InputError(f"{NAME}: {part}: {why}")


def _replace(step: Step, where: str) -> int:
    """`pattern` is {"String"} or {"Regex"}; an expression may match nothing, before every character."""
    pattern, content = step.get("pattern"), step.get("content")
    if not isinstance(pattern, dict) or not isinstance(content, str) or len(pattern) != 1:
        refuse(where, "a replacement has a pattern and a content")
    kind, text = next(iter(pattern.items()))
    if not isinstance(text, str) or not text:
        refuse(where, "the empty text is replaced")
    size = _inserted(content, where)
    if kind != "String":
        if where.startswith("decoder"):
            refuse(where, "a decoder replaces plain text only")
        return 1 + size
    return -(-size // len(text.encode("utf-8", "replace")))


def _inserted(text: Any, where: str) -> int:
    size = len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0
    if size > MAX_TEXT:
        refuse(where, f"{size} bytes are inserted, at most {MAX_TEXT}")
    return size


def _split(step: Step, where: str) -> int:
    pattern = step.get("pattern")
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(text, str):
        check_regex(text, f"{NAME}: {where}")
    return 1


def _precompiled(step: Step, where: str) -> int:
    """u32 size of a double-array trie, its units, then replacements that end in NUL; the library indexes it without looking."""
    text = step.get("precompiled_charsmap")
    try:
        data = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{NAME}: {where}: precompiled_charsmap is not base64: {error}") from error
    size = int.from_bytes(data[:4], "little")
    if not 4 + 4 <= 4 + size <= len(data) <= MAX_PRECOMPILED or size % 4:
        refuse(where, "precompiled_charsmap is not a table of replacements")
    if max(map(len, data[4 + size :].split(b"\0"))) > LONGEST:
        refuse(where, f"precompiled_charsmap replaces a character by more than {LONGEST} bytes")
    return LONGEST // 2


def _short(step: Step, where: str) -> int:
    """Steps that insert a text of their own, once."""
    for value in step.values():
        _inserted(value, where)
    return 1


def _twice(step: Step, where: str) -> int:
    """Bytes as characters of two bytes."""
    return 2


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
