"""JSON Schemas of everything that is written as JSON, for readers in other languages: schemas/json/NAME.schema.json.

`python -m thinlm.schemas.json_schema` rewrites the files; a test holds them current. A new schema is one line in STRUCTS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from .certificate import Certificate
from .graph_json import GraphJson
from .manifest import Manifest
from .plan import Plan
from .recipe import Recipe
from .scores import ScoreTable

STRUCTS: dict[str, type[msgspec.Struct]] = {
    "certificate": Certificate,
    "graph": GraphJson,
    "manifest": Manifest,
    "plan": Plan,
    "recipe": Recipe,
    "scores": ScoreTable,
}
FOLDER = Path(__file__).parent / "json"


def all_schemas() -> dict[str, dict[str, Any]]:
    """Name -> JSON Schema (2020-12)."""
    return {name: _schema(name, struct) for name, struct in STRUCTS.items()}


def schema_text(schema: dict[str, Any]) -> str:
    """The text of a schema file."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_schemas(folder: Path = FOLDER) -> None:
    """Rewrite all schema files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in all_schemas().items():
        (folder / f"{name}.schema.json").write_text(schema_text(schema), encoding="utf-8")


def _schema(name: str, struct: type[msgspec.Struct]) -> dict[str, Any]:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"thinc {name}"}
    return head | msgspec.json.schema(struct)


if __name__ == "__main__":
    write_schemas()
