"""The machine class that a certificate was measured on: processor, threads, library versions. No host name, no time."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..schemas.certificate import Device

LIBRARIES = {"torch_cpu": ("numpy", "torch"), "interp": ("numpy",)}


def this_device(backend: str) -> Device:
    """The machine that this process runs on."""
    libraries = {name: found for name in LIBRARIES.get(backend, ("numpy",)) if (found := _version(name))}
    return Device(cpu=_processor(), threads=len(os.sched_getaffinity(0)), libraries={"python": platform.python_version(), **libraries})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """The model name as Linux tells it, elsewhere the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
