"""Fuzz targets around a tokenizer: its own file, the files beside it, regular expressions, and chat templates' containers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from .mutate import TEXTS, json_case
from .targets import Target, of_both

SAMPLE = "The quick brown fox, aaaa " + "a" * 300 + "\n\nüber 東京 🙂 <s> 12345 " + " " * 40 + "x\r\n\t'll"
PIECES = (
    *("a", "b", " ", ".", r"\s", r"\S", r"\p{L}", r"\p{N}", r"\w", "[a-z]"),
    *(r"[^\s\p{L}]", "[[:alpha:]]", "[a&&[b]]", r"\x{41}", "é", "🙂", "^", "$", r"\b", r"\z"),
    *("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "++", "{,5}", "|", "(", ")", "(?:", "(?=", "(?!"),
    *("(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?m-i:", "(?x)"),
    *(r"\1", r"\g<1>", "(?<n>", "[", "]", "\\", "{", "}", "-", "[^", "#", r"\Q", r"\K", r"\R", r"\X", r"\h", r"\A", r"\G"),
)
STEPS: dict[str, list[Any]] = {
    "normalizer": [
        *({"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "ByteLevel")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Precompiled", "precompiled_charsmap": "EAAAAAEAAAACAAAAAwAAAAQAAABhAGIA"},
    ],
    "pre_tokenizer": [
        *({"type": kind} for kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts")),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "CharDelimiterSplit", "delimiter": "x"},
        {"type": "FixedLength", "length": 5},
        {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "MergedWithNext", "invert": False},
        {"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": True},
    ],
    "decoder": [
        *({"type": kind} for kind in ("ByteFallback", "Fuse", "ByteLevel")),
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ],
}
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["▁a", -1.5], ["aa", -2.0]], "byte_fallback": False}
WORDPIECE = {
    **{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "the": 3},
}
WORDLEVEL = {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "fox": 2}}


def _seeds(work: Path) -> list[bytes]:
    """Small ones of every model, and the trained ones."""
    import tiny_tokenizers

    trained = [tiny_tokenizers.build(kind).to_str().encode() for kind in ("byte-level", "sentencepiece", "metaspace")]
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None}
    base |= {"post_processor": json.loads(trained[0])["post_processor"], "decoder": None}
    small = [json.dumps(base | {"model": model}).encode() for model in (UNIGRAM, WORDPIECE, WORDLEVEL)]
    return [*trained, *small]


def _case(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Other steps in front of a mutation; half of the time the bulky model is left alone."""
    value = json.loads(rng.choice(seeds))
    for part, steps in STEPS.items():
        if rng.random() < 0.5:
            chosen = rng.choices(steps, k=rng.randrange(1, 4))
            value[part] = chosen[0] if len(chosen) == 1 else {"type": "Sequence", LISTS[part]: chosen}
    if rng.random() < 0.1:
        return of_both(rng, [json.dumps(value).encode()])
    rest = {key: value[key] for key in value if key != "model" or len(str(value[key])) < 2000}
    changed = json_case(rng, json.dumps(rest).encode(), compact=False)
    model = b'"model":' + json.dumps(value["model"]).encode()
    return changed if b'"model"' in changed or changed[-1:] != b"}" else changed[:-1] + (b"," if len(changed) > 2 else b"") + model + b"}"


def _read(work: Path, case: bytes) -> object:
    from thinlm.runtime_min.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_files({"tokenizer.json": case})
    ids = tokenizer.encode(SAMPLE)
    return tokenizer.decode(ids), tokenizer.decode(range(0, tokenizer.vocab_size, max(1, tokenizer.vocab_size // 50)), skip_special_tokens=False)


def _regex_case(rng: random.Random, seeds: list[bytes]) -> bytes:
    return "".join(rng.choices(PIECES, k=rng.choice((2, 4, 8, 16)))).encode()


def _read_regex(work: Path, case: bytes) -> object:
    """A pattern that the check lets through, on every kind of text, in both places."""
    from thinlm.runtime_min.tokenizer import Tokenizer

    pattern = {"Regex": case.decode("utf-8", "replace")}
    base = {"version": "1.0", "added_tokens": [{**ADDED, "id": 9, "content": "<a a>"}], "model": WORDLEVEL}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    replace = {"type": "Replace", "pattern": pattern, "content": "ab"}
    outcomes = []
    for part in ({"pre_tokenizer": split}, {"normalizer": replace}):
        tokenizer = Tokenizer.from_files({"tokenizer.json": json.dumps(base | part).encode()})
        outcomes += [tokenizer.encode(text) for text in (SAMPLE, "a" * 2000, " " * 2000, "\n" * 2000, "ab" * 1000, "s" * 2000, "")]
    return outcomes


ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
CONFIG: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False},
    "unk_token": None,
    "added_tokens_decoder": {"420": {**ADDED, "content": "<new>"}, "1": {**ADDED, "content": "<s>", "special": True}},
    "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "x"}],
    "model_max_length": 10**30,
}


def _beside(work: Path) -> list[bytes]:
    (work / "tokenizer.json").write_bytes(_seeds(work)[0])
    others = {"older": {"eos_token": "</s>"}, "generation": {"eos_token_id": [1, 2]}, "model": {"eos_token_id": 2}}
    return [json.dumps({"config": CONFIG, **others}).encode()]


def _read_beside(work: Path, case: bytes) -> object:
    """All files beside tokenizer.json, from one document of four."""
    from thinlm.runtime_min.chat import ChatTemplate
    from thinlm.runtime_min.tokenizer import Tokenizer

    try:
        value = json.loads(case)
    except (ValueError, RecursionError):
        value = None
    names = {"config": "tokenizer_config.json", "older": "special_tokens_map.json", "generation": "generation_config.json", "model": "config.json"}
    parts = value if isinstance(value, dict) else {"config": None}
    files = {name: json.dumps(parts[key]).encode() if value is not None else case for key, name in names.items() if key in parts}
    tokenizer = Tokenizer.from_files({"tokenizer.json": (work / "tokenizer.json").read_bytes(), **files})
    tokenizer.encode(SAMPLE)
    return ChatTemplate.from_files(files, tokenizer.special)


WORDS = (
    *("{{", "}}", "{%", "%}", "{#", "#}", " for ", " in ", " if ", " endfor ", " endif ", " set ", " macro m() ", " endmacro ", " call ", " filter "),
    *("messages", "m", "m.role", "x", "range(9)", "range(10**9)", "namespace()", "loop", "self", "''", "'a'", "9", "[1]", "{}", "True", "none", "("),
    *(")", "[", "]", ".", "|", ",", "=", "*", "**", "~", "+", "-", "%", "//"),
    *("|list", "|join", "|tojson", "|upper", "|length", "|format", "|map", "\n"),
    *(".__class__", "['__init__']", "m()", "raise_exception('x')", "strftime_now('%Y')", " is defined", " not ", " else ", " break ", " generation "),
)


def _template_case(rng: random.Random, seeds: list[bytes]) -> bytes:
    words = rng.choices(WORDS, k=rng.choice((4, 12, 30)))
    body = "".join(words) if rng.random() < 0.5 else "{% for m in messages %}{{ " + "".join(words) + " }}{% endfor %}"
    return (body + rng.choice(("", *TEXTS))).encode("utf-8", "replace")


def _read_template(work: Path, case: bytes) -> object:
    from thinlm.runtime_min.chat import ChatTemplate

    files = {"chat_template.jinja": case}
    return ChatTemplate.from_files(files, {"bos_token": "<s>"}).render([{"role": "user", "content": "hi"}])


TARGETS: dict[str, Target] = {
    "tokenizer": Target(start=_seeds, make=_case, read=_read),
    "regex": Target(start=lambda work: [b"a"], make=_regex_case, read=_read_regex),
    "special": Target(start=_beside, make=of_both, read=_read_beside),
    "template": Target(start=lambda work: [b""], make=_template_case, read=_read_template),
}
