"""A model's tokenizer: text to ids and back, its special tokens, and the ids that end a generation.

In: the bytes of a checkpoint's or artifact's tokenizer files (FILES), by name. Out: `Tokenizer`.
1. `tokenizer.json` is the tokenizer, including what it puts around a text (`add_bos_token` elsewhere says nothing beside it, as in
   transformers 5). Its padding and truncation are switched off: a prompt is never cut silently.
2. `tokenizer_config.json` names the special tokens (as text or as {"content": text}), else the older `special_tokens_map.json` does. It may
   declare added tokens that tokenizer.json lacks.
3. A generation ends at any id that generation_config.json, config.json (its text_config too) or the tokenizer's own eos_token names:
   published checkpoints often have only one of the three right.
`clean_up_tokenization_spaces` is not followed: it drops spaces that the model wrote (transformers ignores it for BPE, too).
Refused (InputError): no tokenizer.json, files that are too large or malformed, ids that aren't whole numbers, text that is not Unicode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ..schemas.errors import InputError

if TYPE_CHECKING:
    import tokenizers

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json", "chat_template.jinja")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")

MAX_BYTES = 128 << 20  # the largest published tokenizer.json have 35 MB
SURROGATES = "the text holds lone surrogates, so it is not Unicode; read it as UTF-8"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Text to ids and back. `special` maps bos_token, eos_token, ... to their text; `vocab_size` is the highest id + 1."""

    backend: tokenizers.Tokenizer
    special: Mapping[str, str]
    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Tokenizer:
        """The tokenizer that the files named in FILES describe; other names are ignored. Raises InputError."""
        backend = _backend(files)
        config = read_json(files, "tokenizer_config.json")
        _declare(backend, config)
        special = _special(config, read_json(files, "special_tokens_map.json"))
        size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        hidden = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        eos = _eos_ids(files, _id(backend, special.get("eos_token")))
        return cls(backend, MappingProxyType(special), size, _id(backend, special.get("bos_token")), eos, hidden)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; with `add_special_tokens` also what the tokenizer puts around it (a BOS, say). Special tokens written
        in the text become their ids."""
        try:
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            raise InputError(SURROGATES) from error

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids outside the vocabulary have none, bytes that make no character come out as U+FFFD."""
        known = [int(i) for i in ids if 0 <= i < self.vocab_size]
        return self.backend.decode(known, skip_special_tokens=skip_special_tokens)

    def shows(self, token: int) -> bool:
        """Whether an id can add to decoded text: neither special nor outside the vocabulary."""
        return 0 <= token < self.vocab_size and token not in self.special_ids


def read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The JSON object in one file, {} when the file is absent. Raises InputError for anything else."""
    raw = files.get(name, b"{}")
    if len(raw) > MAX_BYTES:
        raise InputError(f"{name}: {len(raw)} bytes, more than {MAX_BYTES} allowed for a tokenizer file")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{name}: nested too deeply") from error


def _backend(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    import tokenizers

    if "tokenizer.json" not in files:
        raise InputError(_missing(files))
    raw = files["tokenizer.json"]
    if len(raw) > MAX_BYTES:
        raise InputError(f"tokenizer.json: {len(raw)} bytes, more than {MAX_BYTES} allowed for a tokenizer file")
    try:
        backend = tokenizers.Tokenizer.from_buffer(raw)
    except ValueError as error:
        raise InputError(f"tokenizer.json: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def _missing(files: Mapping[str, bytes]) -> str:
    older = [name for name in ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt") if name in files]
    found = f"only the older {' and '.join(older)}" if older else "no tokenizer at all"
    return (
        f"tokenizer.json is missing; there is {found}. Download the repository's tokenizer.json, or write one with "
        '`python -c \'from transformers import AutoTokenizer as A; A.from_pretrained("DIR").save_pretrained("DIR")\'`'
    )


def _declare(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add the tokens that tokenizer_config.json declares and tokenizer.json lacks; they must get the ids declared."""
    import tokenizers

    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or not all(key.isdecimal() and text_of(entry) for key, entry in declared.items()):
        raise InputError("tokenizer_config.json: added_tokens_decoder must map ids to tokens")
    for key, entry in sorted(declared.items(), key=lambda item: int(item[0])):
        text = text_of(entry) or ""
        if backend.token_to_id(text) is None:
            flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            backend.add_tokens([tokenizers.AddedToken(text, **flags)])
            if backend.token_to_id(text) != int(key):
                raise InputError(f"tokenizer_config.json: {text!r} is declared as id {key}, tokenizer.json leaves it {backend.token_to_id(text)}")


def text_of(entry: object) -> str | None:
    """A token's text, written as a string or as {"content": string}; None for anything else."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _special(config: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, str]:
    found = ((name, text_of(config[name] if name in config else older.get(name))) for name in SPECIAL)
    return {name: text for name, text in found if text is not None}


def _eos_ids(files: Mapping[str, bytes], own: int | None) -> tuple[int, ...]:
    config, generation = read_json(files, "config.json"), read_json(files, "generation_config.json")
    inner = config.get("text_config")
    found: list[int] = []
    for name, holder in (("generation_config.json", generation), ("config.json", config), ("config.json", inner)):
        value = holder.get("eos_token_id") if isinstance(holder, dict) else None
        for item in value if isinstance(value, list) else [value]:
            if item is not None and (type(item) is not int or item < 0):
                raise InputError(f"{name}: eos_token_id {value!r} is neither an id nor a list of ids")
            found += [] if item is None else [item]
    return tuple(dict.fromkeys(found if own is None else [*found, own]))


def _id(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return None if text is None else backend.token_to_id(text)
