"""The multimodal Gemma 3 (4B and larger), its text tower: config under `text_config`, vision tower and projector dropped.

Names come in two forms: published files say `language_model.model.layers...`, models saved by their module names `model.language_model.layers...`.
"""

from __future__ import annotations

from dataclasses import replace

from .adapter import prefixed
from .blocks import Config
from .config_reader import ConfigReader
from .gemma3 import DEFAULTS, GEMMA3, read_config


def _config(c: ConfigReader) -> Config:
    text = c.child("text_config", DEFAULTS)
    text.expect("final_logit_softcapping", (None,))  # the wrapper has no softcap
    c.ignore("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index")
    return replace(read_config(text), tied=c.get("tie_word_embeddings", bool))  # the flag inside text_config has no say


_DROPPED = tuple((f"{prefix}{tower}.*", None) for prefix in ("", "model.") for tower in ("vision_tower", "multi_modal_projector"))
_BY_MODULE = tuple((name.replace("model.", "model.language_model.", 1), slot) for name, slot in GEMMA3.names)

GEMMA3_WRAPPER = replace(
    GEMMA3,
    architecture="Gemma3ForConditionalGeneration",
    model_type="gemma3",
    defaults={"tie_word_embeddings": True},
    config=_config,
    names=(*prefixed("language_model.", GEMMA3.names), *_BY_MODULE, *_DROPPED),
)
