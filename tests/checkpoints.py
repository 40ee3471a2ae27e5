"""Tiny Hugging Face checkpoints of every family, and what transformers computes for them (float32, eager, no cache).

`CASES` is the table: one row per variation that an importer must get right. `write(name, folder)` saves one with transformers' own
save_pretrained (in the spelling of transformers 5, or rewritten to that of most published files); `oracle(folder)` runs it.
Sizes are odd but legal: heads that don't divide the hidden size, grouped queries, groups that end short.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SLIDING, FULL = "sliding_attention", "full_attention"
LONG, GREEDY = 80, 8
BASE: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 60,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 18,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
Json = dict[str, Any]


def older(config: Json, kind_key: str = "rope_type") -> Json:
    """transformers-5 spelling -> that of most published checkpoints."""
    rope = config.pop("rope_parameters")
    kind = rope.pop("rope_type")
    config |= {"rope_theta": rope.pop("rope_theta"), "torch_dtype": config.pop("dtype"), "transformers_version": "4.51.0"}
    return config | {"rope_scaling": None if kind == "default" else {kind_key: kind, **rope}}


def older_type(config: Json) -> Json:
    """As `older`, with the rope's kind under "type"."""
    return older(config, "type")


def older_by_type(config: Json) -> Json:
    """`older` for ropes keyed by layer type."""
    full, local = (config["rope_parameters"][kind] for kind in (FULL, SLIDING))
    del config["rope_parameters"]
    config |= {"rope_theta": full.pop("rope_theta"), "rope_local_base_freq": local["rope_theta"], "torch_dtype": config.pop("dtype")}
    config["sliding_window_pattern"] = config.pop("layer_types").index(FULL) + 1
    del config["_sliding_window_pattern"]
    return config | {"rope_scaling": None if full["rope_type"] == "default" else full}


def sparse_older(config: Json) -> Json:
    """`older`, without the keys whose default is meant."""
    config = older(config)
    for key in ("head_dim", "num_key_value_heads", "rope_scaling", "rope_theta", "attention_bias", "mlp_bias", "hidden_act", "tie_word_embeddings"):
        del config[key]
    return config


@dataclass(frozen=True, kw_only=True)
class Case:
    """`config` is added to BASE; `vision` wraps the model; `f32` names tensors stored in float32; `extra` tensors an importer must drop."""

    model_type: str
    config: Json = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    spelling: Callable[[Json], Json] = lambda config: config
    shard: str = "1GB"
    vision: bool = False
    f32: str = ""
    extra: tuple[str, ...] = ()


def ropes(sliding: Json, full: Json) -> Json:
    """rope_parameters keyed by layer type."""
    return {"rope_parameters": {SLIDING: {"rope_type": "default", **sliding}, FULL: {"rope_type": "default", **full}}}


CASES: dict[str, Case] = {
    "llama": Case(model_type="llama", config={"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
    "llama-scaled": Case(
        model_type="llama",
        config={"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}},
        spelling=older,
        shard="40KB",
        extra=("model.layers.1.self_attn.rotary_emb.inv_freq",),
    ),
    "llama-bias-tied": Case(
        model_type="llama",
        dtype=torch.float16,
        spelling=older_type,
        config={
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1e4},
        },
    ),
    "llama-defaults": Case(model_type="llama", spelling=sparse_older, config={"head_dim": None, "num_key_value_heads": None}),
    "mistral": Case(model_type="mistral", spelling=older, config={"sliding_window": 13}, f32="norm"),
    "mistral-full": Case(model_type="mistral", config={"sliding_window": None, "hidden_act": "gelu"}, dtype=torch.float32),
    "qwen2": Case(model_type="qwen2", spelling=older, config={"tie_word_embeddings": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen2-window": Case(
        model_type="qwen2", shard="50KB", config={"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "head_dim": 10}
    ),
    "qwen3": Case(model_type="qwen3", spelling=older, config={"head_dim": 22, "num_key_value_heads": 2}),
    "qwen3-window": Case(
        model_type="qwen3",
        config={
            "attention_bias": True,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 11,
            "layer_types": [FULL, SLIDING, SLIDING],
        },
    ),
    "gemma3": Case(
        model_type="gemma3_text",
        spelling=older_by_type,
        config={
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 30,
            "sliding_window": 14,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            **ropes({"rope_theta": 8e3}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}),
        },
    ),
    "gemma3-untied": Case(
        model_type="gemma3_text",
        shard="60KB",
        config={
            "query_pre_attn_scalar": 18,
            "sliding_window": 14,
            "attention_bias": True,
            "final_logit_softcapping": 5.0,
            "layer_types": [FULL, SLIDING, SLIDING],
            **ropes({"rope_theta": 1e4}, {"rope_theta": 1e6}),
        },
    ),
    "gemma3-wrapper": Case(
        model_type="gemma3_text",
        vision=True,
        config={
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 24,
            "sliding_window": 10,
            "layer_types": [SLIDING, SLIDING, FULL],
            **ropes({"rope_theta": 1e4}, {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}),
        },
    ),
}


def write(name: str, folder: Path) -> Path:
    """Save CASES[name] into `folder` with seeded weights; the folder."""
    case = CASES[name]
    model = _model(case).eval()
    _fill(model, seed=sum(name.encode()))
    model.tie_weights()
    for tensor, p in model.named_parameters():
        p.data = p.data.to(torch.float32 if case.f32 and case.f32 in tensor else case.dtype)
    model.config.dtype = case.dtype
    model.save_pretrained(folder, max_shard_size=case.shard)
    if case.extra:
        _add_tensors(folder, case.extra)
    rewrite(folder, case.spelling)
    return folder


def rewrite(folder: Path, change: Callable[[Json], Json]) -> None:
    """Replace config.json by what `change` makes of it."""
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def load(folder: Path) -> torch.nn.Module:
    """The transformers model, float32, eager attention."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def with_config_of(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    """A model of the folder's config with the weights of `model`; faster than `load`. transformers' error when they don't fit."""
    config = AutoConfig.from_pretrained(folder)
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    fresh.load_state_dict(model.state_dict())
    return fresh.eval()


def prompt(vocab: int, tokens: int, seed: int = 0) -> np.ndarray:
    """i64[1, tokens] of ordinary ids."""
    return np.random.default_rng(seed).integers(3, vocab, (1, tokens))


@torch.no_grad()
def trace(model: torch.nn.Module, ids: np.ndarray) -> dict[str, np.ndarray]:
    """logits [T, V] and every hidden state [T, H] of one forward without cache."""
    got: dict[str, np.ndarray] = {}

    def keep(key: str, value: Any) -> None:
        got[key] = (value[0] if isinstance(value, tuple) else value)[0].numpy()

    decoder = next(m for n, m in model.named_modules() if hasattr(m, "layers") and "vision" not in n)
    hooks = [decoder.layers[0].register_forward_pre_hook(lambda m, args: keep("hidden.embed", args[0]))]
    hooks += [layer.register_forward_hook(lambda m, args, out, i=i: keep(f"hidden.{i}", out)) for i, layer in enumerate(decoder.layers)]
    hooks += [decoder.norm.register_forward_hook(lambda m, args, out: keep("hidden.final", out))]
    keep("logits", model(input_ids=torch.from_numpy(ids), use_cache=False).logits)
    for hook in hooks:
        hook.remove()
    return got


@torch.no_grad()
def greedy(model: torch.nn.Module, ids: np.ndarray, steps: int = GREEDY) -> tuple[list[int], float]:
    """The greedy continuation, end tokens ignored, and the smallest gap between the best and the second logit on the way."""
    gap, tokens = float("inf"), torch.from_numpy(ids)
    for _ in range(steps):
        top = model(input_ids=tokens, use_cache=False).logits[0, -1].topk(2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        tokens = torch.cat([tokens, top.indices[:1].view(1, 1)], 1)
    return tokens[0, -steps:].tolist(), gap


def _model(case: Case) -> Any:
    config = BASE | case.config
    if not case.vision:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(case.model_type, **config))
    text = {**config, "model_type": case.model_type}
    tied = config["tie_word_embeddings"]
    wrapper = AutoConfig.for_model("gemma3", text_config=text, vision_config=VISION, tie_word_embeddings=tied, mm_tokens_per_image=4)
    return transformers.Gemma3ForConditionalGeneration(wrapper)


def _fill(model: Any, seed: int) -> None:
    """Unit-gain matrices, scattered norms and biases; a tied head would echo its input if the final norm kept its sign."""
    g = torch.Generator().manual_seed(seed)
    tied = model.config.get_text_config().tie_word_embeddings
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=g)
        if name.endswith("bias"):
            p.data = 0.3 * noise
        elif p.ndim == 1:
            neutral = 0.0 if torch.count_nonzero(p) == 0 else 1.0  # gemma stores w - 1
            value = neutral + 0.3 * noise
            if tied and name.endswith(("model.norm.weight", "language_model.norm.weight")):
                value = (value + 1 - neutral) * torch.randn(p.shape, generator=g).sign() - (1 - neutral)
            p.data = value
        else:
            p.data = (
                noise
                * (0.4 if "embed_tokens" in name else 2.0 if "lm_head" in name else 1.0)
                * (1.0 if "embed_tokens" in name else p.shape[-1] ** -0.5)
            )


def _add_tensors(folder: Path, names: tuple[str, ...]) -> None:
    """A shard more, listed in the index, with tensors that mean nothing to the text model."""
    from safetensors.torch import save_file

    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    save_file({name: torch.ones(9) for name in names}, folder / "model-extra.safetensors", {"format": "pt"})
    table["weight_map"] |= dict.fromkeys(names, "model-extra.safetensors")
    index.write_text(json.dumps(table))
