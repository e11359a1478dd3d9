"""From a chain and its plan to a graph in execution order, with what is repeated repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from bpc.ir import Graph, Node, Value, retain, verify
from bpc.ops import OPS
from bpc.plan.model import Action
from bpc.plan.repeats import REPEAT
from bpc.plan.segments import Chain


def schedule(chain: Chain, actions: Sequence[Action]) -> Graph:
    """The joint graph with its nodes in the order of the actions.

    A segment that runs again gives new values (`relu1~2`); whoever reads a forward value reads
    its newest instance. Repeated nodes belong to the backward phase, so that they fuse with what
    needs them. Nodes whose results nobody reads are dropped.
    """
    emit = _Emitter(chain)
    for action in actions:
        if action.kind == "backward":
            emit.backward(chain.backward[action.segment])
        else:
            emit.forward(action.segment, chain.forward[action.segment])
    return emit.finish()


@dataclass(slots=True)
class _Emitter:
    """Collects node instances; `newest` maps a forward value to its latest instance."""

    chain: Chain
    nodes: list[Node] = field(default_factory=list)
    newest: dict[str, str] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    makers: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = self.chain.graph.producers()

    def forward(self, segment: int, nodes: Iterable[Node]) -> None:
        """Run a segment's forward; from the second time on it is a repetition."""
        run = self.runs[segment] = self.runs.get(segment, 0) + 1
        phase = "forward" if run == 1 else "backward"
        local: dict[str, str] = {}
        for node in nodes:
            self._emit(node, run, phase, local)

    def backward(self, nodes: Iterable[Node]) -> None:
        """Run a segment's backward, once."""
        local: dict[str, str] = {}
        for node in nodes:
            inputs = tuple(self._operand(name, "backward", local) for name in node.inputs)
            self.nodes.append(replace(node, inputs=inputs))

    def finish(self) -> Graph:
        """The graph of all instances."""
        local: dict[str, str] = {}
        graph = self.chain.graph
        updates = tuple(
            (state, self._operand(value, "forward", local)) for state, value in graph.updates
        )
        outputs = tuple(
            (role, self._operand(value, "forward", local)) for role, value in graph.outputs
        )
        joint = replace(graph, nodes=tuple(self.nodes), updates=updates, outputs=outputs)
        return verify(retain(joint), OPS)

    def _emit(self, node: Node, run: int, phase: str, local: dict[str, str]) -> None:
        inputs = tuple(self._operand(name, phase, local) for name in node.inputs)
        suffix = "" if run == 1 else f"{REPEAT}{run}"
        self._append(node, inputs, suffix, phase)
        for value in node.outputs:
            self.newest[value.name] = value.name + suffix

    def _operand(self, name: str, phase: str, local: dict[str, str]) -> str:
        """The instance of a value to read now; free nodes are made anew, once per action."""
        pending = [name]
        while pending:
            maker = self._free_maker(pending[-1])
            missing = [
                part
                for part in (maker.inputs if maker and pending[-1] not in local else ())
                if part not in local and self._free_maker(part)
            ]
            if missing:  # operands first; a long chain of them is no reason to recurse
                pending += reversed(missing)
                continue
            made = pending.pop()
            if maker and made not in local:
                inputs = tuple(self._instance(part, local) for part in maker.inputs)
                count = self.uses[maker.name] = self.uses.get(maker.name, 0) + 1
                suffix = "" if count == 1 else f"{REPEAT}{count}"
                self._append(maker, inputs, suffix, phase)
                local[made] = made + suffix
        return self._instance(name, local)

    def _free_maker(self, name: str) -> Node | None:
        """The node that makes a value, if that may be made anew anywhere."""
        maker = self.makers.get(name)
        free = maker is not None and maker.phase == "forward" and maker.name in self.chain.free
        return maker if free else None

    def _instance(self, name: str, local: dict[str, str]) -> str:
        maker = self.makers.get(name)
        if maker is None or maker.phase != "forward":
            return name
        return local[name] if maker.name in self.chain.free else self.newest[name]

    def _append(self, node: Node, inputs: tuple[str, ...], suffix: str, phase: str) -> None:
        outputs = tuple(
            Value(value.name + suffix, value.dtype, value.shape) for value in node.outputs
        )
        renamed = replace(
            node, name=node.name + suffix, inputs=inputs, outputs=outputs, phase=phase
        )
        self.nodes.append(renamed)
