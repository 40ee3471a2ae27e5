"""superblock: a feed-forward block is cut along its channels, 128 at a time, so that one page is all there is of those channels.

In: the gate, up [I, H] and down [H, I] of one block, by role and by name up to the last dot ("blk.3.ffn"). Page s holds rows
[128 s, 128 s + 128) of gate and of up, and those columns of down. The last page may be short.
Left to other layouts: everything else, and blocks whose matrices don't agree on I.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import PageGroup, StoredTensor, page_group

NAME = "superblock"
CHANNELS = 128
_CHANNEL_AXIS = {"gate": 0, "up": 0, "down": 1}


def take(tensors: Sequence[StoredTensor]) -> tuple[list[PageGroup], list[StoredTensor]]:
    """(pages, tensors left to other layouts)."""
    blocks: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        if tensor.role in _CHANNEL_AXIS and len(tensor.shape) == 2:
            blocks.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    groups, taken = [], set()
    for name, members in blocks.items():
        if len({m.shape[_CHANNEL_AXIS[m.role]] for m in members}) == 1:
            groups.append(page_group(name, NAME, [(m, _CHANNEL_AXIS[m.role], CHANNELS) for m in members]))
            taken.update(m.name for m in members)
    return groups, [tensor for tensor in tensors if tensor.name not in taken]
