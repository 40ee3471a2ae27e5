"""Reads a config.json so that nothing in it is ignored by accident.

In: the parsed object, and the values that a family assumes for missing keys (as transformers has them). Every key is asked for by name and
type; `finish` refuses what nobody asked for. Refused with FrontendError, naming the key: a missing key without default, a wrong type (true
is no number, 3.0 no integer, null only where it has a meaning), a value outside an expected set, an unread key.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from ...schemas.errors import FrontendError

T = TypeVar("T", int, float, bool, str, list, dict)

MAX_SIZE = 1 << 31
_MISSING = object()

# Keys that change no number of a forward pass: training, generation defaults, bookkeeping.
IGNORED = frozenset(
    """
    _name_or_path architectures attention_dropout bad_words_ids begin_suppress_tokens bos_token_id cache_implementation
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id hidden_dropout id2label initializer_range is_decoder label2id length_penalty
    max_length min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_scores pad_token_id prefix problem_type remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p unsloth_fixed
    unsloth_version use_bfloat16 use_cache
    """.split()  # noqa: SIM905
)
# Keys of every transformers config that would change the model; (values that don't).
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False,),
}
_HINTS = {"quantization_config": "; pre-quantised checkpoints are not read yet, give the unquantised one"}


class ConfigReader:
    """One JSON object of a config file; `where` is its place for messages ("config.json: text_config")."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        self._values, self._defaults, self._where = values, defaults, where
        self._read: set[str] = set()
        self._children: dict[str, ConfigReader] = {}

    def refuse(self, key: str, why: str) -> FrontendError:
        """The error to raise about `key`."""
        return FrontendError(f"{self._where}: {key}={self._value(key)!r:.120}: {why}{_HINTS.get(key, '')}")

    def has(self, key: str) -> bool:
        """True when the file gives `key` a value other than null."""
        return self._values.get(key) is not None

    def get(self, key: str, kind: type[T]) -> T:
        """The value, a `kind` (a JSON integer also serves as float), or the family's default."""
        value = self.optional(key, kind)
        if value is None:
            raise self.refuse(key, f"must be {kind.__name__}, not null")
        return value

    def optional(self, key: str, kind: type[T]) -> T | None:
        """As `get`, but null is None."""
        value = self._given(key)
        if value is None or _is(value, kind):
            return value
        if kind is float and _is(value, int) and abs(value) < 1 << 63:
            return kind(value)
        raise self.refuse(key, f"must be {kind.__name__}")

    def size(self, key: str) -> int:
        """A positive integer below MAX_SIZE."""
        return self._check_size(key, self.get(key, int))

    def optional_size(self, key: str) -> int | None:
        """As `size`, but null is None."""
        value = self.optional(key, int)
        return None if value is None else self._check_size(key, value)

    def number(self, key: str, low: float, high: float) -> float:
        """A number from `low` to `high`: a range in which float32 neither overflows nor underflows."""
        value = self.get(key, float)
        if not low <= value <= high:
            raise self.refuse(key, f"must lie between {low:g} and {high:g}")
        return value

    def expect(self, key: str, allowed: Collection[Any]) -> Any:
        """The value if it is one of `allowed`; true and 1 are different values."""
        value = self._given(key)
        if not any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
            raise self.refuse(key, f"only {', '.join(map(repr, allowed))} can be expressed")
        return value

    def child(self, key: str, defaults: Mapping[str, Any]) -> ConfigReader:
        """The reader of the object under `key`, made on first use; a missing or null object is empty. `finish` covers it."""
        if key not in self._children:
            value = self._values.get(key)
            if value is not None and not isinstance(value, dict):
                raise self.refuse(key, "must be an object")
            self._children[key] = ConfigReader(value or {}, defaults, f"{self._where}: {key}")
            self._read.add(key)
        return self._children[key]

    def ignore(self, *keys: str) -> None:
        """Say that this family has no use for `keys`."""
        self._read.update(keys)

    def finish(self) -> None:
        """FrontendError naming every key, nested ones included, that was not read and is not on the shared lists."""
        for reader in (self, *self._children.values()):
            for key, neutral in NEUTRAL.items():
                if key in reader._values and key not in reader._read:
                    reader.expect(key, neutral)
        if unread := self._unread():
            shown = ", ".join(key[:60].encode("unicode_escape").decode() for key in unread[:6]) + (", ..." if len(unread) > 6 else "")
            raise FrontendError(f"{self._where}: no meaning is known for {shown}")

    def _unread(self) -> list[str]:
        own = [key for key in self._values if key not in self._read | IGNORED]
        return own + [f"{name}.{key}" for name, child in self._children.items() for key in child._unread()]

    def _given(self, key: str) -> Any:
        """Mark `key` as read; its value or default."""
        self._read.add(key)
        if (value := self._value(key)) is _MISSING:
            raise FrontendError(f"{self._where}: {key} is missing")
        return value

    def _value(self, key: str) -> Any:
        return self._values.get(key, self._defaults.get(key, _MISSING))

    def _check_size(self, key: str, value: int) -> int:
        if not 1 <= value < MAX_SIZE:
            raise self.refuse(key, f"must be from 1 to {MAX_SIZE - 1}")
        return value


def _is(value: Any, kind: type) -> bool:
    """Exactly of this type: true is no integer; a float must be finite."""
    return type(value) is kind and (kind is not float or math.isfinite(value))
