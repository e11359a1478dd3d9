"""Give every next version of a state a value of its own."""

from __future__ import annotations

from dataclasses import replace

from bpc.expr import Var
from bpc.ir import Builder, Graph
from bpc.ops import OPS


def copy_shared_updates(graph: Graph) -> Graph:
    """Copy a value that is to become a state but lies elsewhere: an input, a state, or a value
    that already becomes another state."""
    makers, views = graph.producers(), graph.views()
    claimed: set[str] = set()
    updates = []
    b = Builder.on(OPS, graph, graph.nodes[0].span) if graph.nodes else None
    for state, value in graph.updates:
        root = views.get(value, value)
        if (root not in makers or root in claimed) and b is not None:
            source = b.values[value]
            here = b.at(makers[value]) if value in makers else b
            here.phase = graph.nodes[-1].phase
            value = here.add("map", source, name=state, expr=Var("x"), arguments=("x",)).name
        claimed.add(root)
        updates.append((state, value))
    nodes = tuple(b.nodes) if b is not None else ()
    return replace(graph, nodes=nodes, updates=tuple(updates))
