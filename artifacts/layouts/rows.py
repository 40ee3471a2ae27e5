"""rows: a matrix is cut into runs of whole rows, as many as fit a page of PAGE_MAX bytes (at least one row).

In: any tensors that no other layout took; each has pages of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import PAGE_MAX, PageGroup, StoredTensor, matrix_shape, page_group

NAME = "rows"
_MULTIPLE = 16  # rows: kernels work on tiles of this many, so that a tile does not straddle two pages


def take(tensors: Sequence[StoredTensor]) -> tuple[list[PageGroup], list[StoredTensor]]:
    """(pages, []): this layout takes everything."""
    return [page_group(tensor.name, NAME, [(tensor, 0, rows_per_page(tensor))]) for tensor in tensors], []


def rows_per_page(tensor: StoredTensor) -> int:
    """Rows of `tensor` in each page but the last."""
    rows, cols = matrix_shape(tensor.shape)
    fit = PAGE_MAX // tensor.format.row_bytes(cols)
    step = max(1, fit if fit < _MULTIPLE else fit - fit % _MULTIPLE)
    return min(step, rows)
