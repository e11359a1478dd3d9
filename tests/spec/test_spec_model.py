from __future__ import annotations

import pytest
from spec_tables import HEAD, TAIL, faults, load, load_model

from bpc.spec import InitSpec, Spec


def wiring(spec: Spec) -> list[tuple[str, tuple[str, ...]]]:
    return [(layer.full_name, layer.inputs) for layer in spec.layers]


def test_forms_of_an_entry() -> None:
    spec = load_model(
        "[relu, {linear: 256}, {linear: {out: 4, bias: false}}, {linear: 3, name: fc},"
        " {name: fd, linear: {out: 3}}, {linear: {out: 3, name: fe, from: fc}}, {relu: }]"
    )
    assert wiring(spec) == [
        ("relu1", ("x",)),
        ("linear1", ("relu1",)),
        ("linear2", ("linear1",)),
        ("fc", ("linear2",)),
        ("fd", ("fc",)),
        ("fe", ("fc",)),
        ("relu2", ("fe",)),
    ]
    assert [layer.named for layer in spec.layers] == [False] * 3 + [True] * 3 + [False]
    assert spec.layers[1].options["out"] == 256
    assert spec.layers[2].options["bias"] is False
    assert spec.layers[2].spans["bias"].column == spec.layers[2].span.column + 23
    assert "bias" not in spec.layers[1].spans
    assert str(spec.layers[1].span) == "spec.yaml:4:16"


def test_an_option_may_be_called_name() -> None:
    layer = load_model("[{note: {name: anything at all}}]").layers[0]
    assert layer.options == {"name": "anything at all"}
    assert layer.name == "note1"


def test_residual_adds_its_input_to_its_last_value() -> None:
    spec = load_model("[{linear: 8, name: a}, {residual: [{linear: 8}, relu]}, relu]")
    assert wiring(spec) == [
        ("a", ("x",)),
        ("residual1.linear1", ("a",)),
        ("residual1.relu1", ("residual1.linear1",)),
        ("residual1.add1", ("a", "residual1.relu1")),
        ("relu1", ("residual1.add1",)),
    ]
    assert spec.layers[3].op == "add"
    assert spec.layers[3].span.column == spec.layers[1].span.column - len("residual: [{")


def test_repeat_makes_numbered_scopes() -> None:
    spec = load_model(
        "[{repeat: 2, name: blocks, layers: [{linear: 4, name: fc}, {add: , from: [fc, x]}]},"
        " {add: , from: [blocks, blocks.0.fc]}]"
    )
    assert wiring(spec) == [
        ("blocks.0.fc", ("x",)),
        ("blocks.0.add1", ("blocks.0.fc", "x")),
        ("blocks.1.fc", ("blocks.0.add1",)),
        ("blocks.1.add1", ("blocks.1.fc", "x")),
        ("add1", ("blocks.1.add1", "blocks.0.fc")),
    ]
    assert spec.layers[2].scope == "blocks.1"
    assert spec.layers[2].name == "fc"


BLOCKS = """blocks:
  mlp:
    args: {dim: 8, ratio: 4}
    layers: [{linear: "${dim * ratio}", name: up}, relu, {linear: "${dim}"}]
  twice: [relu, relu]
  pair:
    inputs: [a, b]
    layers: [{add: , from: [b, a]}]
  plus: [{linear: 4, name: fc}, {add: , from: [fc, input]}]
  nested: {args: [n], layers: [{mlp: {dim: "${n}"}, name: inner}, twice]}
"""


def test_blocks_with_arguments() -> None:
    spec = load_model("[mlp, {mlp: 3}, {mlp: {ratio: 2}, name: last}]", BLOCKS)
    outs = [layer.options["out"] for layer in spec.layers if layer.op == "linear"]
    assert outs == [32, 8, 12, 3, 16, 8]
    assert [layer.scope for layer in spec.layers if layer.name == "up"] == ["mlp1", "mlp2", "last"]


def test_blocks_in_blocks_see_only_their_own_arguments() -> None:
    spec = load_model("[{nested: 5}]", BLOCKS)
    assert [layer.full_name for layer in spec.layers] == [
        "nested1.inner.up",
        "nested1.inner.relu1",
        "nested1.inner.linear1",
        "nested1.twice1.relu1",
        "nested1.twice1.relu2",
    ]
    assert spec.layers[0].options["out"] == 20


def test_inputs_of_blocks_have_names() -> None:
    spec = load_model("[{linear: 4, name: p}, {pair: , from: [x, p]}, plus]", BLOCKS)
    assert wiring(spec)[1:] == [
        ("pair1.add1", ("p", "x")),
        ("plus1.fc", ("pair1.add1",)),
        ("plus1.add1", ("plus1.fc", "pair1.add1")),
    ]


def test_names_are_found_inside_first_then_outside() -> None:
    spec = load_model(
        "[{linear: 4, name: a}, {name: g, layers: [{add: , from: [a, a]}, {relu: , name: a},"
        " {add: , from: [a, x]}]}, {add: , from: [a, g.a]}]"
    )
    assert [inputs for _, inputs in wiring(spec)] == [
        ("x",),
        ("a", "a"),
        ("g.add1",),
        ("g.a", "x"),
        ("a", "g.a"),
    ]


def test_functions_are_layers() -> None:
    text = HEAD + (
        'functions:\n  quick: "x * sigmoid(1.702 * x)"\n'
        "  mix: {args: [a, b], formula: a * b}\n"
        "model: [quick, {mix: , from: [x, quick1]}]" + TAIL
    )
    spec = load(text)
    assert wiring(spec) == [("quick1", ("x",)), ("mix1", ("x", "quick1"))]
    quick, mix = spec.functions
    assert (quick.formula, quick.arguments) == ("x * sigmoid(1.702 * x)", ("x",))
    assert (quick.span.line, quick.span.column) == (4, 11)
    assert mix.arguments == ("a", "b")
    assert text.split("\n")[mix.span.line - 1][mix.span.column - 1 :].startswith("a * b")


def test_declared_parameters_and_tied_weights() -> None:
    spec = load_model(
        "[{linear: {out: 10, weight: w2}}, {linear: 3, name: fc}, {add: , from: [x, w2]},"
        " {name: g, layers: [{linear: {out: 3, weight: fc.weight}},"
        " {linear: 4, name: fc}, {linear: {out: 3, weight: fc.weight}}]}]",
        "parameters: {w2: {shape: [64, 10], init: he}, w3: {init: [[1, 2.5]]}}",
    )
    assert [(p.name, p.shape, p.init.kind) for p in spec.parameters] == [
        ("w2", (64, 10), "he"),
        ("w3", (1, 2), "values"),
    ]
    assert [layer.options.get("weight") for layer in spec.layers if layer.op == "linear"] == [
        "w2",
        None,
        "fc.weight",
        None,
        "g.fc.weight",
    ]
    assert spec.layers[2].inputs == ("x", "w2")


@pytest.mark.parametrize(
    ("written", "kind", "options"),
    [
        ("zeros", "zeros", {}),
        ("{normal: {std: 0.02}}", "normal", {"mean": 0.0, "std": 0.02}),
        ("{constant: 0.1}", "constant", {"value": 0.1}),
        ("0.5", "constant", {"value": 0.5}),
        ("[[0.5, 1]]", "values", {"values": ((0.5, 1),)}),
        ("xavier_normal", "xavier_normal", {"gain": 1.0}),
    ],
)
def test_initialisers(written: str, kind: str, options: object) -> None:
    init = load_model(f"[{{linear: {{out: 2, init: {written}}}}}]").layers[0].options["init"]
    assert isinstance(init, InitSpec)
    assert (init.kind, dict(init.options)) == (kind, options)


def test_default_initialiser_has_its_options() -> None:
    init = load_model("[linear: 2]").layers[0].options["init"]
    assert isinstance(init, InitSpec)
    assert init.options["distribution"] == "uniform"


def test_kinds_of_options() -> None:
    spec = load_model(
        "[{sum: 1}, {sum: [1, -1]}, sum, {reshape: [4, 4]}, {gelu: {form: tanh}},"
        ' {formula: "x + 1"}, {dropout: 0}]'
    )
    values = [next(iter(layer.options.values())) for layer in spec.layers]
    assert values == [1, (1, -1), None, (4, 4), "tanh", "x + 1", 0.0]
    assert type(values[-1]) is float
    body = spec.layers[5]
    assert body.spans["body"].column == body.span.column + len('formula: "')


def test_default_names_avoid_chosen_ones() -> None:
    spec = load_model("[{relu: , name: relu1}, relu, relu]")
    assert [layer.name for layer in spec.layers] == ["relu1", "relu2", "relu3"]


def test_a_fault_in_a_repeated_layer_is_told_once() -> None:
    assert faults(HEAD + "model: [{repeat: 50, layers: [rellu]}]" + TAIL) == [("BPC0160", 3, 31)]


def test_nested_repeats_cannot_run_away() -> None:
    inner = "relu"
    for _ in range(6):
        inner = f"{{repeat: 10000, layers: [{inner}]}}"
    assert [code for code, _, _ in faults(HEAD + f"model: [{inner}]" + TAIL)] == ["BPC0105"]


def test_nested_blocks_cannot_run_away() -> None:
    lines = ["  b0: [relu]"]
    lines += [f"  b{i}: [{', '.join([f'b{i - 1}'] * 10)}]" for i in range(1, 20)]
    found = faults(HEAD + "blocks:\n" + "\n".join(lines) + "\nmodel: [b19]" + TAIL)
    assert {code for code, _, _ in found} == {"BPC0105"}
