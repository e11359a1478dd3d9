"""Units that are 0 on every example of a sample: layers like relu can lose them for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.errors import Span
from bpc.expr import evaluate
from bpc.ir import Graph, Node, retain
from bpc.ops import is_elementwise
from bpc.ops.base import scalar_form
from bpc.runtime.reference import run_graph
from bpc.types import Rows

MOST_ROWS = 256

_BELOW = np.array([-4.0, -1.0, -0.25])
_ABOVE = np.array([0.25, 1.0, 4.0])


@dataclass(frozen=True, slots=True)
class ZeroUnits:
    """The share of a layer's units that are 0 on every example; a unit is an element of a row."""

    layer: str
    share: float
    span: Span


class UnitCounter:
    """Counts zero units of every layer like relu, on a fixed sample of rows."""

    def __init__(self, predict: Graph, part: Mapping[str, NDArray[Any]]):
        self._watched = [node for node in predict.nodes if is_like_relu(node)]
        wanted = [node.output.name for node in self._watched]
        self._graph = retain(replace(predict, outputs=()), wanted)
        self._sample = {value.name: part[value.name][:MOST_ROWS] for value in predict.inputs}

    def places(self) -> dict[str, Span]:
        """The watched layers and where they stand."""
        return {node.scope: node.span for node in reversed(self._watched)}

    def count(self, parameters: Mapping[str, NDArray[Any]]) -> list[ZeroUnits]:
        """The shares with these parameters, in the order of the model."""
        if not self._watched:
            return []
        rows = len(next(iter(self._sample.values())))
        values = run_graph(self._graph, {**parameters, **self._sample}, rows)
        return [
            ZeroUnits(
                node.scope, float((values[node.output.name] == 0).all(axis=0).mean()), node.span
            )
            for node in self._watched
        ]


def is_like_relu(node: Node) -> bool:
    """Whether a node maps one operand to 0 below zero and to something else above."""
    value = node.output
    rowwise = value.shape and isinstance(value.shape[0], Rows) and value.dtype.kind == "float"
    if not rowwise or not is_elementwise(node) or len(node.inputs) != 1:
        return False
    body, (argument,) = scalar_form(node)
    below, above = (evaluate(body, {argument: points}, np.float64) for points in (_BELOW, _ABOVE))
    return bool((below == 0).all() and (above != 0).any())
