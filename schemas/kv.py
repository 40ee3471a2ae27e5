"""The geometry of the KV cache: what each slot of a graph stores, in blocks, and how many bytes that is (design.md section 3).

A slot is owned by one attention node (`cache`, `owns`); layers that share another layer's KV own none and cost nothing. A window of W keys
needs W + block positions: a block must never be reused before its last key left the window.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .graph import Graph
from .ops import attrs_of
from .verify import infer

KVDtype = Literal["f32", "bf16", "f16"]
KV_ITEM_BYTES: dict[str, int] = {"f32": 4, "bf16": 2, "f16": 2}


class KVSlot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer's cache for one sequence: `blocks` blocks of `block` positions, each [heads, key_dim] + [heads, value_dim] of `dtype`."""

    slot: int
    dtype: KVDtype
    heads: int
    key_dim: int
    value_dim: int
    window: int
    block: int
    blocks: int

    def __post_init__(self) -> None:
        if min(self.heads, self.key_dim, self.value_dim, self.block, self.blocks) < 1 or min(self.slot, self.window) < 0:
            raise ValueError(f"KV slot {self.slot}: sizes must be at least 1, slot and window at least 0")

    @property
    def capacity(self) -> int:
        """Positions that one sequence can hold."""
        return self.blocks * self.block

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position."""
        return self.heads * (self.key_dim + self.value_dim) * KV_ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of one sequence."""
        return self.capacity * self.bytes_per_token


def kv_slots(graph: Graph, context: int, block: int, dtype: KVDtype) -> tuple[KVSlot, ...]:
    """The slots that `graph` owns for `context` positions, in slot order."""
    types, _ = infer(graph)
    slots = []
    for node in graph.nodes:
        if node.op != "attention" or not attrs_of(node)["owns"]:
            continue
        attrs = attrs_of(node)
        (_, _, heads, key_dim), value_dim = types[node.inputs[1]].shape, types[node.inputs[2]].shape[3]
        window = attrs["window"]
        assert isinstance(window, int) and isinstance(heads, int) and isinstance(key_dim, int) and isinstance(value_dim, int)
        positions = min(context, window + block) if window else context
        slot = attrs["cache"]
        assert isinstance(slot, int)
        slots.append(
            KVSlot(
                slot=slot, dtype=dtype, heads=heads, key_dim=key_dim, value_dim=value_dim, window=window, block=block, blocks=-(-positions // block)
            )
        )
    return tuple(sorted(slots, key=lambda s: s.slot))


def kv_bytes(slots: tuple[KVSlot, ...], batch: int) -> int:
    """Bytes of the whole cache for `batch` sequences."""
    return batch * sum(s.bytes for s in slots)
