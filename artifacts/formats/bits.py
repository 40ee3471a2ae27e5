"""Bit streams of unsigned codes of 1 to 8 bits, least significant bit first: code j of a row is bits [j N, (j+1) N).

pack: uint8[rows, count] -> uint8[rows, ceil(count N / 8)], the rest of the last byte zero; unpack is its inverse. Two cases:
1. N divides 8: whole codes per byte, byte-wise shifts.
2. otherwise: 8 codes are N bytes, handled as one 64-bit word.
"""

from __future__ import annotations

import numpy as np


def pack(codes: np.ndarray, width: int) -> np.ndarray:
    """uint8[rows, count] codes below 2^width -> their bit stream."""
    rows, count = codes.shape
    if width == 8:
        return codes
    nbytes = -(-count * width // 8)
    per = 8 // width if 8 % width == 0 else 8
    padded = np.zeros((rows, -(-count // per), per), np.uint8)
    padded.reshape(rows, -1)[:, :count] = codes
    word = np.zeros(padded.shape[:2], np.uint8 if per * width == 8 else np.dtype("<u8"))
    for k in range(per):
        word |= padded[:, :, k].astype(word.dtype) << word.dtype.type(k * width)
    stream = word.view(np.uint8).reshape(rows, -1, word.itemsize)[:, :, : per * width // 8]
    return stream.reshape(rows, -1)[:, :nbytes]


def unpack(raw: np.ndarray, width: int, count: int) -> np.ndarray:
    """Bit stream uint8[rows, ceil(count width / 8)] -> uint8[rows, count] codes."""
    if width == 8:
        return raw
    word = raw if 8 % width == 0 else _words(raw, width)
    per = 8 // width if 8 % width == 0 else 8
    codes = np.empty((*word.shape, per), np.uint8)
    mask = word.dtype.type((1 << width) - 1)
    for k in range(per):
        codes[:, :, k] = (word >> word.dtype.type(k * width)) & mask
    return codes.reshape(len(raw), -1)[:, :count]


def _words(raw: np.ndarray, width: int) -> np.ndarray:
    """The stream as one little-endian 64-bit word per 8 codes: uint64[rows, ceil(bytes / width)]."""
    rows, nbytes = raw.shape
    blocks = -(-nbytes // width)
    if nbytes != blocks * width:
        raw = np.pad(raw, ((0, 0), (0, blocks * width - nbytes)))
    wide = np.zeros((rows, blocks, 8), np.uint8)
    wide[:, :, :width] = raw.reshape(rows, blocks, width)
    return wide.view("<u8")[:, :, 0]
