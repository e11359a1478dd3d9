"""Results of a graph in a wider type than their rule gave them: gradients kept in f32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bpc.ir import Graph, Node, Value
from bpc.ops import OPS
from bpc.types import DType

_PASSING = ("add", "reshape")  # results whose rounding is that of their operands


def widen_results(graph: Graph, wanted: Mapping[str, DType]) -> Graph:
    """The graph whose nodes round these values to wider types.

    A sum and a view also take wider operands, where nothing else reads them. A value that other
    nodes read, or whose op cannot make another type, stays as it is.

    Args:
        graph: a verified graph.
        wanted: the types by value.
    """
    change = _Change(graph)
    for name, dtype in wanted.items():
        change.widen(name, dtype, readers=0)
    if not change.results:
        return graph
    return replace(graph, nodes=tuple(change.results.get(n.name, n) for n in graph.nodes))


@dataclass(slots=True)
class _Change:
    graph: Graph
    results: dict[str, Node] = field(default_factory=dict)
    makers: dict[str, Node] = field(init=False)
    readers: dict[str, list[Node]] = field(init=False)
    values: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.makers, self.readers = self.graph.producers(), self.graph.consumers()
        self.values = self.graph.values()

    def widen(self, name: str, dtype: DType, readers: int) -> None:
        """Widen one value that has this number of readers, and what it is the sum or view of."""
        node, value = self.makers.get(name), self.values[name]
        if node is None or value.dtype.bits >= dtype.bits or value.dtype.kind != "float":
            return
        if len(self.readers.get(name, ())) > readers or len(node.outputs) > 1:
            return
        if node.op in _PASSING:
            for operand in node.inputs:
                self.widen(operand, dtype, readers=1)
        attrs = {**dict(node.attrs), "dtype": dtype.name} if node.op != "reshape" else None
        packed = node.attrs if attrs is None else tuple(sorted(attrs.items()))
        operands = [self.values[operand] for operand in node.inputs]
        ((made, shape),) = OPS[node.op].infer(operands, packed)
        if made != dtype:
            return
        self.values[name] = replace(value, dtype=made)
        outputs = (Value(name, made, shape),)
        self.results[node.name] = replace(node, attrs=packed, outputs=outputs)
