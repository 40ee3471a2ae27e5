"""What the tests of the verifier share: graphs of one broken op, and the kinds of violations that a module's source can state."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from graphs import one_op
from thinlm.schemas.graph import Graph, Input, Type


def op_graph(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Graph:
    """As graphs.one_op, unverified, values renamed to h0, h1...; "ids3" is an input i32[B, T, 4] that only this test has."""
    graph = one_op(op, inputs, attrs, raw=True)

    def renamed(name: str) -> str:
        return re.sub(r"^v(\d+)$", r"h\1", name)

    nodes = tuple(replace(n, inputs=tuple(map(renamed, n.inputs)), output=renamed(n.output)) for n in graph.nodes)
    extra = (Input("ids3", Type("i32", ("B", "T", 4))),) if "ids3" in inputs else ()
    return replace(graph, inputs=graph.inputs + extra, nodes=nodes, outputs=tuple((n, renamed(v)) for n, v in graph.outputs))


def said_of(op: str, message: str) -> str:
    return f"node %out {op}: {re.sub(r'%', '', message)}"


def templates(module: ModuleType) -> Iterator[str]:
    """Regular expressions for the messages in a module's source: arguments of need() and OpError(), and texts that are yielded or returned."""
    for found in ast.walk(ast.parse(inspect.getsource(module))):
        texts: list[ast.expr] = []
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id in ("need", "OpError"):
            texts = found.args[-1:]
        elif isinstance(found, ast.Yield | ast.Return) and found.value:
            texts = [found.value.body if isinstance(found.value, ast.IfExp) else found.value]
        elif isinstance(found, ast.GeneratorExp):
            texts = [found.elt]
        for message in texts:
            if isinstance(message, ast.JoinedStr):
                yield "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in message.values)
            elif isinstance(message, ast.Constant) and isinstance(message.value, str):
                yield re.escape(message.value)


# Texts that are only parts of messages.
PARTS = {"".join(re.escape(p) or ".*" for p in parts) for parts in (("[", "", "]"), ("a list of ", ""), ("a finite float",), ("%", "", " : ", ""))}


def untested(module: ModuleType, said: Iterable[str]) -> list[str]:
    """The kinds of a module that none of the texts is of."""
    said = list(said)
    return sorted(t for t in set(templates(module)) - PARTS if not any(re.search(f"(^|: ){t}$", text) for text in said))
