"""A new element-wise op is one row: everything else follows without touching another file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bpc.autodiff import differentiate
from bpc.data.describe import describe
from bpc.expr import Const, Expr, Var, gt, select
from bpc.ir import Graph
from bpc.lower import lower
from bpc.ops import OPS, Op, elementwise
from bpc.ops.layers import layer_schemas, loss_schemas
from bpc.optimizer import OPTIMIZERS
from bpc.passes import run_passes
from bpc.runtime.reference import run_graph
from bpc.spec import Spec, load_spec
from bpc.types import BIT, Option, nbytes

sys.path.append(str(Path(__file__).parent / "runtime"))
from header_drivers import NEEDS_COMPILER
from programs import bundle

x, y = Var("x"), Var("y")
ROWS = 3
SIZE = Option("size", "float", 2.0, minimum=0.0, help="factor of the cubic term")

TEXT = """bpc: 1
name: new-op
data: {source: synthetic, batch: 3, shape: [4], target_shape: [4]}
model:
  - linear: {out: 4, name: fc}
  - NAME: {name: mid}
  - linear: {out: 4, name: last}
loss: mse
train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}
"""


@pytest.fixture
def cubic() -> Iterator[Op]:
    """The row: size * x^3 + x^2 - x."""
    body = Var("size") * (x * x * x) + x * x - x
    yield OPS.register(elementwise("cubic", body, parameters=(SIZE,), help="a cubic"))
    OPS.remove("cubic")


def spec_with(layer: str) -> Spec:
    """The text above with the new layer in the middle."""
    text = TEXT.replace("NAME", layer)
    return load_spec("new.yaml", layer_schemas(), loss_schemas(), OPTIMIZERS, text=text)


def forward(layer: str) -> Graph:
    """The forward graph of a spec that uses the layer."""
    spec = spec_with(layer)
    return lower(spec, describe(spec.data.source, spec.data.options, spec.data.span), True)


def write_spec_for_generated_code(folder: Path, layer: str) -> Path:
    """A file whose network has the new layer in the middle, to be compiled and run."""
    path = folder / "new.yaml"
    path.write_text(TEXT.replace("NAME", layer), encoding="utf-8")
    return path


def values_for(graph: Graph) -> dict[str, np.ndarray]:
    """Random inputs and parameters, in float64."""
    rng = np.random.default_rng(5)
    given = {value.name: rng.normal(size=(ROWS, 4)) for value in graph.inputs}
    given.update(
        (state.name, rng.normal(size=tuple(int(str(dim)) for dim in state.value.shape)))
        for state in graph.states
    )
    return given


def joint_with_gradients(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The joint graph with the gradient of the loss by each parameter and the input."""
    names = ["x", *(state.name for state in graph.states)]
    done = differentiate(graph, {graph.output("loss"): None}, names)
    found = {name: made for name, made in done.gradients.items() if made}
    outputs = tuple((f"gradient.{name}", made) for name, made in found.items())
    return replace(done.graph, outputs=(*graph.outputs, *outputs)), found


def test_shape_rule_and_spec_layer(cubic: Op) -> None:
    node = next(node for node in forward("cubic").nodes if node.op == "cubic")
    assert node.name == "mid"
    assert str(node.output) == "mid f64[batch, 4]"
    assert node.attr("size") == 2.0
    assert (node.span.line, node.scope) == (6, "mid")
    assert layer_schemas()["cubic"].shorthand == "size"


def test_reference(cubic: Op) -> None:
    graph = forward("cubic")
    values = run_graph(graph, values_for(graph), ROWS)
    before = values["fc"]
    assert np.allclose(values["mid"], 2 * before**3 + before**2 - before, rtol=1e-13, atol=0)


@NEEDS_COMPILER
def test_the_generated_code_runs(cubic: Op) -> None:
    """On the compiled device, forward and gradients: the row alone says what the text computes."""
    graph = forward("cubic")
    given, (joint, found) = values_for(graph), joint_with_gradients(graph)
    made = bundle({"new": replace(joint, updates=())}, rows=ROWS + 2)
    values, expected = made.run("new", given, ROWS), run_graph(joint, given, ROWS)
    roles = dict(joint.outputs)
    assert len(found) == 5
    for role in ("loss", *(f"gradient.{name}" for name in found)):
        exact = expected[roles[role]]
        bound = 1e-12 * float(np.max(np.abs(exact)))
        assert np.abs(values[role] - exact).max() <= bound, role
    kernels = made.device.program.entries["new"].kernels
    (alone,) = [kernel for kernel in kernels if "new/mid" in kernel.nodes]
    assert "new/fc" in alone.nodes, "the new op is the epilogue of the product before it"


@pytest.mark.parametrize("expanded", [False, True])
def test_gradient_and_its_check(cubic: Op, expanded: bool) -> None:
    graph = forward("cubic")
    given, (joint, found) = values_for(graph), joint_with_gradients(graph)
    if expanded:
        joint = run_passes(joint)
    values, roles = run_graph(joint, given, ROWS), dict(joint.outputs)
    before = values["fc"]
    slope = (6 * before**2 + 2 * before - 1) * (
        2 * (values["last"] - given["target"]) @ given["last.weight"].T
    )
    assert np.allclose(values[roles["gradient.fc.bias"]], slope.sum(axis=0), rtol=1e-11, atol=0)
    for name in found:
        gradient = values[roles[f"gradient.{name}"]]
        for place in range(0, gradient.size, 3):
            expected = central_difference(graph, given, name, place)
            assert gradient.flat[place] == pytest.approx(expected, rel=1e-6, abs=1e-7)


def central_difference(
    graph: Graph, given: dict[str, np.ndarray], name: str, place: int, step: float = 1e-5
) -> float:
    """The slope of the forward graph's loss, good to 1e-10 of it and 1e-10 of the loss."""
    losses = []
    for sign in (-1, 1):
        moved = given[name].copy()
        moved.flat[place] += sign * step
        losses.append(run_graph(graph, {**given, name: moved}, ROWS, exact=True)["loss"])
    return float(losses[1] - losses[0]) / (2 * step)


def kept_bytes(layer: str) -> dict[str, int]:
    """Bytes, for 32 rows, of forward values around the new op that the backward pass reads."""
    graph, _ = joint_with_gradients(forward(layer))
    makers, read = graph.producers(), {n for k in graph.nodes for n in k.inputs if _is_late(k)}
    return {
        name: nbytes(graph.values()[name].dtype, graph.values()[name].shape, 32)
        for name in read
        if name in makers
        and makers[name].phase == "forward"
        and name.split(".")[0] in ("fc", "mid")
    }


def _is_late(node: object) -> bool:
    return getattr(node, "phase", "") == "backward"


def test_what_is_saved_follows_from_the_row(cubic: Op) -> None:
    """The slope needs x, and the layer behind keeps y."""
    assert kept_bytes("cubic") == {"fc": 32 * 4 * 8, "mid": 32 * 4 * 8}


def register(name: str, body: Expr, gradient: Expr | None = None) -> None:
    """A row without options."""
    OPS.register(elementwise(name, body, gradient=gradient))


def test_a_slope_in_terms_of_y_saves_the_input() -> None:
    """y = x / (1 + |x|) would need x; (1 - |y|)^2 needs only y, which the next layer keeps."""
    body = x / (1 + select(gt(x, 0.0), x, -x))
    short = 1 - select(gt(y, 0.0), y, -y)
    register("softsign", body, short * short)
    try:
        assert kept_bytes("softsign") == {"mid": 32 * 4 * 8}
    finally:
        OPS.remove("softsign")


def test_a_slope_of_two_values_keeps_one_bit() -> None:
    """The result is not enough to tell the side, so the condition is kept and not the input."""
    register("bend", select(gt(x, 0.0), 3.0 * x, -2.0 * x))
    try:
        graph, _ = joint_with_gradients(forward("bend"))
        assert graph.values()["mid.mask"].dtype == BIT
        assert kept_bytes("bend")["mid.mask"] == 32
        assert "fc" not in kept_bytes("bend")
    finally:
        OPS.remove("bend")


def test_a_wrong_slope_is_refused_when_the_row_is_made() -> None:
    with pytest.raises(AssertionError, match="differs from the derived one"):
        elementwise("wrong", x * x * x, gradient=Const(3.0) * x)


def test_the_table_is_as_before() -> None:
    assert "cubic" not in OPS
    assert "cubic" not in layer_schemas()
