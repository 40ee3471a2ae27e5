"""CRC-32 as ZIP files use it: of bytes, and of a whole from those of its parts, which different threads may have made.

In: bytes, or (CRC-32, length) of each part in order. Out: CRC-32 as an unsigned number. Polynomials over GF(2) are integers whose highest of
32 bits is x^0, as in zlib.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # x^0
_CHUNK = 1 << 20  # so that Python can switch threads and be interrupted


def crc32(data: np.ndarray) -> int:
    """CRC-32 of u8[n]."""
    crc = 0
    for start in range(0, len(data), _CHUNK):
        crc = zlib.crc32(data[start : start + _CHUNK].data, crc)
    return crc


def combined(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of parts."""
    whole = 0
    for crc, length in parts:
        whole = _times(_shift(length), whole) ^ crc
    return whole


@lru_cache(maxsize=1024)
def _shift(length: int) -> int:
    """x^(8 length): what appending `length` bytes multiplies a CRC by."""
    power, square = _ONE, _ONE >> 8
    while length:
        power = _times(power, square) if length & 1 else power
        square, length = _times(square, square), length >> 1
    return power


def _times(a: int, b: int) -> int:
    """a b modulo the polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
