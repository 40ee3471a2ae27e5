"""Number formats: the table of those that this version writes, and look-up by name.

A new format is one new file with a FORMATS tuple and one line here (examples/add_a_format.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...schemas.errors import InputError
from . import fp8_row, int_affine, int_symmetric, plain
from .base import Format, Parts

__all__ = ["FORMATS", "Format", "Parts", "get_format"]


def _table(formats: Iterable[Format]) -> dict[str, Format]:
    table: dict[str, Format] = {}
    for entry in formats:
        if entry.name in table:
            raise ValueError(f"two formats are named {entry.name}")
        table[entry.name] = entry
    return table


FORMATS: dict[str, Format] = _table((*plain.FORMATS, *int_symmetric.FORMATS, *int_affine.FORMATS, *fp8_row.FORMATS))


def get_format(name: str) -> Format:
    """The format of that exact name; InputError listing the valid names."""
    if name not in FORMATS:
        raise InputError(f"number format {name!r} is unknown; valid names: {', '.join(FORMATS)}")
    return FORMATS[name]
