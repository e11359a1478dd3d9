"""Remove what nothing needs."""

from __future__ import annotations

from bpc.ir import Graph, retain


def drop_unused(graph: Graph) -> Graph:
    """Remove every node that no output and no next version of a state depends on."""
    return retain(graph)
