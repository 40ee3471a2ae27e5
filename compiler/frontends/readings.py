"""Config readings that several families share: the common sizes, and which layers see a sliding window.

In: a ConfigReader with the family's defaults. Out: a `Config` to refine with `dataclasses.replace`, or windows per layer (0 = all).
Refused with FrontendError: activations outside ACTIVATIONS, query heads that kv heads don't divide, layer types other than the two known,
a list of them of the wrong length, a sliding layer without a window.
"""

from __future__ import annotations

from collections.abc import Callable

from .blocks import ACTIVATIONS, Config
from .config_reader import ConfigReader
from .rope import Rope, read_rope

SLIDING, FULL = "sliding_attention", "full_attention"
MAX_LAYERS = 4096


def read_decoder(c: ConfigReader, act: str = "hidden_act", rope: Callable[[ConfigReader, int, int], Rope] = read_rope) -> Config:
    """The plain pre-norm decoder: full attention, one rope for all layers, no biases.

    `act` is the key of the activation; `rope` reads the rope from (reader, head_dim, context).
    """
    layers, hidden, heads = c.size("num_hidden_layers"), c.size("hidden_size"), c.size("num_attention_heads")
    if layers > MAX_LAYERS:
        raise c.refuse("num_hidden_layers", f"at most {MAX_LAYERS} are read")
    kv_heads = c.optional_size("num_key_value_heads") or heads
    head_dim = c.optional_size("head_dim") or max(1, hidden // heads)
    if heads % kv_heads:
        raise c.refuse("num_key_value_heads", f"does not divide num_attention_heads={heads}")
    context = c.size("max_position_embeddings")
    return Config(
        hidden=hidden,
        intermediate=c.size("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=c.size("vocab_size"),
        context=context,
        eps=c.number("rms_norm_eps", 0.0, 1.0),
        act=ACTIVATIONS[c.expect(act, ACTIVATIONS)],
        tied=c.get("tie_word_embeddings", bool),
        windows=(0,) * layers,
        ropes=(rope(c, head_dim, context),) * layers,
        attn_scale=head_dim**-0.5,
    )


def read_windows(c: ConfigReader, layers: int, window: int | None, slides: Callable[[int], bool]) -> tuple[int, ...]:
    """Window per layer: `layer_types` decides where the file has it, else `slides(layer)`."""
    kinds = c.optional("layer_types", list)
    if kinds is None:
        kinds = [SLIDING if slides(i) else FULL for i in range(layers)]
    if len(kinds) != layers or any(kind not in (SLIDING, FULL) for kind in kinds):
        raise c.refuse("layer_types", f"must be {layers} times {SLIDING} or {FULL}")
    if SLIDING in kinds and window is None:
        raise c.refuse("layer_types", "has sliding layers, but no window is set")
    return tuple(window if kind == SLIDING and window else 0 for kind in kinds)


def read_switched_windows(c: ConfigReader, layers: int) -> tuple[int, ...]:
    """The rule with a switch: a window counts only if `use_sliding_window`; then layers from `max_window_layers` on slide."""
    given = c.optional_size("sliding_window")
    window = given if c.get("use_sliding_window", bool) else None
    first = c.get("max_window_layers", int)
    return read_windows(c, layers, window, lambda i: window is not None and i >= first)
