"""Configs: changing, adding or deleting one key is refused, or gives exactly what transformers computes for the changed config.

The table MUTATIONS is applied to a checkpoint of every family, in both spellings; nothing may be accepted and ignored.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import checkpoints
from checkpoints import FULL, LLAMA3, SLIDING
from thinlm.compiler.frontends import ADAPTERS, open_checkpoint
from thinlm.compiler.frontends.blocks import build
from thinlm.compiler.frontends.config_reader import ConfigReader
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas.errors import FrontendError, InputError
from thinlm.schemas.graph import Graph

BASES = ("llama-scaled", "mistral", "qwen2-window", "qwen3", "gemma3", "gemma3-untied", "gemma3-wrapper")
TOKENS = 40  # past every window and every original context length
ABSENT = object()
LINEAR = {"rope_type": "linear", "factor": 3.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

MUTATIONS: dict[str, tuple[Any, ...]] = {
    "architectures": (None, [], ["LlamaModel"], ["MixtralForCausalLM"], "LlamaForCausalLM"),
    "model_type": ("llama", "mixtral", None, 7),
    "vocab_size": (210, 212, "211"),
    "hidden_size": (54, 66, -60, 60.0),
    "intermediate_size": (99, 10**12, True),
    "num_hidden_layers": (0, 2, 4, 10**9),
    "num_attention_heads": (3, 12, 0, None),
    "num_key_value_heads": (None, 1, 2, 6, 4, ABSENT),
    "head_dim": (None, 10, 9, 36, ABSENT),
    "hidden_act": ("gelu", "relu", "gelu_new", "gelu_pytorch_tanh", "tanh", None),
    "hidden_activation": ("gelu", "silu", "relu", "sigmoid", None),
    "rms_norm_eps": (0.05, 0.0, -1e-6, "1e-6", float("inf")),
    "max_position_embeddings": (64, 4096, 0),
    "tie_word_embeddings": (True, False, None, 1),
    "attention_bias": (True, False, None),
    "mlp_bias": (True, False),
    "rope_theta": (500.0, 30, 0, None, [1e4]),
    "rope_local_base_freq": (500.0, 0),
    "partial_rotary_factor": (0.5, 1.0, None),
    "rope_scaling": (
        None,
        LINEAR,
        {"type": "linear", "factor": 3.0},
        {"rope_type": "linear"},
        {"rope_type": "linear", "type": "dynamic", "factor": 3.0},
        {"rope_type": "default", "mrope_section": [3, 3, 3]},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "linear", "factor": 3.0, "attention_factor": 2.0},
        LLAMA3,
        {**LLAMA3, "original_max_position_embeddings": 24},
        {**LLAMA3, "high_freq_factor": 1.0},
        YARN,
        "linear",
    ),
    "rope_parameters": (
        None,
        {},
        LINEAR,
        {**LINEAR, "rope_theta": 700.0},
        {"rope_theta": 700.0},
        {**LLAMA3, "partial_rotary_factor": 0.5},
        YARN,
        {FULL: LINEAR, SLIDING: None},
        {FULL: {"rope_theta": 900.0}, SLIDING: LINEAR},
        {FULL: {"type": "linear", "factor": 2.0}, SLIDING: {"rope_type": "default"}, "rope_theta": 3.0},
        {FULL: {"type": "linear", "factor": 2.0}},
    ),
    "original_max_position_embeddings": (16,),
    "sliding_window": (None, 5, 0, -1, ABSENT),
    "use_sliding_window": (True, False, None),
    "max_window_layers": (0, 2, 5, -1),
    "layer_types": (None, [FULL] * 3, [SLIDING] * 3, [SLIDING, FULL, FULL], [FULL] * 2, ["chunked_attention"] * 3, ["attention"] * 3),
    "sliding_window_pattern": (1, 2, 3, 0),
    "_sliding_window_pattern": (2,),
    "query_pre_attn_scalar": (7, 100, 0, None),
    "final_logit_softcapping": (3.0, None, 0.0),
    "attn_logit_softcapping": (2.0,),
    "use_bidirectional_attention": (True, False, None),
    "pretraining_tp": (1, 2),
    "quantization_config": (None, {"quant_method": "gptq", "bits": 4}),
    "is_encoder_decoder": (True, False),
    "chunk_size_feed_forward": (4,),
    "pruned_heads": ({"0": [1]},),
    "use_mrope": (True, False),
    "attention_dropout": (0.5,),
    "initializer_range": (0.9,),
    "use_cache": (False,),
    "dtype": ("float32",),
    "torch_dtype": ("float16",),
    "logit_scale": (0.5,),
    "embedding_multiplier": (2.0,),
    "text_config": (None, {}, []),
    "auto_map": ({"AutoConfig": "config.X"},),
}
# Configs that transformers rejects and we read as they are meant; each with the reason.
ONLY_OURS = {
    "num_key_value_heads=None": "null means one kv head per query head in every family; the shapes of k and v confirm it",
    "head_dim=None": "null means hidden_size / num_attention_heads; the shapes of q and k confirm it",
}


@dataclass(frozen=True)
class Base:
    folder: Path
    model: Any
    graph: Graph
    ids: np.ndarray
    logits: np.ndarray


@pytest.fixture(scope="module", params=BASES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = checkpoints.write(request.param, tmp_path_factory.mktemp(request.param))
    graph, weights, info = open_checkpoint(folder)
    ids = checkpoints.prompt(info.vocab_size, TOKENS)
    return Base(folder, checkpoints.load(folder), graph, ids, evaluate(graph, weights, ids, np.float32)["logits"][0])


def mutations(config: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(key, value, changed config), inside text_config too."""
    places = [("", config)] + ([("text_config", config["text_config"])] if "text_config" in config else [])
    for place, part in places:
        for key in sorted((set(MUTATIONS) | set(part)) - {"vision_config"}):  # without it transformers makes a tower of 400 million weights
            for value in {id(v): v for v in (*MUTATIONS.get(key, ()), ABSENT)}.values():
                changed = copy.deepcopy(config)
                inner = changed[place] if place else changed
                if value is ABSENT:
                    inner.pop(key, None)
                else:
                    inner[key] = copy.deepcopy(value)
                if changed != config:
                    yield key, value, changed


def difference(base: Base) -> float | str:
    """Largest relative difference of the logits under the folder's present config; a text when transformers fails."""
    graph, weights, _ = open_checkpoint(base.folder)
    try:
        want = checkpoints.trace(checkpoints.with_config_of(base.model, base.folder), base.ids)["logits"]
    except Exception as e:  # noqa: BLE001  transformers fails in every way
        return f"{type(e).__name__}: {e}"[:300]
    got = base.logits if graph == base.graph else evaluate(graph, weights, base.ids, np.float32)["logits"][0]
    return float(np.abs(got - want).max() / np.abs(want).max())


def test_one_changed_key(base: Base) -> None:
    path, outcomes = base.folder / "config.json", []
    for key, value, changed in mutations(json.loads(path.read_text())):
        what = f"{key}={'absent' if value is ABSENT else value}"
        path.write_text(json.dumps(changed))
        try:
            outcomes.append((what, difference(base)))
        except InputError:
            outcomes.append((what, "refused"))
    fine = [what for what, got in outcomes if got == "refused" or what in ONLY_OURS or (isinstance(got, float) and got < 1e-4)]
    assert [outcome for outcome in outcomes if outcome[0] not in fine] == []
    accepted = sum(got != "refused" for _, got in outcomes)
    assert accepted >= 20
    assert len(outcomes) - accepted >= 60  # the table proves little when it is all of one kind


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda x: st.lists(x, max_size=4), max_leaves=6)


@settings(max_examples=150)
@given(st.data())
def test_any_value_is_refused_or_read(data: st.DataObject) -> None:
    """No config value, however odd, raises anything but an InputError."""
    config = dict(CONFIG)
    key = data.draw(st.sampled_from(sorted(set(config) | set(MUTATIONS))))
    config[key] = data.draw(JSON | st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "rope_theta", FULL, SLIDING]), JSON))
    adapter = ADAPTERS["Gemma3ForCausalLM"]
    reader = ConfigReader(config, adapter.defaults, "config.json")
    with suppress(FrontendError):
        read = adapter.config(reader)
        reader.finish()
        build(read, "any", {})


CONFIG: dict[str, Any] = checkpoints.BASE | checkpoints.CASES["gemma3"].config | {"architectures": ["Gemma3ForCausalLM"]}


def reader(**values: Any) -> ConfigReader:
    return ConfigReader(values, {"given": 3, "null": None}, "x: config.json")


def test_reader_types() -> None:
    c = reader(whole=4, real=2.5, big=1 << 70, yes=True, text="a", nothing=None, sub={"inner": 1})
    assert (c.get("whole", int), c.get("whole", float), c.get("given", int), c.optional("null", int)) == (4, 4.0, 3, None)
    assert type(c.get("whole", float)) is float
    assert c.child("sub", {}).get("inner", int) == 1
    assert c.optional("nothing", str) is None
    for key, kind in (("yes", int), ("real", int), ("text", float), ("big", float), ("nothing", str), ("whole", str), ("absent", int)):
        with pytest.raises(FrontendError, match=rf"x: config\.json: {key}"):
            c.get(key, kind)
    for key in ("big", "yes", "real"):
        with pytest.raises(FrontendError, match=key):
            c.size(key)
    with pytest.raises(FrontendError, match="only False"):
        reader(flag=0).expect("flag", (False,))


def test_unread_keys_are_named() -> None:
    c = reader(used=1, odd=2, use_cache=False, sub={"odder": 1, "fine": 2}, quantization_config={"bits": 4})
    c.get("used", int)
    c.child("sub", {}).get("fine", int)
    with pytest.raises(FrontendError, match=r"quantization_config.*pre-quantised"):
        c.finish()
    c.ignore("quantization_config")
    with pytest.raises(FrontendError, match=r"no meaning is known for odd, sub\.odder$"):
        c.finish()
    c.ignore("odd", "sub")
    with pytest.raises(FrontendError, match=r"sub\.odder"):
        c.finish()
