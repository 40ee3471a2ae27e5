"""shared: the vectors of one layer (norms, biases), whole and one after another in a page.

In: tensors of one dimension. They fill pages of at most PAGE_MAX bytes, in order; a larger vector has a page to itself.
Left to other layouts: tensors of more dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .base import PAGE_MAX, PageGroup, StoredTensor, align, page_group

NAME = "shared"


def take(tensors: Sequence[StoredTensor]) -> tuple[list[PageGroup], list[StoredTensor]]:
    """(pages, tensors left to other layouts)."""
    layers: dict[int | None, list[StoredTensor]] = {}
    for tensor in tensors:
        if len(tensor.shape) == 1:
            layers.setdefault(tensor.layer, []).append(tensor)
    groups = []
    for layer, members in layers.items():
        prefix = "vectors" if layer is None else f"blk.{layer}.vectors"
        for n, page in enumerate(_pages(members)):
            groups.append(page_group(f"{prefix}.{n}", NAME, [(tensor, 0, 1) for tensor in page]))
    return groups, [tensor for tensor in tensors if len(tensor.shape) != 1]


def _pages(tensors: Sequence[StoredTensor]) -> Iterator[list[StoredTensor]]:
    page: list[StoredTensor] = []
    used = 0
    for tensor in tensors:
        size = align(tensor.format.row_bytes(tensor.shape[0]))
        if page and used + size > PAGE_MAX:
            yield page
            page, used = [], 0
        page.append(tensor)
        used += size
    yield page
