"""Devices by name, parsed in one place: `cpu` (torch), `interp` (numpy). A device opened with a `spill` folder holds no model in anonymous memory."""

from __future__ import annotations

from pathlib import Path

from ..schemas.errors import BackendError, UsageError
from .backend import Backend

DEVICES = ("cpu", "interp")


def open_backend(device: str, spill: Path | None = None) -> Backend:
    """The backend that `device` names; UsageError for an unknown name, BackendError when an extra is missing.

    `spill` is a folder for unnamed files: slower, and resident memory is bounded by what one step of a run needs.
    """
    kind = device.partition(":")[0]
    if device not in DEVICES:
        if kind in ("cuda", "vulkan"):
            raise BackendError(f"device {device}: this version runs on {' and '.join(DEVICES)} only")
        raise UsageError(f"device {device!r}: expected one of {', '.join(DEVICES)}")
    if device == "interp":
        from .backends.numpy_ref import NumpyBackend

        return NumpyBackend()
    from .backends.torch_cpu import TorchBackend

    return TorchBackend(spill)
