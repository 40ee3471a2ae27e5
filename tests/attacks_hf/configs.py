"""Attacks on config.json and generation_config.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from attacks_hf.folder import CONFIG, Attack, config, deep, grown, instead, put

TEXT = json.dumps(CONFIG)
LAYERS = "num_hidden_layers"


def _raw(key: str, text: str) -> Attack:
    """A value spelled as `text`."""
    return put("config.json", json.dumps(CONFIG | {key: "@"}).replace('"@"', text))


def _generation(value: Any) -> Attack:
    return put("generation_config.json", json.dumps({"eos_token_id": value}))


def _qwen(**changes: Any) -> Attack:
    """The same as a family that reads layer types."""
    return config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", **changes)


ATTACKS: dict[str, tuple[Attack, str]] = {
    "empty": (put("config.json", b""), "not strict JSON"),
    "nested deep": (put("config.json", deep(500_000)), "not strict JSON"),
    "objects nested deep": (put("config.json", '{"a":' * 300_000 + "1" + "}" * 300_000), "not strict JSON"),
    "a value nested deep": (_raw("rope_scaling", deep(900)), "rope_scaling"),
    "UTF-16": (put("config.json", TEXT.encode("utf-16")), "not strict JSON"),
    "a byte order mark": (put("config.json", b"\xef\xbb\xbf" + TEXT.encode()), "not strict JSON"),
    "not UTF-8": (put("config.json", TEXT.replace("llama", "ll\xffma").encode("latin-1")), "not strict JSON"),
    "text after the object": (put("config.json", TEXT + "{}"), "not strict JSON"),
    "cut off": (put("config.json", TEXT[:-9]), "not strict JSON"),
    "a key twice": (put("config.json", TEXT[:-1] + ',"hidden_size": 64}'), "occurs twice"),
    "a key twice, spelled otherwise": (put("config.json", TEXT[:-1] + ',"\\u0068idden_size": 64}'), "occurs twice"),
    "a folder": (instead("config.json", Path.mkdir), "not a regular file"),
    "a pipe": (instead("config.json", os.mkfifo), "not a regular file"),
    "100 MB of spaces": (put("config.json", TEXT + " " * 100_000_000), "at most"),
    "100 GB of holes": (grown("config.json", 100 << 30), "at most"),
    "a million lists": (put("config.json", '{"a":[' + "[]," * 1_100_000 + "1]}"), "JSON values"),
    "no read permission, or a list": (put("config.json", "[]"), "not a JSON object"),
    "a billion layers": (config(**{LAYERS: 10**9}), "at most"),
    "4,096 layers": (config(**{LAYERS: 4096}), "4096 layers in config.json"),
    "no layers": (config(**{LAYERS: 0}), "must be from 1"),
    "a negative size": (config(hidden_size=-64), "must be from 1"),
    "a size of 2^31": (config(hidden_size=1 << 31), "must be from 1"),
    "a size of 2^70": (config(intermediate_size=1 << 70), "must be from 1"),
    "a size of 5,000 digits": (_raw("vocab_size", "9" * 5000), "not strict JSON"),
    "a size with a fraction": (config(hidden_size=64.5), "must be int"),
    "a size as a float": (config(hidden_size=64.0), "must be int"),
    "a size as text": (config(hidden_size="64"), "must be int"),
    "a size that is true": (config(num_key_value_heads=True), "must be int"),
    "a size that is null": (config(vocab_size=None), "not null"),
    "a size that is a list": (config(hidden_size=[64]), "must be int"),
    "a size that is missing its type": (config(head_dim={}), "must be int"),
    "NaN": (_raw("rms_norm_eps", "NaN"), "NaN"),
    "an endless eps": (_raw("rms_norm_eps", "1e999"), "must be float"),
    "a negative eps": (config(rms_norm_eps=-1e-5), "must lie between"),
    "eps of 2^70": (config(rms_norm_eps=1 << 70), "must be float"),
    "heads that kv heads don't divide": (config(num_key_value_heads=3), "does not divide"),
    "head dim that is odd": (config(head_dim=15), "only even sizes"),
    "head dim of 2^30": (config(head_dim=1 << 30), "only even sizes"),
    "head dim that does not fit": (config(head_dim=32), "differ in shape"),
    "a rope of 2^16": (config(head_dim=1 << 16), "differ in shape"),
    "another vocabulary": (config(vocab_size=421), "differ in shape"),
    "a huge context": (config(max_position_embeddings=1 << 40), "must be from 1"),
    "theta of 0": (config(rope_theta=0), "must lie between"),
    "theta beyond float": (_raw("rope_theta", "1e308"), "must lie between"),
    "scaling by nothing": (config(rope_scaling={"rope_type": "linear", "factor": 0}), "must lie between"),
    "an unknown rope": (config(rope_scaling={"rope_type": "yarn"}), "can be expressed"),
    "a rope type that is a list": (config(rope_scaling={"rope_type": []}), "can be expressed"),
    "scaling that is a number": (config(rope_scaling=7), "must be an object"),
    "both spellings of a rope": (config(rope_scaling={"factor": 2.0}, rope_parameters={"rope_type": "default"}), "keep one of them"),
    "layer types of the wrong length": (_qwen(layer_types=["full_attention"] * 7), "must be 1 times"),
    "a million layer types": (_qwen(layer_types=["full_attention"] * 200_000), "must be 1 times"),
    "layer types of numbers": (_qwen(layer_types=[1]), "must be 1 times"),
    "an unknown architecture": (config(architectures=["Evil\n\x1b[31m"]), "known:"),
    "architectures of a megabyte": (config(architectures=["x" * 1_000_000]), "known:"),
    "architectures that is a number": (config(architectures=7), "known:"),
    "a model type that is a list": (config(model_type=["llama"]), "known:"),
    "code to run": (config(auto_map={"AutoModelForCausalLM": "evil.Model"}), "no meaning is known for auto_map"),
    "a key that means nothing": (config(**{"x\n\x1b[31m": 1}), "no meaning is known for x\\n\\x1b[31m"),
    "30,000 keys that mean nothing": (config(**{f"k{i}": 1 for i in range(30_000)}), "no meaning is known"),
    "pre-quantised": (config(quantization_config={"bits": 4}), "pre-quantised"),
    "an activation that is an object": (config(hidden_act={}), "can be expressed"),
    "generation: text as eos": (_generation("</s>"), "eos_token_id"),
    "generation: negative eos": (_generation([2, -1]), "eos_token_id"),
    "generation: huge eos": (_generation(1 << 70), "eos_token_id"),
    "generation: true as eos": (_generation(True), "eos_token_id"),
    "generation: lists in a list": (_generation([[2]]), "eos_token_id"),
    "generation: 100,000 eos": (_generation(list(range(100_000))), "eos_token_id"),
    "generation: nested deep": (put("generation_config.json", deep(100_000)), "not strict JSON"),
    "generation: a pipe": (instead("generation_config.json", os.mkfifo), "not a regular file"),
    "generation: 100 GB of holes": (grown("generation_config.json", 100 << 30), "at most"),
}
