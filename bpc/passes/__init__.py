"""Rewrites from graph to graph, in run order. The graph is verified after each."""

from __future__ import annotations

from collections.abc import Callable

from bpc.ir import Graph, verify
from bpc.ops import OPS
from bpc.passes.expand import expand
from bpc.passes.finish import copy_shared_updates
from bpc.passes.merge import merge_common
from bpc.passes.views import drop_unused

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    drop_unused,
    expand,
    merge_common,
    copy_shared_updates,
    drop_unused,
)


def run_passes(graph: Graph, passes: tuple[Pass, ...] = PASSES) -> Graph:
    """Apply each pass in turn and check the grammar after it."""
    for rewrite in passes:
        graph = verify(rewrite(graph), OPS)
    return graph
