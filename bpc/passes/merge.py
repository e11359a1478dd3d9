"""Compute equal things once."""

from __future__ import annotations

from dataclasses import replace

from bpc.ir import Graph, Node


def merge_common(graph: Graph) -> Graph:
    """Drop a node that repeats an earlier one of the same phase; readers use the first.

    Forward and backward stay apart: whether the backward pass keeps or repeats a forward value is
    the plan's decision. Outputs and next versions of states keep their own nodes.
    """
    first: dict[object, Node] = {}
    renamed: dict[str, str] = {}
    kept: list[Node] = []
    pinned = graph.kept()
    for node in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        node = replace(node, inputs=inputs)
        types = tuple((value.dtype, value.shape) for value in node.outputs)
        key = (node.op, inputs, node.attrs, types, node.phase)
        twin = first.setdefault(key, node)
        if twin is node or any(value.name in pinned for value in node.outputs):
            kept.append(node)
            continue
        for mine, theirs in zip(node.outputs, twin.outputs, strict=True):
            renamed[mine.name] = theirs.name
    return replace(graph, nodes=tuple(kept))
