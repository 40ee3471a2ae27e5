"""A model's tokenizer: text to ids and back, its special tokens, and the ids that end a generation.

In: the bytes of a checkpoint's or artifact's tokenizer files (FILES), by name. Out: `Tokenizer`.
1. `tokenizer.json` is the tokenizer, including what it puts around a text (`add_bos_token` elsewhere says nothing beside it, as in
   transformers 5). Its padding and truncation are switched off: a prompt is never cut silently.
2. `tokenizer_config.json` names the special tokens (as text or as {"content": text}), else the older `special_tokens_map.json` does. It may
   declare added tokens that tokenizer.json lacks.
3. A generation ends at any id that generation_config.json, config.json (its text_config too) or the tokenizer's own eos_token names:
   published checkpoints often have only one of the three right.
`clean_up_tokenization_spaces` is not followed: it drops spaces that the model wrote (transformers ignores it for BPE, too).
A tokenizer is a small program of a stranger's: tokenizer_check.py bounds what it is and how it lengthens a text; encoding runs for at most
SECONDS + bytes / BYTES_PER_SECOND of processor time, over all texts together (published tokenizers do 1 MB/s).
Refused (InputError): no tokenizer.json, files that are too large or malformed, ids that aren't whole numbers, two tokens of one id, text
that is not Unicode, and a tokenizer that takes too long, or makes its library panic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ..schemas.errors import InputError
from .limited import guarded, limited
from .tokenizer_check import check_added, checked_json, require_modest

if TYPE_CHECKING:
    import tokenizers

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json", "chat_template.jinja")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")

MAX_BYTES = 16 << 20  # of the files beside tokenizer.json; published ones have up to 2 MB
MAX_ID = 1 << 22  # ids end below this; the largest published vocabularies have 262,144
MAX_EOS = 64
SECONDS, BYTES_PER_SECOND = 3.0, 100_000
LOADING = 60.0
SURROGATES = "the text holds lone surrogates, so it is not Unicode; read it as UTF-8"


@dataclass(slots=True)
class _Time:
    """What is left of a tokenizer's processor time."""

    seconds: float = SECONDS

    def spend(self, size: int, call: Callable[[], list[int]]) -> list[int]:
        """call() on a text of `size` bytes, for as long as is left."""
        self.seconds += size / BYTES_PER_SECOND
        ids, used = limited(call, self.seconds, "tokenizer.json: encoding a text")
        self.seconds = min(SECONDS, self.seconds - used)
        return ids


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Text to ids and back. `special` maps bos_token, eos_token, ... to their text; `vocab_size` is the highest id + 1."""

    backend: tokenizers.Tokenizer
    special: Mapping[str, str]
    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    _time: _Time = field(default_factory=_Time)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Tokenizer:
        """The tokenizer that the files named in FILES describe; other names are ignored. Raises InputError."""
        backend = _backend(files)
        config = read_json(files, "tokenizer_config.json")
        _declare(backend, config)
        special = _special(config, read_json(files, "special_tokens_map.json"))
        size = _highest_id(backend) + 1
        hidden = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        eos = _eos_ids(files, _id(backend, special.get("eos_token")))
        return cls(backend, MappingProxyType(special), size, _id(backend, special.get("bos_token")), eos, hidden)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; with `add_special_tokens` also what the tokenizer puts around it (a BOS, say). Special tokens written
        in the text become their ids."""
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise InputError(SURROGATES) from error
        # encode_batch lets go of the interpreter lock, encode does not
        return self._time.spend(size, lambda: self.backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids outside the vocabulary have none, bytes that make no character come out as U+FFFD."""
        known = [int(i) for i in ids if 0 <= i < self.vocab_size]
        return guarded(lambda: self.backend.decode(known, skip_special_tokens=skip_special_tokens), "tokenizer.json")

    def shows(self, token: int) -> bool:
        """Whether an id can add to decoded text: neither special nor outside the vocabulary."""
        return 0 <= token < self.vocab_size and token not in self.special_ids


def read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The JSON object in one file, {} when the file is absent. Raises InputError for anything else."""
    raw = files.get(name, b"{}")
    require_modest(raw, name, MAX_BYTES)
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
    checked = checked_json(files["tokenizer.json"])
    # Loading keeps the interpreter lock, so it can't be cut short; that it is short was checked.
    backend, _ = limited(lambda: tokenizers.Tokenizer.from_buffer(checked), LOADING, "tokenizer.json")
    backend.no_padding()
    backend.no_truncation()
    return backend


def _highest_id(backend: tokenizers.Tokenizer) -> int:
    """The highest id, -1 for no tokens; InputError when it is too high, or when two tokens of the vocabulary have one id."""
    ids = list(backend.get_vocab(with_added_tokens=True).values())
    if len(set(ids)) != len(ids):  # an added token may take the id of another: it comes first
        ids = list(backend.get_vocab(with_added_tokens=False).values())
        if len(set(ids)) != len(ids):
            raise InputError("tokenizer.json: two tokens of its vocabulary have one id, so ids have no certain text")
        ids += backend.get_added_tokens_decoder()
    highest = max(ids, default=-1)
    if highest >= MAX_ID:
        raise InputError(f"tokenizer.json: id {highest}, at most {MAX_ID - 1} are used")
    return highest


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
    if not isinstance(declared, dict) or not all(_is_id(key) and isinstance(e, dict) and text_of(e) for key, e in declared.items()):
        raise InputError("tokenizer_config.json: added_tokens_decoder must map ids to tokens")
    check_added([e["content"] for e in declared.values()], "tokenizer_config.json")
    wanted = [(int(key), e) for key, e in declared.items() if backend.token_to_id(e["content"]) is None]
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    wanted.sort(key=lambda item: item[0])
    # All at once: the library builds its table of added tokens anew each time.
    backend.add_tokens([tokenizers.AddedToken(e["content"], **{name: bool(e.get(name)) for name in flags}) for _, e in wanted])
    for id_, e in wanted:
        if (got := backend.token_to_id(e["content"])) != id_:
            raise InputError(f"tokenizer_config.json: {e['content'][:60]!r} is declared as id {id_}, tokenizer.json leaves it {got}")


def _is_id(key: str) -> bool:
    return len(key) < 10 and key.isascii() and key.isdecimal()


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
        items = value if isinstance(value, list) else [value]
        if len(items) > MAX_EOS or not all(item is None or (type(item) is int and 0 <= item < MAX_ID) for item in items):
            raise InputError(f"{name}: eos_token_id {str(value)[:60]} is neither an id nor a list of up to {MAX_EOS} ids")
        for item in items:
            found += [] if item is None else [item]
    return tuple(dict.fromkeys(found if own is None else [*found, own]))


def _id(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return None if text is None else backend.token_to_id(text)
