"""Tiny tokenizers of the kinds that checkpoints have, trained in the test: byte-level BPE and two SentencePiece-like ones."""

from __future__ import annotations

import json
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

Kind = Literal["byte-level", "sentencepiece", "metaspace"]
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<unk>"]
CORPUS = ["the cat sat on the mat and the dog ran over the hill", "Hello, world! 12345 67.8", "naive cafe über straße 東京 🙂", "a  b   c\n\n"] * 3


def build(kind: Kind, vocab: int = 420) -> Tokenizer:
    """A tokenizer of one kind; SPECIAL have the ids 0..5 and `<s>` is put in front when special tokens are asked for."""
    if kind == "byte-level":
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
    else:
        tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        names = [*SPECIAL, *(f"<0x{i:02X}>" for i in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=max(vocab, 340), special_tokens=names, show_progress=False)
        if kind == "sentencepiece":  # Llama 2: a space in front of the text, dropped again when decoding
            tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        else:
            tok.pre_tokenizer = pre_tokenizers.Metaspace()
            tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tok.train_from_iterator(CORPUS, trainer)
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer.from_str(json.dumps(_plain_bytes(json.loads(tok.to_str()))))


def _plain_bytes(state: dict[str, Any]) -> dict[str, Any]:
    """Byte tokens are vocabulary, not special tokens."""
    return {**state, "added_tokens": [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]}
