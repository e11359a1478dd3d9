"""Cut the forward part of a joint graph into a chain of segments, and measure each.

A cut lies between two kernels where a single tensor crosses (states, inputs and scalars aside).
Sizes are those of the kernels that keep-all gives; they steer the choice of a plan, while its true
peak is found by placing and replaying the program that the plan leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bpc.ir import Graph, Node, Value
from bpc.ops import OPS
from bpc.plan.groups import PRODUCTS, Group, Grouping, form_groups
from bpc.plan.model import Saving, Segment
from bpc.types import elements, nbytes

MOST_SEGMENTS = 128
"""Neighbouring parts of longer chains are kept or repeated together."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A forward pass as segments. `forward` and `backward` list each segment's own nodes in order.

    `cuts[s]` is the value that enters segment s (None for the first: inputs persist). Nodes that
    have no kernel of their own (views, positions, deferred values) are `free`: whoever needs one
    makes it anew.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    forward: tuple[tuple[Node, ...], ...]
    backward: tuple[tuple[Node, ...], ...]
    cuts: tuple[str | None, ...]
    free: frozenset[str]
    flops: tuple[int, ...]


def find_chain(graph: Graph, rows: int) -> Chain:
    """The segments of a joint graph of primitives; a graph without cuts is a single segment."""
    grouping = form_groups(graph)
    forward = [group for group in grouping.groups if group.phase == "forward"]
    bounds, cuts = _thin_out(*_find_cuts(grouping, forward))
    parts = [forward[a:b] for a, b in pairwise(bounds)]
    position = {node.name: k for k, node in enumerate(graph.nodes)}
    placed = [_own_nodes(grouping, part, position) for part in parts]
    free = frozenset(
        node.name
        for node in graph.nodes
        if node.phase == "forward" and node.output.name not in grouping.home
    )
    backward = _split_backward(graph, placed)
    values = graph.values()
    flops = tuple(sum(_flops(values, node, rows) for node in nodes) for nodes in placed)
    measure = _Measure(grouping, rows, placed, backward, cuts)
    segments = tuple(measure.segment(index, flops[index]) for index in range(len(parts)))
    return Chain(graph, segments, tuple(placed), backward, cuts, free, flops)


def _find_cuts(
    grouping: Grouping, groups: Sequence[Group]
) -> tuple[list[int], tuple[str | None, ...]]:
    """Bounds of the parts, and the value that enters each."""
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, group in enumerate(groups):
        for node in group.nodes:
            for value in node.outputs:
                if grouping.home.get(value.name) is group and elements(value.shape, 2) > 1:
                    made[value.name] = index
            for leaf in _stored_reads(grouping, node):
                last[leaf] = index
    bounds, cuts = [0], [None]
    for index in range(1, len(groups)):
        crossing = [v for v, at in made.items() if at < index <= last.get(v, -1)]
        if len(crossing) == 1:
            bounds.append(index)
            cuts.append(crossing[0])  # type: ignore[arg-type]
    return [*bounds, len(groups)], tuple(cuts)


def _thin_out(
    bounds: list[int], cuts: tuple[str | None, ...]
) -> tuple[list[int], tuple[str | None, ...]]:
    """Every k-th cut where there are many: the search takes the cube of their number.

    Equal layers stay equal segments, which the search solves once.
    """
    step = -(-len(cuts) // MOST_SEGMENTS)
    return [*bounds[:-1:step], bounds[-1]], cuts[::step]


def _stored_reads(grouping: Grouping, node: Node) -> Iterator[str]:
    yield from grouping.leaves(node)
    if node.op in PRODUCTS:
        yield from (grouping.root(name) for name in node.inputs)


def _own_nodes(
    grouping: Grouping, groups: Iterable[Group], position: dict[str, int]
) -> tuple[Node, ...]:
    """Forward nodes of the groups that are at home there, in graph order."""
    nodes = [
        node
        for group in groups
        for node in group.nodes
        if grouping.home.get(node.output.name) is group and node.phase == "forward"
    ]
    return tuple(sorted(nodes, key=lambda node: position[node.name]))


def _split_backward(
    graph: Graph, placed: Sequence[tuple[Node, ...]]
) -> tuple[tuple[Node, ...], ...]:
    """Backward nodes by the segment of the forward node they come from, last segment first.

    The order of the backward pass is kept: a node stays at least as late as those before it.
    """
    segment_of = {node.name: k for k, nodes in enumerate(placed) for node in nodes}
    scopes = {node.scope: k for k, nodes in enumerate(placed) for node in nodes}
    parts: list[list[Node]] = [[] for _ in placed]
    current = len(placed) - 1
    for node in graph.nodes:
        if node.phase == "forward":
            continue
        found = segment_of.get(node.origin or "", scopes.get(node.scope, current))
        current = min(current, found)
        parts[current].append(node)
    return tuple(tuple(part) for part in parts)


def _flops(values: Mapping[str, Value], node: Node, rows: int) -> int:
    return OPS[node.op].flops(node, [values[name] for name in node.inputs], rows)


@dataclass(slots=True)
class _Measure:
    """Bytes of a segment's forward and backward, from the keep-all groups."""

    grouping: Grouping
    rows: int
    placed: Sequence[tuple[Node, ...]]
    backward: Sequence[tuple[Node, ...]]
    cuts: tuple[str | None, ...]

    def segment(self, index: int, flops: int) -> Segment:
        """One segment in the terms of the chain planner."""
        last = index == len(self.placed) - 1
        entering, leaving = self.cuts[index], None if last else self.cuts[index + 1]
        own = {value.name for node in self.placed[index] for value in node.outputs}
        reads = self._backward_reads(index)
        saved = sum(self._bytes(v) for v in own & reads if v != leaving)
        output = self._bytes(leaving) if leaving else 0
        forward = max(self._forward_peak(index, leaving, set()), output)
        saving_peak = max(self._forward_peak(index, leaving, own & reads), saved + output)
        saving = Saving(
            saved_bytes=saved,
            forward_peak_bytes=saving_peak,
            backward_peak_bytes=self._backward_peak(index),
            needs_input=entering in reads,
            needs_output=leaving is not None and leaving in reads,
        )
        return Segment(
            name=self.placed[index][-1].scope,
            input_bytes=self._bytes(entering) if entering else 0,
            output_bytes=output,
            gradient_bytes=output,
            forward_peak_bytes=forward,
            forward_cost=flops,
            savings=(saving,),
        )

    def _bytes(self, name: str) -> int:
        value = self.grouping.values[name]
        return -(-nbytes(value.dtype, value.shape, self.rows) // 64) * 64

    def _backward_reads(self, index: int) -> set[str]:
        return {
            leaf for node in self.backward[index] for leaf in _stored_reads(self.grouping, node)
        }

    def _forward_peak(self, index: int, leaving: str | None, held: set[str]) -> int:
        """Most bytes of new tensors alive while the segment runs, `held` ones to its end."""
        return self._peak(self.placed[index], held | ({leaving} if leaving else set()))

    def _backward_peak(self, index: int) -> int:
        return self._peak(self.backward[index], set())

    def _peak(self, nodes: Sequence[Node], held: set[str]) -> int:
        """Largest live sum over the kernels of these nodes, in order."""
        groups: list[Group] = []
        for node in nodes:
            group = self.grouping.home.get(node.output.name)
            if group is not None and group not in groups:
                groups.append(group)
        last: dict[str, int] = {}
        for at, group in enumerate(groups):
            for node in group.nodes:
                for leaf in _stored_reads(self.grouping, node):
                    if not group.makes(leaf):
                        last[leaf] = at
        alive: set[str] = set()
        most = 0
        gradients = {self.grouping.root(value) for _, value in self.grouping.graph.updates}
        for at, group in enumerate(groups):
            for node in group.nodes:
                for value in node.outputs:
                    outside = (value.name in last or value.name in held) and (
                        value.name not in gradients
                    )
                    if outside and self.grouping.home.get(value.name) is group:
                        alive.add(value.name)
            most = max(most, sum(self._bytes(name) for name in alive))
            alive = {name for name in alive if last.get(name, -1) > at or name in held}
        return most
