"""`thinc doctor`: what this installation can do here: extras, devices, and what is missing for the rest."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from importlib.util import find_spec

import click

from ...runtime_min.devices import DEVICES
from .options import emit, json_flag

_EXTRAS = {"torch": ("torch",), "compile": ("torch", "scipy", "yaml")}
_NEEDS = {"cpu": "torch", "interp": ""}


@click.command("doctor")
@json_flag
def command(as_json: bool) -> None:
    """Say what works here and what to install for the rest."""
    missing = {extra: [m for m in modules if find_spec(m) is None] for extra, modules in _EXTRAS.items()}
    devices = {d: "ok" if not _NEEDS[d] or find_spec(_NEEDS[d]) else f"missing: pip install 'thinlm[{_NEEDS[d]}]'" for d in DEVICES}
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    data = {
        "version": metadata.version("thinlm"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": threads,
        "extras": {extra: "ok" if not absent else f"missing: {', '.join(absent)}" for extra, absent in missing.items()},
        "devices": devices,
    }
    lines = [f"thinc {data['version']}, Python {data['python']}, {data['machine']}, {threads} threads"]
    lines += [f"extra {name:<8} {state}" for name, state in data["extras"].items()]
    lines += [f"device {name:<7} {state}" for name, state in devices.items()]
    emit(as_json, data, lines)
