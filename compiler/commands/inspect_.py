"""`thinc inspect`: what an artifact holds, or what a checkpoint is; `--graph` prints the canonical text of its graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import emit, human, is_artifact, json_flag


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--graph", "show_graph", is_flag=True, help="Print the graph in its canonical text form.")
@json_flag
def command(path: Path, show_graph: bool, as_json: bool) -> None:
    """Describe PATH: an artifact (folder or packed) or a Hugging Face folder."""
    from ..inspection import artifact_report, graph_at, model_report

    if show_graph:
        from ...schemas.text import print_graph

        text = print_graph(graph_at(path, is_artifact(path)))
        emit(as_json, {"graph": text}, [text.rstrip()])
        return
    report = artifact_report(path) if is_artifact(path) else model_report(path)
    emit(as_json, report, _lines(report))


def _lines(report: dict[str, Any]) -> list[str]:
    lines = []
    for key, value in report.items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name:<28} {_cell(name, v)}" for name, v in value.items())]
        elif isinstance(value, list):
            lines += [f"{key}:", *(f"  {v}" for v in value)] if value else []
        else:
            lines.append(f"{key:<24} {_cell(key, value)}")
    return lines


def _cell(key: str, value: Any) -> str:
    return human(value) if key.endswith("bytes") and isinstance(value, int) else str(value)
