"""Rewrite every op into primitives: maps, reductions, products, convolutions, views."""

from __future__ import annotations

from dataclasses import replace

from bpc.ir import Builder, Graph
from bpc.ops import OPS


def expand(graph: Graph) -> Graph:
    """Replace nodes by what their rows expand into; results keep their names."""
    while any(OPS[node.op].expand for node in graph.nodes):
        graph = _expand_once(graph)
    return graph


def _expand_once(graph: Graph) -> Graph:
    b = Builder(OPS, graph.nodes[0].span)
    b.taken.update(graph.values())
    b.taken.update(node.name for node in graph.nodes)
    b.values.update((value.name, value) for value in graph.inputs)
    b.values.update((state.name, state.value) for state in graph.states)
    for node in graph.nodes:
        rewrite = OPS[node.op].expand
        if rewrite is None:
            b.nodes.append(node)
            b.values.update((value.name, value) for value in node.outputs)
            continue
        b.taken.difference_update({node.name}, (value.name for value in node.outputs))
        here = replace(b.at(node), origin=node.origin or node.name, role=node.role or node.op)
        made = rewrite(here, node)
        for wanted, got in zip(node.outputs, made, strict=True):
            assert wanted == got, f"{node.name}: expanded to {got}, expected {wanted}"
    return replace(graph, nodes=tuple(b.nodes))
