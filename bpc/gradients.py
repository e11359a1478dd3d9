"""The graph behind `net.gradients`: d (mean loss) by any parameter, input or intermediate value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bpc.autodiff import differentiate
from bpc.data.describe import Description
from bpc.expr import Const, Var, gt, select
from bpc.ir import Builder, Graph, Value, retain, verify
from bpc.lower import lower
from bpc.ops import OPS
from bpc.spec.model import Spec
from bpc.types import PRECISIONS, compute_type


@dataclass(frozen=True, slots=True)
class GradientGraph:
    """A graph, and for each asked name the value and the output role that holds its gradient.

    The role is None where the loss does not depend on the value: its gradient is zero.
    """

    graph: Graph
    found: Mapping[str, tuple[Value, str | None]]


def names_of(graph: Graph) -> dict[str, Value]:
    """Everything that can be asked for: values by name, and layers by theirs.

    A layer's name stands for its result where no value is called so.
    """
    found = {node.scope: node.output for node in graph.nodes if node.scope}
    found.update(graph.values())
    return {name: value for name, value in found.items() if value.dtype.kind == "float"}


def build_forward(spec: Spec, description: Description) -> Graph:
    """The forward graph in training mode."""
    return lower(spec, description, training=True)


def build_gradients(forward: Graph, spec: Spec, of: Sequence[str]) -> GradientGraph:
    """Differentiate loss / weight by `of`, each a name of `names_of`."""
    known = names_of(forward)
    wanted = {name: known[name] for name in of}
    loss, weight = forward.output("loss"), forward.output("weight")
    b = Builder.on(OPS, forward, spec.loss.span)
    b.scope, b.phase = "loss", "backward"
    inverse = select(gt(Var("w"), 0), Const(1.0) / Var("w"), 0)
    kind = compute_type(PRECISIONS[spec.train.precision]).name
    total = b.values[weight]
    seed = b.add("map", total, name="loss.seed", expr=inverse, arguments=("w",), dtype=kind)
    outputs = (*forward.outputs, ("seed", seed.name))
    seeded = replace(forward, nodes=tuple(b.nodes), outputs=outputs)
    unique = list(dict.fromkeys(value.name for value in wanted.values()))
    done = differentiate(seeded, {loss: seed.name}, unique)
    found: dict[str, tuple[Value, str | None]] = {}
    roles: list[tuple[str, str]] = []
    for name, value in wanted.items():
        made = done.gradients[value.name]
        found[name] = (value, name if made else None)
        if made:
            roles.append((name, made))
    graph = retain(replace(done.graph, name="gradients", outputs=tuple(roles), updates=()))
    return GradientGraph(verify(graph, OPS), found)
