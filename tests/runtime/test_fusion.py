"""Fusion changes no bit: every stored value against the program of one kernel per node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import SPAN, Case, generator, joint_of, score_of, spread
from header_drivers import NEEDS_COMPILER
from programs import open_net, plan_net, poison, prefixed, read_bits, share_library, write

from bpc.expr import Call, Const, Expr, Var
from bpc.ir import Builder, Graph, Init, State, Value, verify
from bpc.ops import OPS
from bpc.passes import run_passes
from bpc.plan.program import build_program
from bpc.resources import spec_root
from bpc.runtime.cpu.device import CpuDevice
from bpc.train.control import initial_control
from bpc.train.evaluate import feed
from bpc.train.initial import initial_values
from bpc.types import BF16, BIT, F16, F32, F64, DType, Rows, shape_at

pytestmark = NEEDS_COMPILER

OWN = Path(__file__).parent.parent / "specs"
ZOO = [
    (spec_root() / "digits_mlp.yaml", "fp32"),
    (spec_root() / "small_conv.yaml", "fp32"),
    (spec_root() / "small_conv.yaml", "fp16"),
    (OWN / "residual_tied.yaml", "bf16"),
    (OWN / "conv_chain.yaml", "fp64"),
]


def without_updates(graph: Graph) -> Graph:
    """Next versions of states as outputs: one kernel per node may read a state late."""
    made = tuple((f"next.{state}", name) for state, name in graph.updates)
    return replace(graph, outputs=(*graph.outputs, *made), updates=())


def pair(graphs: Mapping[str, Graph], states: tuple[State, ...], rows: int) -> list[CpuDevice]:
    """The fused program and the one of single nodes."""
    plain = {name: without_updates(graph) for name, graph in graphs.items()}
    return share_library([build_program(plain, states, rows, joined) for joined in (True, False)])


def stored_values(device: CpuDevice, entry: str, rows: int) -> dict[str, bytes]:
    """The bytes of every value in the moment it is written, for the rows at hand."""
    placed = device.program.entries[entry]
    values, found = placed.graph.values(), {}
    poison(device)
    for at in device.run_one_by_one(entry, rows):
        for operand in placed.kernels[at].writes:
            value = values[operand.value]
            start = placed.offset_of(operand)
            shape = shape_at(value.shape, rows)
            if value.dtype == BIT:
                found[operand.value] = read_bits(device.arena, start, shape).tobytes()
                continue
            count = int(np.prod(shape, dtype=np.int64)) * value.dtype.bits // 8
            found[operand.value] = device.arena[start : start + count].tobytes()
    return found


def assert_same(fused: CpuDevice, apart: CpuDevice, entry: str, rows: int) -> None:
    """Whatever both programs store has the same bytes, and that is every output at least."""
    ours, theirs = (stored_values(device, entry, rows) for device in (fused, apart))
    assert set(ours) <= set(theirs)
    for name, content in ours.items():
        assert content == theirs[name], f"{entry}: {name} differs with {rows} rows"
    assert len(fused.program.entries[entry].kernels) <= len(apart.program.entries[entry].kernels)


@pytest.mark.parametrize(("path", "precision"), ZOO, ids=lambda one: getattr(one, "stem", one))
def test_the_networks_of_the_zoo(path: Path, precision: str) -> None:
    net = open_net(path, {"train.precision": precision, "data.batch": 19})
    graphs = {name: run_passes(graph) for name, graph in net.entries.graphs.items()}
    devices = pair(graphs, net.entries.states, net.entries.rows)
    start = initial_values(net.entries.states_of("parameter"), 3)
    start |= initial_values(net.entries.states_of("master"), 3)
    for device in devices:
        for name, value in start.items():
            device.write_state(name, value)
        for kind in ("gradient", "moment"):
            for state in net.entries.states_of(kind):
                shape = shape_at(state.value.shape, 1)
                draws = generator(state.name).uniform(0.01, 0.2, shape)
                device.write_state(state.name, draws)
        for name, number in {**initial_control(net.spec, 50), "control.divisor": 19.0}.items():
            device.write_scalar(name, number)
        feed(device, {name: values[:19] for name, values in net.data.train.items()})
    for name in graphs:
        for rows in (19, 4, 1):
            assert_same(*devices, name, rows)


# -- random graphs --------------------------------------------------------------------------------

x, y = Var("x"), Var("y")
UNARY: tuple[Expr, ...] = (
    Call("tanh", (x,)),
    Call("exp", (Call("min", (x, Const(1.0))),)),
    x * x * Const(0.3),
    Call("select", (Call("gt", (x, Const(0.1))), x, Const(0.2) * x)),
    Const(1.0) / (Const(1.5) + x * x),
)
BINARY: tuple[Expr, ...] = (x * y, x - Const(0.5) * y, x + y, Call("max", (x, y)))
SHAPES = [(Rows(), 3, 10), (Rows(), 37), (Rows(), 1), (Rows(), 2, 3, 5)]


def random_case(seed: int, dtype: DType) -> Case:
    """Some twenty nodes: element-wise with broadcasts, sums, softmax, layer norm, products."""
    rng, shape = np.random.default_rng(seed), SHAPES[seed % len(SHAPES)]
    b, given, states = Builder(OPS, SPAN, scope="random"), {}, []
    first = b.declare(Value("start", dtype, shape))
    given["start"] = spread(shape_at(shape, 7), 0, generator(seed))

    def parameter(own: tuple[int, ...]) -> Value:
        value = b.declare(Value(f"parameter{len(states)}", dtype, own))
        states.append(State(value, "parameter", Init("zeros"), SPAN))
        given[value.name] = spread(own, 1, generator(seed, len(states))) / 2
        return value

    values = [first]
    fixed = tuple(dim for dim in shape if isinstance(dim, int))
    for _ in range(18):
        source = values[int(rng.integers(max(0, len(values) - 4), len(values)))]
        kind = int(rng.integers(0, 8))
        if kind <= 2:
            expr = UNARY[int(rng.integers(len(UNARY)))]
            made = b.add("map", source, expr=expr, arguments=("x",), dtype=dtype.name)
        elif kind == 3:
            other = values[int(rng.integers(len(values)))]
            expr = BINARY[int(rng.integers(len(BINARY)))]
            made = b.add("map", source, other, expr=expr, arguments=("x", "y"), dtype=dtype.name)
        elif kind == 4:
            own = tuple(1 if rng.random() < 0.4 else dim for dim in fixed)
            expr = BINARY[int(rng.integers(len(BINARY)))]
            operands = (source, parameter(own))
            made = b.add("map", *operands, expr=expr, arguments=("x", "y"), dtype=dtype.name)
        elif kind == 5:
            axes = sorted(rng.choice(range(1, len(shape)), int(rng.integers(1, len(shape))), False))
            total = b.add("sum", source, axes=tuple(map(int, axes)), keepdims=True)
            if rng.random() < 0.5:
                total = b.add("map", total, expr=UNARY[3], arguments=("x",), dtype=dtype.name)
            expr = x - y * Const(0.1)
            made = b.add("map", source, total, expr=expr, arguments=("x", "y"), dtype=dtype.name)
        elif kind == 6:
            made = b.add("softmax", source)
        else:
            width = shape[-1]
            assert isinstance(width, int)
            made = b.add("linear", source, parameter((width, width)), parameter((width,)))
        values.append(made)
    weights = score_of(b, [values[-1], values[-3]], given, 7)
    outputs = (("score", "score"),)
    graph = verify(Graph("random", (first, *weights), tuple(states), tuple(b.nodes), outputs), OPS)
    return Case(graph, given, 7, ("start", *(state.name for state in states)))


@pytest.mark.parametrize(
    ("dtype", "seeds"), [(F32, range(8)), (F64, (2, 5)), (F16, (3, 6)), (BF16, (0, 1))], ids=str
)
def test_random_graphs_and_their_gradients(dtype: DType, seeds: Sequence[int]) -> None:
    cases = {f"g{seed}": random_case(seed, dtype) for seed in seeds}
    graphs = {}
    for name, case in cases.items():
        joint, _ = joint_of(case, wrt=[n for n in case.floats if _is_used(case.graph, n)])
        graphs[name] = run_passes(prefixed(joint, f"{name}/"))
    states = tuple(state for graph in graphs.values() for state in graph.states)
    devices = pair(graphs, states, 9)
    for name, case in cases.items():
        for rows in (7, 1):
            for device in devices:
                for label, array in case.given.items():
                    value = device.program.persistent[f"{name}/{label}"]
                    here = array[:rows] if isinstance((*value.shape, 0)[0], Rows) else array
                    write(device, value, here, rows)
            assert_same(*devices, name, rows)


def _is_used(graph: Graph, name: str) -> bool:
    return any(name in node.inputs for node in graph.nodes)


# -- what a step launches -------------------------------------------------------------------------


def test_launches_of_a_training_step() -> None:
    """Three linear layers: one launch forward, at most three backward; the loss takes three."""
    program = plan_net(open_net(spec_root() / "mnist_mlp.yaml")).program
    step = program.entries["micro_step"]
    served = {kernel.name: set(kernel.nodes) for kernel in step.kernels}
    for layer in ("linear1", "linear2", "linear3"):
        forward = [n for n, nodes in served.items() if layer in nodes]
        assert len(forward) == 1, forward
        phases = {node.name: (node.phase, node.scope) for node in step.graph.nodes}
        own = ("backward", layer)
        backward = [n for n, nodes in served.items() if any(phases[k] == own for k in nodes)]
        assert 2 <= len(backward) <= 3, backward
    for activation in ("relu1", "relu2"):
        (alone,) = [n for n, nodes in served.items() if activation in nodes]
        assert len(served[alone]) > 1, "an activation is an epilogue"
    rest = [k for k in step.kernels if all("loss" in name for name in k.nodes)]
    assert len(rest) <= 3
    assert len(step.kernels) == 3 + 3 + 8
    update = program.entries["update"]
    assert len(update.kernels) == 6 + 1 + 6
    assert len(program.entries["predict"].kernels) == 3
