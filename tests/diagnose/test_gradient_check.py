"""`bpc check`: right gradients pass in every precision, and no wrong one does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpc import api
from bpc.cli.main import main
from bpc.diagnose.differences import measure_slope
from bpc.diagnose.gradients import GradientCheck, check_gradients
from bpc.expr import Const, Var
from bpc.gradients import build_forward
from bpc.ir import Builder, Node, Value
from bpc.ops import LOSSES, OPS, GradientForm, base
from bpc.ops.layers import layer_schemas
from bpc.runtime.reference import run_graph
from bpc.runtime.select import RunGraph, graph_runner

DROPOUT = """\
bpc: 1
name: drop
data: {source: synthetic, shape: [9], classes: 3, rows: 24, batch: 12}
model:
  - linear: {name: fc1, out: 11}
  - relu
  - layernorm
  - dropout: 0.3
  - linear: {name: fc2, out: 3}
loss: {cross_entropy: {label_smoothing: 0.1}}
train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "net.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def check(path: Path, device: str = "reference", rows: int = 12, **sets: object) -> GradientCheck:
    net = api.compile(path, device=device, set=sets)
    run: RunGraph = graph_runner(net.device) if device == "cpu" else run_graph
    batch = {name: array[:rows] for name, array in net.data.train.items()}
    return check_gradients(net.spec, net.description, net.parameters(), batch, run)


# -- what is right passes -------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_the_generated_code_passes_with_dropout_on(precision: str, tmp_path: Path) -> None:
    found = check(write(tmp_path, DROPOUT), "cpu", **{"train.precision": precision})
    assert found.ok, found
    assert found.scale > 1 if precision == "fp16" else found.scale == 1
    fc1 = next(item for item in found.parameters if item.name == "fc1.weight")
    assert (fc1.elements, fc1.probes) == (99, 32 + 8)
    assert 0 < fc1.error < fc1.bound < {"fp64": 3e-6, "fp32": 1e-5}.get(precision, 0.4)
    assert 0 < fc1.rule_error < fc1.rule_bound < 1e-4
    fc2 = next(item for item in found.parameters if item.name == "fc2.weight")
    assert (fc2.elements, fc2.probes) == (33, 33)


# -- what is wrong does not -----------------------------------------------------------------------

SPECIAL = {
    "conv2d": (
        1,
        "- reshape: [1, 2, 2]\n  - conv2d: {out: 2, kernel: 2, padding: 1, name: tested}",
    ),
    "matmul": (1, "- matmul: {name: tested, from: [one, w]}"),
    "reshape": (1, "- reshape: {shape: [2, 2], name: tested}"),
    "formula": (1, '- formula: {formula: "x * tanh(x) + x", name: tested}'),
    "sum": (1, "- sum: {keepdims: true, name: tested}"),
    "mean": (1, "- mean: {keepdims: true, name: tested}"),
    "where": (
        2,
        "- gt: {value: 0.1, name: c, from: one}\n  - where: {name: tested, from: [c, one, two]}",
    ),
    "gelu": (1, "- gelu: {name: tested}\n  - gelu: {approximate: tanh, name: other}"),
}
POSITIVE = {"log", "sqrt", "pow", "div"}
WITHOUT = {"gt", "ge", "lt", "le", "eq", "ne", "stop_gradient"}
"""Layers without a gradient."""

BACKWARD_ONLY = {
    *("gemm", "conv2d_input", "conv2d_weight", "row_reduce", "col_reduce"),
    *("chunk_reduce", "combine", "index", "extent"),
}
"""Rows that a forward graph never holds: a first derivative does not use their rules."""


def layer_text(layer: str) -> str:
    """A network that passes what it learns through the layer."""
    schema = layer_schemas()[layer]
    two = schema.least_inputs == 2 or schema.most_inputs == 2
    inputs, written = SPECIAL.get(layer, (2 if two else 1, ""))
    names = ["one", "two"][:inputs]
    lines = [f"- linear: {{name: {name}, out: 4, from: x, init: xavier}}" for name in names]
    if layer in POSITIVE:
        lines += [f"- softplus: {{name: {name}p, from: {name}}}" for name in names]
        names = [f"{name}p" for name in names]
    lines.append(
        written or f"- {layer}: {{{_options(layer)}name: tested, from: [{', '.join(names)}]}}"
    )
    return "\n  ".join([*lines, "- flatten", "- linear: {name: last, out: 2, init: xavier}"])


def _options(layer: str) -> str:
    return {"dropout": "p: 0.4, ", "linear": "out: 3, "}.get(layer, "")


def network(model: str, loss: str = "mse") -> str:
    classes = "classes: 2" if loss.startswith("cross") else "target_shape: [2]"
    return (
        "bpc: 1\nname: mutant\nparameters: {w: {shape: [4, 3], init: {normal: 0.5}}}\n"
        f"data: {{source: synthetic, shape: [3], {classes}, rows: 4, batch: 4}}\n"
        f"model:\n  {model}\nloss: {{{loss}: {{}}}}\n"
        "train: {steps: 1, precision: fp64, optimizer: {sgd: {lr: 0.1}}}\n"
    )


def texts() -> dict[str, str]:
    """A network for every layer that has a gradient, and for every loss."""
    layers = {name: network(layer_text(name)) for name in layer_schemas() if name not in WITHOUT}
    body = "- linear: {name: one, out: 2}\n  - tanh"
    return {**layers, **{name: network(body, name) for name in LOSSES}}


TEXTS = texts()
Mutation = Callable[[Builder, Value], Value | None]


def scaled_by(factor: float) -> Mutation:
    def mutate(b: Builder, g: Value) -> Value:
        expr = Const(factor) * Var("g")
        return b.add("map", g, expr=expr, arguments=("g",), dtype=g.dtype.name)

    return mutate


MUTATIONS: dict[str, tuple[float, Mutation]] = {
    "one percent": (1.01, scaled_by(1.01)),
    "sign": (-1.0, scaled_by(-1.0)),
    "dropped": (0.0, lambda b, g: None),
}


@dataclass(frozen=True)
class Plant:
    """A fault in the rule of an op: what happens to the gradient of one operand."""

    op: str
    position: int
    mutation: str

    def into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        factor, mutate = MUTATIONS[self.mutation]
        if self.op == "map" or OPS[self.op].body is not None:
            monkeypatch.setattr(base, "gradient_forms", self._forms(base.gradient_forms, factor))
            return
        row = OPS[self.op]
        rule = row.gradient
        assert rule is not None

        def wrong(b: Builder, node: Node, results: Sequence[Any]) -> tuple[Value | None, ...]:
            made = list(rule(b, node, results))
            g = made[self.position]
            made[self.position] = mutate(b, g) if g is not None else None
            return tuple(made)

        monkeypatch.setitem(OPS._rows, self.op, replace(row, gradient=wrong))

    def _forms(self, original: Any, factor: float) -> Any:
        def forms(node: Node, position: int) -> tuple[GradientForm, ...]:
            found = original(node, position)
            if (node.op, position) != (self.op, self.position):
                return found
            return tuple(
                GradientForm(Const(0.0) if not factor else Const(factor) * form.factor, form.masks)
                for form in found
            )

        return forms


def plants() -> Iterator[Any]:
    """Every operand of every op that a network above has, off by 1 %; then signs and drops."""
    seen: set[str] = set()
    for name, text in TEXTS.items():
        for node in nodes_of(text):
            if node.op in seen or OPS[node.op].gradient is None or node.op in WITHOUT:
                continue
            seen.add(node.op)
            floats = learnt_operands(text, node)
            for position in floats:
                yield pytest.param(name, Plant(node.op, position, "one percent"))
            if floats:
                yield pytest.param(name, Plant(node.op, floats[0], "sign"))
                yield pytest.param(name, Plant(node.op, floats[-1], "dropped"))


def nodes_of(text: str) -> tuple[Node, ...]:
    return forward(text).nodes


def forward(text: str) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        net = api.compile(write(Path(folder), text), device="reference")
        return build_forward(net.spec, net.description)


def learnt_operands(text: str, node: Node) -> list[int]:
    """Operands whose gradient a parameter needs."""
    graph = forward(text)
    learnt = {state.name for state in graph.states if state.kind == "parameter"}
    for each in graph.nodes:
        if learnt.intersection(each.inputs) and each.output.dtype.kind == "float":
            learnt.add(each.output.name)
    return [k for k, name in enumerate(node.inputs) if name in learnt]


PLANTS = list(plants())


def test_every_rule_that_a_first_derivative_uses_has_a_network() -> None:
    planted = {param.values[1].op for param in PLANTS}
    assert planted == set(OPS) - BACKWARD_ONLY - WITHOUT


@pytest.mark.parametrize("name", TEXTS)
def test_right_rules_pass(name: str, tmp_path: Path) -> None:
    found = check(write(tmp_path, TEXTS[name]), rows=4)
    assert found.ok, found
    assert any(item.probes > len(item.kinks) for item in found.parameters)


@pytest.mark.parametrize(
    ("name", "plant"),
    PLANTS,
    ids=lambda v: v if isinstance(v, str) else f"{v.position}-{v.mutation}",
)
def test_a_planted_fault_is_found(
    name: str, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant.into(monkeypatch)
    found = check(write(tmp_path, TEXTS[name]), rows=4)
    assert not found.ok
    assert any(item.rule_error > item.rule_bound for item in found.parameters)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fault_shows_in_the_generated_code(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Plant("layernorm", 0, "sign").into(monkeypatch)
    found = check(write(tmp_path, DROPOUT), "cpu", **{"train.precision": precision})
    first = next(item for item in found.parameters if item.name == "fc1.weight")
    assert first.error > first.bound and first.rule_error > first.rule_bound
    assert next(item for item in found.parameters if item.name == "fc2.weight").ok


# -- kinks and slopes -----------------------------------------------------------------------------


def test_kinks_are_reported_and_do_not_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = network(
        "- linear: {name: one, out: 2, init: zeros}\n  - relu\n  - linear: {name: last, out: 2}"
    )
    path = write(tmp_path, text)
    assert main(["check", str(path), "--device", "reference", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] and len(answer["parameters"]) == 5
    stuck = [item for item in answer["parameters"] if item["name"].startswith("one")]
    assert [item["kinks"] for item in stuck] == [6, 2] and all(item["moved"] for item in stuck)
    kink = answer["kinks"][0]
    assert kink["left"] != pytest.approx(kink["right"])
    assert main(["check", str(path), "--device", "reference"]) == 0
    assert "kinks: 8 places where the loss has no slope" in capsys.readouterr().out


def test_a_wrong_gradient_ends_with_1_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Plant("tanh", 0, "one percent").into(monkeypatch)
    path = write(tmp_path, TEXTS["tanh"])
    assert main(["check", str(path), "--device", "reference", "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("fp64 on reference: wrong: one.weight, one.bias")
    assert all(line.endswith("WRONG") for line in lines[1:-1]) and len(lines) == 4
    main(["check", str(path), "--device", "reference", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    wrong = {item["name"]: item["max_rel_error"] for item in answer["parameters"]}
    assert wrong["one.weight"] == pytest.approx(0.01, rel=0.02)
    assert {item["span"]["line"] for item in answer["parameters"]} >= {3, 6}
    errors = answer["errors"]
    assert [item["message"] for item in errors] == [
        f"the gradient of one.{name} is wrong" for name in ("weight", "bias")
    ]
    for item in errors:
        assert set(item) == {"code", "severity", "message", "place", "notes", "help"}
        assert item["place"]["line"] == 6 and "off by" in item["notes"][0]["text"]


LOG = """\
bpc: 1
data: {source: inline, x: [[1, 2], [3, 0.5], [1, -4], [2, 2]], y: [0, 1, 0, 1], classes: 2}
model: [log, linear: 2]
loss: cross_entropy
train: {lr: 0.1}
"""


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_a_loss_that_is_not_finite_is_no_wrong_gradient(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, LOG))
    words = ["check", path, "--device", "reference", "--set", f"train.precision={precision}"]
    assert main(words) == 4
    out, err = capsys.readouterr()
    assert out == "" and ":3:9: error BPC0603: the loss is nan" in err
    assert "log1 is nan at [2, 1], in the forward pass" in err
    assert "that row is row 2 of the data" in err
    assert main([*words, "--rows", "2"]) == 0
    capsys.readouterr()
    assert main([*words, "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert (answer["node"], answer["element"], answer["ok"]) == ("log1", [2, 1], False)
    assert answer["errors"][0]["place"]["line"] == 3


def test_rows_that_do_not_count_have_the_mean_loss_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = LOG.replace("[log, linear: 2]", "[linear: 2]").replace("[0, 1, 0, 1]", "[-1, -1, 0, 1]")
    path = write(tmp_path, text.replace("cross_entropy", "{cross_entropy: {ignore_index: -1}}"))
    assert main(["check", str(path), "--device", "reference", "--rows", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_loss"] == 0


@pytest.mark.parametrize("kernels", [[], ["--kernels"]])
@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (3, "a batch has 3 rows, 4 are wished; --set data.batch=4 makes it larger"),
        (8, "the data has 4, 5 are wished"),
    ],
)
def test_more_rows_than_a_batch_are_refused(
    batch: int, told: str, kernels: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = LOG.replace("[log, linear: 2]", "[linear: 2]")
    words = ["check", str(write(tmp_path, text)), "--device", "reference", *kernels]
    wished = str(min(batch, 4) + 1)
    assert main([*words, "--set", f"data.batch={batch}", "--rows", wished]) == 2
    assert told in capsys.readouterr().err


def test_slopes_know_their_error() -> None:
    smooth = measure_slope(np.exp, 1e-9)
    assert abs(smooth.central - 1) <= smooth.error <= 1e-9
    for place in np.concatenate([[0.0], np.geomspace(1e-8, 3e-6, 25)]):
        bent = measure_slope(lambda d, at=place: 2 * d + abs(d - at), 0.0)
        right = -1.0 if place else 0.0
        assert abs(bent.central - 2 - right) <= max(4 * bent.error, 1e-9), place
    kink = measure_slope(abs, 1e-6)
    assert kink.error >= 0.4 and (kink.left, kink.right) == pytest.approx((-1, 1))
