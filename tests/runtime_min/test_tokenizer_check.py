"""What tokenizers of published models hold passes the checks unchanged; what grows or explodes does not (more in tests/attacks_hf)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

import tiny_tokenizers
from thinlm.runtime_min.tokenizer_check import checked_json
from thinlm.runtime_min.tokenizer_regex import WAYS, check_regex
from thinlm.schemas.errors import InputError

CASED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUBLISHED = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": CASED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k, possessive": CASED + r"|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CASED + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+",
    "deepseek, Han": r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{M}&&[^\p{Han}]]+" + CASED + r"?|\p{N}{1,3}",
    "thousands": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    "falcon": "[0-9][0-9][0-9]",
    "clip": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "spaces": " {2,}",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_expressions_pass(name: str) -> None:
    assert check_regex(PUBLISHED[name], name) < WAYS
    split = {"type": "Split", "pattern": {"Regex": PUBLISHED[name]}, "behavior": "Isolated", "invert": False}
    raw = json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": {"type": "BPE", "vocab": {}, "merges": []}})
    Tokenizer.from_buffer(checked_json(raw.encode()))


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece", "metaspace"])
def test_what_passes_is_unchanged(kind: Any) -> None:
    raw = tiny_tokenizers.build(kind).to_str().encode()
    checked = json.loads(checked_json(raw))
    assert checked == {key: value for key, value in json.loads(raw).items() if key not in ("truncation", "padding")}
    assert list(checked["model"]["vocab"]) == list(json.loads(raw)["model"]["vocab"])


NORMAL: dict[str, list[dict[str, Any]]] = {
    "albert": [
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {"type": "Replace", "pattern": {"String": "''"}, "content": '"'},
        *({"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase")),
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ],
    "llama 2": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
    "clip": [{"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Lowercase"}],
}


@pytest.mark.parametrize("name", NORMAL)
def test_published_normalisers_pass(name: str) -> None:
    normalizer = {"type": "Sequence", "normalizers": NORMAL[name]}
    raw = json.dumps({"version": "1.0", "added_tokens": [], "normalizer": normalizer, "model": {"type": "BPE", "vocab": {}, "merges": []}})
    assert json.loads(checked_json(raw.encode()))["normalizer"] == normalizer


@pytest.mark.parametrize(
    ("pattern", "ways"),
    [
        *(("", 0), ("abc", 0), ("a?", 1), ("a*", 4), ("a+?", 4), ("a*|b?", 4)),
        *(("a*b*", 8), ("(a*|b)c?", 5), ("a{3}", 0), ("a{,3}", 2), ("a{0,1000}", 4), ("x{,}{", 0)),
    ],
)
def test_ways(pattern: str, ways: float) -> None:
    assert check_regex(pattern, "x") == ways


@pytest.mark.parametrize("pattern", ["(a*)*", "(?:a|b)+", "(?:(?:a?))*", "a**", "a{2}{3}", "(?:a{1,2}){2}", "((a*))?*", "(?=a*)*", r"[a]]*+*"])
def test_repeated_repetitions_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="x: a regular expression"):
        check_regex(pattern, "x")
