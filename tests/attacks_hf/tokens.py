"""Attacks on tokenizer.json and its companions. Those of SLOW pass every check of the file and end at the limit of time."""

from __future__ import annotations

import base64
import json
import os
import struct
from typing import Any

from attacks_hf.folder import Attack, deep, edited, grown, instead, put, tokenizer, tokens

NAME, CONFIG = "tokenizer.json", "tokenizer_config.json"


def _replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def _normal(*steps: Any) -> Attack:
    return tokens(normalizer={"type": "Sequence", "normalizers": list(steps)})


def _split(pattern: str) -> Attack:
    return tokens(pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})


def _model(**fields: Any) -> Attack:
    return edited(NAME, lambda t: t["model"].update(fields))


def _charsmap(data: bytes) -> Attack:
    return _normal({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()})


def _nested(kind: str, key: str, depth: int) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        step = {"type": kind, key: [step]}
    return step


def _added(*contents: str, **fields: Any) -> Attack:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    return tokens(added_tokens=[{"id": 1000 + n, "content": text, **flags, **fields} for n, text in enumerate(contents)])


def _template(*pieces: Any, ids: int = 1) -> Attack:
    special = {"x": {"id": "x", "ids": [1] * ids, "tokens": ["<s>"] * ids}}
    return tokens(post_processor={"type": "TemplateProcessing", "single": list(pieces), "pair": list(pieces), "special_tokens": special})


def _declared(table: Any) -> Attack:
    return put(CONFIG, json.dumps({"added_tokens_decoder": table}))


A = {"Sequence": {"id": "A", "type_id": 0}}
X = {"SpecialToken": {"id": "x", "type_id": 0}}
DOUBLE = _replace("a", "aa")
ATTACKS: dict[str, tuple[Attack, str]] = {
    "empty": (put(NAME, b""), "tokenizer.json: "),
    "not JSON": (put(NAME, b"\x80\x04pickle"), "tokenizer.json: "),
    "a list": (put(NAME, b"[]"), "Expected `object`"),
    "no model": (put(NAME, b'{"version": "1.0"}'), "`model`"),
    "a model of no kind": (tokens(model={"type": "Evil"}), "tokenizer.json: "),
    "a model that is text": (tokens(model="BPE"), "tokenizer.json: "),
    "a model without vocabulary": (tokens(model={"type": "BPE"}), "tokenizer.json: "),
    "nested deep": (tokens(normalizer=json.loads(deep(400))), "not an object"),
    "nested beyond the stack": (put(NAME, b'{"model":' + deep(500_000).encode() + b"}"), "tokenizer.json: "),
    "a part nested beyond the stack": (put(NAME, b'{"model":{},"decoder":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"), "tokenizer.json: "),
    "100 GB of holes": (grown(NAME, 100 << 30), "at most"),
    "70 MB of spaces": (put(NAME, tokenizer() + b" " * 70_000_000), "at most"),
    "5 million values": (put(NAME, b'{"model":{"x":[' + b"1," * 5_000_000 + b"1]}}"), "values, more than"),
    "4 million lists": (put(NAME, b'{"model":{"vocab":[' + b"[]," * 2_000_000 + b"[]]}}"), "tokenizer.json: "),
    "4 million lists as a normaliser": (put(NAME, b'{"model":{},"normalizer":[' + b"[]," * 2_000_000 + b"[]]}"), "at most"),
    "4 million lists as added tokens": (put(NAME, b'{"model":{},"added_tokens":[' + b"[]," * 2_000_000 + b"[]]}"), "added_tokens"),
    "a lone surrogate": (put(NAME, tokenizer().replace(b'"<pad>"', b'"\\ud800"', 1)), "tokenizer.json: "),
    "a vocabulary of fractions": (_model(vocab={"a": 1.5}), "tokenizer.json: "),
    "a negative id": (_model(vocab={"a": -1}), "tokenizer.json: "),
    "an id of 2^32 - 1": (_model(vocab={"a": (1 << 32) - 1}, merges=[]), "at most 4194303 are used"),
    "an id of 2^32": (_model(vocab={"a": 1 << 32}, merges=[]), "tokenizer.json: "),
    "two tokens of one id": (_model(vocab={"a": 7, "b": 7}, merges=[]), "have one id"),
    "merges of tokens that are not there": (_model(merges=[["nowhere", "else"]]), "tokenizer.json: "),
    "merges of three": (_model(merges=["a b c"]), "tokenizer.json: "),
    "merges of numbers": (_model(merges=[1, 2]), "tokenizer.json: "),
    "dropout": (_model(dropout=0.5), "drawn at random"),
    "dropout behind a second key": (put(NAME, tokenizer().replace(b'"dropout":null', b'"dropout":null,"dropout":0.5', 1)), "drawn at random"),
    "a prefix of a megabyte": (_model(continuing_subword_prefix="x" * 1_000_000), "longer than"),
    "an unknown token of a megabyte": (_model(unk_token="x" * 1_000_000), "longer than"),
    "Unigram without its unknown": (tokens(model={"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}), "tokenizer.json: "),
    "Unigram of nothing": (tokens(model={"type": "Unigram", "unk_id": 0, "vocab": []}), "tokenizer.json: "),
    "a vocabulary of 600,000": (_model(vocab={f"{n:x}": n for n in range(600_000)}), "entries, at most"),
    "a Unigram of 600,000": (tokens(model={"type": "Unigram", "unk_id": 0, "vocab": [[f"{n:x}", -1.0] for n in range(600_000)]}), "entries, at most"),
    "700,000 merges": (_model(merges=[["a", "b"]] * 700_000), "entries, at most"),
    "700,000 merges as texts": (_model(merges=["a b"] * 700_000), "entries, at most"),
    "two models": (put(NAME, tokenizer()[:-1] + b',"model":{"type":"Evil"}}'), "tokenizer.json: "),
    "a doubling chain of 40": (_normal(*[DOUBLE] * 40), "could lengthen"),
    "a doubling chain, hidden in sequences": (_normal(*[{"type": "Sequence", "normalizers": [DOUBLE] * 5}] * 8), "could lengthen"),
    "two times 3,000": (_normal(_replace("a", "a" * 3000), _replace("a", "a" * 3000)), "inserted"),
    "bytes as characters, 40 times": (tokens(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 40}), "could lengthen"),
    "10,000 steps": (_normal(*[{"type": "NFC"}] * 10_000), "at most 64 are done"),
    "64 steps of 64 steps": (_normal(*[{"type": "Sequence", "normalizers": [{"type": "NFC"}] * 64}] * 64), "more than 64"),
    "sequences 40 deep": (tokens(normalizer=_nested("Sequence", "normalizers", 40)), "no kind of step"),
    "the empty text replaced": (_normal(_replace("", "x")), "empty text"),
    "the empty expression replaced": (_normal(_replace("", "x", "Regex")), "empty text"),
    "a prefix of 10 MB": (_normal({"type": "Prepend", "prepend": "x" * 10_000_000}), "at most"),
    "a prefix of 1 MB": (_normal({"type": "Prepend", "prepend": "x" * 1_000_000}), "inserted"),
    "an unknown step": (_normal({"type": "Exec", "command": "true"}), "no kind of step"),
    "a step that is a list": (_normal([]), "no kind of step"),
    "a step without a type": (_normal({}), "no kind of step"),
    "a pattern of two kinds": (_normal({"type": "Replace", "pattern": {"String": "a", "Regex": "a"}, "content": "b"}), "a pattern"),
    "a pattern that is text": (_normal({"type": "Replace", "pattern": "a", "content": "b"}), "a pattern"),
    "a table that is not base64": (_normal({"type": "Precompiled", "precompiled_charsmap": "!!!"}), "not base64"),
    "a table of nothing": (_normal({"type": "Precompiled", "precompiled_charsmap": ""}), "not a table"),
    "a table that is null": (_normal({"type": "Precompiled", "precompiled_charsmap": None}), "not a table"),
    "a table that ends early": (_charsmap(struct.pack("<I", 1 << 20) + b"\0" * 64), "not a table"),
    "a table of long replacements": (_charsmap(struct.pack("<I4I", 16, 1, 2, 3, 4) + b"x" * 100_000), "more than 64 bytes"),
    "a regular expression that explodes": (_split("(a+)+$"), "can take for ever"),
    "alternatives that explode": (_split("^(a|a)*b"), "can take for ever"),
    "options that explode": (_split("(?:a?a?)*b"), "can take for ever"),
    "options in a row": (_split("a?" * 40 + "a" * 40), "too many repetitions"),
    "repetitions in a row": (_split("a*a*a*a*a*a*b"), "too many repetitions"),
    "a repetition repeated": (_split("(a{1,9}){1,9}"), "can take for ever"),
    "a back reference": (_split(r"(a*)\1b"), "escape"),
    "a call to itself": (_split(r"(?<n>a\g<n>?)"), "no published tokenizer"),
    "a callout": (_split("(*FAIL)"), "no published tokenizer"),
    "an absent operator": (_split("(?~ab)"), "no published tokenizer"),
    "a condition": (_split("(a)(?(1)b|c)"), "no published tokenizer"),
    "a comment that hides a group": (_split("(?x)# ( \n(a+)+$"), "no published tokenizer"),
    "an escape that hides a group": (_split(r"\c[(a+)+$]"), "escape"),
    "a count of a million": (_split("a{1000000}"), "counts beyond"),
    "a pattern of 10 MB": (_split("a|" * 5_000_000), "at most"),
    "a pattern of 100 KB": (_split("a|" * 50_000), "at most 4096"),
    "groups nested deep": (_split("(" * 1000 + ")" * 1000), "nest deeper"),
    "a pattern that is malformed": (_split("[a-"), "not closed"),
    "a pattern that Oniguruma refuses": (_split("[z-a]"), "tokenizer.json: "),
    "a normaliser's group": (_normal(_replace("(a|b)c", "x", "Regex")), "no groups"),
    "a normaliser's repetitions": (_normal(_replace("a*a*b", "x", "Regex")), "one repetition"),
    "nine expressions": (_normal(*[_replace("b", "", "Regex")] * 9), "at most 4 are used"),
    "a decoder's expression": (tokens(decoder=_replace("(a+)+$", "x", "Regex")), "plain text only"),
    "a decoder that doubles": (tokens(decoder={"type": "Sequence", "decoders": [DOUBLE] * 40}), "could lengthen"),
    "the text 1,000 times": (_template(*[A] * 1000), "repeated"),
    "the text twice": (_template(A, A), "repeated"),
    "the text twice, 30 times": (
        tokens(post_processor={"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": [A, A]}] * 30}),
        "repeated",
    ),
    "1,000,000 ids around a text": (_template(X, A, ids=1_000_000), "at most"),
    "1,000 ids around a text": (_template(X, A, ids=1000), "at most 64"),
    "a template without its tokens": (_template({"SpecialToken": {"id": "y", "type_id": 0}}, A), "'y' is described"),
    "a post-processor that is a list": (tokens(post_processor=[]), "not an object"),
    "an added token of 1 MB": (_added("x" * 1_000_000), "added tokens"),
    "100,000 added tokens": (_added(*(f"<{n}>" for n in range(100_000))), "added tokens"),
    "an added token without text": (tokens(added_tokens=[{"id": 1}]), "added_tokens"),
    "added tokens that are text": (tokens(added_tokens="x"), "added_tokens"),
    "a pipe": (instead(NAME, os.mkfifo), "not a regular file"),
    "config: not an object": (put(CONFIG, b"7"), "tokenizer_config.json: "),
    "config: nested deep": (put(CONFIG, b'{"a":' + deep(200_000).encode() + b"}"), "nested too deeply"),
    "config: 17 MB": (put(CONFIG, b'{"a":"' + b"x" * (17 << 20) + b'"}'), "at most"),
    "config: 5 million values": (put(CONFIG, b'{"a":[' + b"1," * 5_000_000 + b"1]}"), "values, more than"),
    "config: an id of 5,000 digits": (_declared({"9" * 5000: {"content": "x"}}), "must map ids"),
    "config: an id in other digits": (_declared({"٣": {"content": "x"}}), "must map ids"),
    "config: a token that is text": (_declared({"7": "x"}), "must map ids"),
    "config: a token that is empty": (_declared({"7": {"content": ""}}), "must map ids"),
    "config: a token elsewhere": (_declared({"999": {"content": "new"}}), "is declared as id 999"),
    "config: 100,000 tokens": (_declared({str(n): {"content": f"<{n}>"} for n in range(100_000)}), "added tokens"),
    "config: 60,000 tokens elsewhere": (_declared({str(n + 9000): {"content": f"<{n}>"} for n in range(60_000)}), "is declared as"),
    "special tokens: not an object": (put("special_tokens_map.json", b"[]"), "special_tokens_map.json: "),
    "special tokens: not UTF-8": (put("special_tokens_map.json", b'{"a":"\xff"}'), "special_tokens_map.json: "),
}
SLOW: dict[str, tuple[Attack, str]] = {
    "a pattern that is quadratic in a line and slow everywhere": (_split("|".join([r".*(?!a)(?!\z)"] * 200)), "processor time"),
    "a pattern that Oniguruma gives up": (_split(r".*.*(?!a)(?!\z)"), "gave up"),
    "WordPiece on one endless word": (
        tokens(
            pre_tokenizer=None,
            post_processor=None,
            model={
                **{"type": "WordPiece", "unk_token": "[", "continuing_subword_prefix": "", "vocab": {"[": 0, "a": 1}},
                "max_input_chars_per_word": 1 << 40,
            },
        ),
        "processor time",
    ),
    "Unigram on one endless word": (
        tokens(
            pre_tokenizer=None,
            post_processor=None,
            model={"type": "Unigram", "unk_id": 0, "vocab": [["?", -1.0], *(["a" * n, -1.0 * n] for n in range(1, 2000))]},
        ),
        "processor time",
    ),
}
TEMPLATES: dict[str, str] = {
    "an endless loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a huge range": "{{ range(10**15)|list }}",
    "a text times a billion": "{{ 'x' * 10**9 }}",
    "a list times a billion": "{{ [1] * 10**9 }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "doubling": "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "its own class": "{{ ''.__class__.__mro__[1].__subclasses__()[0].x() }}",
    "globals": "{{ raise_exception.__globals__['json'] }}",
    "a format string": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}{{ x.y.z }}",
    "a huge text": "{% for i in range(99999) %}{{ 'y' * 99999 }}{% endfor %}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends '/etc/passwd' %}",
    "nested deep": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "nested blocks": "{% if 1 %}" * 20_000 + "{% endif %}" * 20_000,
    "malformed": "{% for x in %}",
    "a lone surrogate": "{{ '\\ud800' }}",
    "a million names": "{% set x = 1 %}" * 1_000_000,
    "a message of many lines": "{{ raise_exception('a\\nb\\n' * 9999) }}",
    "padding": "{{ '%999999999d' % 1 }}",
    "a number beyond reason": "{{ " + "9" * 10_000 + " }}",
}
