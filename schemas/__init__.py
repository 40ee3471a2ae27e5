"""Floor 1: the graph and its op table, and everything that is written as JSON (manifest, plan, recipe, certificate), as typed structs; errors.

Import from the modules for what is not listed here: `errors` has the tree of errors, `verify` all rules of a graph, `expand` composites as
primitives, `kv` the cache's geometry.
"""

from __future__ import annotations

from .canonical import canonical_bytes, parse_canonical
from .certificate import Certificate, decode_certificate, encode_certificate
from .encoding import FormatSpec, PartSpec, Slab
from .graph import Const, Graph, Input, Node, Param, Type
from .graph_json import from_json, to_json
from .manifest import Manifest
from .ops import OPS
from .plan import Plan, decode_plan, encode_plan
from .recipe import Recipe, read_recipe, recipe_from_dict
from .text import parse, print_graph
from .verify import checked, infer

__all__ = [
    "OPS",
    "Certificate",
    "Const",
    "FormatSpec",
    "Graph",
    "Input",
    "Manifest",
    "Node",
    "Param",
    "PartSpec",
    "Plan",
    "Recipe",
    "Slab",
    "Type",
    "canonical_bytes",
    "checked",
    "decode_certificate",
    "decode_plan",
    "encode_certificate",
    "encode_plan",
    "from_json",
    "infer",
    "parse",
    "parse_canonical",
    "print_graph",
    "read_recipe",
    "recipe_from_dict",
    "to_json",
]
