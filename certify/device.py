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
    libraries = {name: found for name in LIBRARIES.get(backend, ("numpy",)) if (found := library_version(name))}
    model = processor_field("model name") or platform.processor() or platform.machine()
    return Device(cpu=model, threads=len(os.sched_getaffinity(0)), libraries={"python": platform.python_version(), **libraries})


def library_version(name: str) -> str:
    """The installed version of a distribution, "" when there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def processor_field(name: str) -> str:
    """What Linux says about the first processor ("model name", "vendor_id"); "" elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
