"""Where the big arrays of a backend lie: in ordinary memory, or spilled into files that have no name.

`Spill(folder)(shape, dtype)` is a zeroed tensor, as `ordinary(shape, dtype)`, with the same number of bytes in its storage; from SPILLED bytes on
it maps a file of its own in `folder`, page-aligned, which the system may write back and evict. The file loses its name as it is made, so that a
kill leaves nothing, and dies with the tensor. Its space is taken at once: a full disk is an OSError (ENOSPC) here, not a SIGBUS at some later write.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import Tensor

SPILLED = 64 << 10  # bytes; what is smaller stays in memory

Zeros = Callable[[tuple[int, ...], torch.dtype], Tensor]


def ordinary(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in memory."""
    return torch.zeros(shape, dtype=dtype)


class Spill:
    """Zeros in unnamed files of `folder`, which must exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See the module; OSError naming the folder when the disk has no room."""
        count = prod(shape)
        nbytes = count * dtype.itemsize
        if nbytes < SPILLED:
            return ordinary(shape, dtype)
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError as e:
                raise OSError(e.errno, f"{e.strerror} for {nbytes} bytes of spilled memory", str(self._folder)) from e
            return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=True, size=count, dtype=dtype).view(shape)
