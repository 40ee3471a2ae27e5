"""The multimodal Gemma 3 (4B and larger), its text tower: config under `text_config`, prefixed names, vision tower and projector dropped."""

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


GEMMA3_WRAPPER = replace(
    GEMMA3,
    architecture="Gemma3ForConditionalGeneration",
    model_type="gemma3",
    defaults={"tie_word_embeddings": True},
    config=_config,
    names=(*prefixed("language_model.", GEMMA3.names), ("vision_tower.*", None), ("multi_modal_projector.*", None)),
)
