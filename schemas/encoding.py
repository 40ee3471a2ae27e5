"""How a matrix of numbers becomes bytes, as data that a manifest carries; and the slab, the unit in which bytes are handed around.

A format stores a matrix f32[rows, cols] as u8[rows, row_bytes]. A row is its parts one after another, each padded to a whole byte:

  count "in"      one element per column
  count "groups"  one element per `group` columns; the last group may be short
  count "one"     one element per row

Element types, all little-endian:
  u1..u8   unsigned codes in a bit stream, least significant bit first: element j is bits [j N, (j+1) N) of the part
  f16 bf16 f32 f8e4m3   IEEE half, bfloat16, IEEE single, and OCP FP8 E4M3 (no infinities)

The value of a weight is an expression over the parts, every operation rounded to float32:
  a part's name | a number | ["add"|"sub"|"mul", a, b] | ["exp2", a] (a power of two, a truncated to an integer)
  | ["take", [n0, n1, ...], codes] (entry number code of a table of numbers)

Refused (ValueError, which msgspec reports as a validation error): an unknown type, count or operation; no part with one element per
column; a part that is never read or not declared; a group without a "groups" part, or the reverse; a "take" table that is shorter than
its codes can reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec
import numpy as np

ElementType = Literal["u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8", "f16", "bf16", "f32", "f8e4m3"]
Count = Literal["in", "groups", "one"]
Expr = str | float | tuple[Any, ...]  # see the module docstring; nested lists become tuples

ELEMENT_BITS: dict[str, int] = {**{f"u{n}": n for n in range(1, 9)}, "f16": 16, "bf16": 16, "f32": 32, "f8e4m3": 8}
OPERATIONS: dict[str, int] = {"add": 2, "sub": 2, "mul": 2, "exp2": 1, "take": 2}  # name -> number of operands
MAX_DEPTH = 8  # of a value expression, tables included: bounds the work that a hostile manifest can ask for
assert set(ELEMENT_BITS) == set(get_args(ElementType))


class PartSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a row: `count` elements of `type`."""

    name: str
    type: ElementType
    count: Count


class FormatSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number format `<family>-<params>/<version>`: everything needed to decode it. One name = one byte layout, for ever."""

    name: str
    group: int  # columns that share an element of a "groups" part; 0 = none
    parts: tuple[PartSpec, ...]
    value: Expr

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "value", _as_tuples(self.value, MAX_DEPTH))
        declared = {part.name: part for part in self.parts}
        if not declared or len(declared) != len(self.parts):
            raise ValueError(f"format {self.name}: parts must be named, once each")
        if not any(part.count == "in" for part in self.parts):
            raise ValueError(f"format {self.name}: no part has one element per column")
        if (self.group > 0) != any(part.count == "groups" for part in self.parts) or self.group < 0:
            raise ValueError(f"format {self.name}: group={self.group} and the counts of its parts disagree")
        used = _check_expression(self.name, self.value, declared)
        if used != set(declared):
            raise ValueError(f"format {self.name}: parts {sorted(set(declared) - used)} are never read by its value")


@dataclass(frozen=True, slots=True)
class Slab:
    """Rows [row0, row1) x columns [col0, col1) of one tensor, encoded on its own: `raw` is u8[row1 - row0, row_bytes(col1 - col0)]."""

    row0: int
    row1: int
    col0: int
    col1: int
    raw: np.ndarray


def _as_tuples(node: Any, depth: int) -> Any:
    if not isinstance(node, list | tuple):
        return node
    if depth == 0:
        raise ValueError(f"a value expression is nested deeper than {MAX_DEPTH}")
    return tuple(_as_tuples(item, depth - 1) for item in node)


def _check_expression(name: str, node: Any, declared: dict[str, PartSpec]) -> set[str]:
    """Names of the parts that `node` reads; ValueError where it is malformed."""
    if isinstance(node, str):
        if node not in declared:
            raise ValueError(f"format {name}: value reads {node!r}, which is not one of its parts {sorted(declared)}")
        return {node}
    if _is_number(node):
        return set()
    if not isinstance(node, tuple) or not node or node[0] not in OPERATIONS or len(node) != 1 + OPERATIONS[node[0]]:
        raise ValueError(f"format {name}: {node!r} is not an operation of {sorted(OPERATIONS)} with its operands")
    if node[0] == "take":
        return _check_take(name, node, declared)
    return set().union(*(_check_expression(name, operand, declared) for operand in node[1:]))


def _check_take(name: str, node: tuple[Any, ...], declared: dict[str, PartSpec]) -> set[str]:
    _, table, codes = node
    part = declared.get(codes) if isinstance(codes, str) else None
    if part is None or not part.type.startswith("u"):
        raise ValueError(f"format {name}: take looks up {codes!r}, which is not a part of unsigned codes")
    if not isinstance(table, tuple) or len(table) < 2 ** ELEMENT_BITS[part.type] or not all(map(_is_number, table)):
        raise ValueError(f"format {name}: take needs a table of {2 ** ELEMENT_BITS[part.type]} numbers for {part.type} codes")
    return {part.name}


def _is_number(node: Any) -> bool:
    return isinstance(node, int | float) and not isinstance(node, bool) and math.isfinite(node)
