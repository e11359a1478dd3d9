"""From a resolved spec to the forward graph of one entry point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bpc.data.describe import Description
from bpc.errors import BpcError, Collector, Diagnostic, Note, Span, SpecError
from bpc.expr import Expr, Var, parse_formula, select, substitute
from bpc.ir import Builder, Graph, Init, State, Value, verify
from bpc.lossfit import SHAPES_DIFFER, check_loss
from bpc.ops import LOSSES, OPS, ShapeFault
from bpc.ops.layers import FORMULA
from bpc.spec.model import FunctionSpec, InitSpec, LayerSpec, Spec
from bpc.types import (
    BIT,
    I64,
    PRECISIONS,
    DType,
    Rows,
    Shape,
    compute_type,
    count_of,
    format_shape,
)

CONTROL_DROPOUT = ("seed", "window", "first_row")
"""Control values that draws are keyed by; they are i64 scalars set before a call."""

UNKNOWN_WEIGHT = "BPC0205"
SAME_NAME = "BPC0206"
INTEGERS = "BPC0224"


@dataclass(slots=True)
class _Lowering:
    """The state of lowering one spec; `training` turns dropout on."""

    spec: Spec
    description: Description
    training: bool
    builder: Builder
    storage: DType
    layer: LayerSpec | None = None
    known: dict[str, Value] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    functions: dict[str, tuple[tuple[str, ...], Expr]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    mixed: bool = False

    def parameter(self, role: str, shape: Shape, init: Init, option: str | None = None) -> Value:
        """A trained tensor `<layer>.<role>`, or the one that `option` ties it to."""
        tied = self.options.get(option) if option else None
        if tied is not None:
            return self.cast(self._tied(str(tied), shape, option))
        name = f"{self.builder.scope}.{role}"
        return self._declare(name, shape, init, self.builder.span)

    def cast(self, value: Value) -> Value:
        """A value in the type of the layer at hand, where layers have types of their own."""
        if not self.mixed or value.dtype.kind != "float" or value.dtype == self.storage:
            return value
        kind = self.storage.name
        named = {"expr": Var("x"), "arguments": ("x",), "dtype": kind}
        return self.builder.add("map", value, name=f"{value.name}.{kind}", **named)

    def _declare(self, name: str, shape: Shape, init: Init, span: Span) -> Value:
        value = self.builder.declare(Value(name, self.storage, shape))
        self.states[name] = State(value, "parameter", init, span)
        self.places[name] = span
        self.known[name] = value
        return value

    def _tied(self, name: str, shape: Shape, option: str | None) -> Value:
        found = self.known.get(name)
        if found is None or name not in self.states:
            weights = [key for key, state in self.states.items() if state.kind == "parameter"]
            told = ", ".join(weights) or "none yet"
            raise self.fault(
                UNKNOWN_WEIGHT, f"no weight is called '{name}'", option, f"known: {told}"
            )
        if found.shape[: len(shape)] != shape:
            message = (
                f"{self._title()}: sizes differ, the layer needs {format_shape(shape)}, "
                f"weight '{name}' is {format_shape(found.shape)}"
            )
            note = Note(f"{name} is declared {format_shape(found.shape)}", self.places[name])
            span = self.spans.get(option or "", self.builder.span)
            raise SpecError.at(SHAPES_DIFFER, message, span, [note, *self._origins()])
        return found

    def option(self, name: str) -> Any:
        """The layer's option, defaults filled in."""
        return self.options[name]

    def init(self, option: str, default: str, fan_in: int, fan_out: int) -> Init:
        """The initialiser that the spec gives under `option`, or the default one."""
        given = self.options.get(option)
        if given is None:
            return Init(default, (), fan_in, fan_out)
        assert isinstance(given, InitSpec)
        return Init(given.kind, tuple(sorted(given.options.items())), fan_in, fan_out)

    def fault(
        self, code: str, message: str, option: str | None = None, help: str = ""
    ) -> SpecError:
        """An error at the layer, or at one of its options."""
        span = self.spans.get(option or "", self.builder.span)
        error = SpecError.at(code, f"{self._title()}: {message}", span, help=help or None)
        assert isinstance(error, SpecError)
        return error

    def state(self, name: str) -> Value:
        """A control value, declared on first use."""
        full = f"control.{name}"
        if full not in self.states:
            value = self.builder.declare(Value(full, I64, ()))
            self.states[full] = State(value, "control", Init("zeros"), self.spec.span)
        return self.states[full].value

    def _title(self) -> str:
        if self.layer is None:
            return f"loss {self.spec.loss.op}"
        return f"{self.layer.op} '{self.layer.full_name}'"

    def _origins(self) -> list[Note]:
        """Where the current layer's inputs come from, with their shapes."""
        names = self.layer.inputs if self.layer else self.spec.loss.inputs
        return [
            Note(
                f"input {name} is {format_shape(self.known[name].shape)}", self.places.get(name)
            )
            for name in names
            if name in self.known
        ]


def lower(spec: Spec, description: Description, training: bool, with_loss: bool = True) -> Graph:
    """The forward graph: outputs `prediction` and, with a loss, `loss` and `weight`.

    Args:
        spec: a resolved spec.
        description: shapes of the data source.
        training: dropout is active.
        with_loss: leave out target and loss for a graph that only predicts.

    Raises:
        SpecError: shapes, formulas or references do not fit; all faults at once where a later
            layer does not depend on an earlier fault.
    """
    lowering = _start(spec, description, training)
    inputs = _declare_inputs(lowering, with_loss)
    found = _lower_layers(lowering)
    if with_loss:
        _collect_loss(found, lowering)
    found.raise_if_any()
    outputs = _finish(lowering, with_loss)
    graph = Graph(
        spec.name,
        inputs,
        tuple(lowering.states.values()),
        tuple(lowering.builder.nodes),
        outputs,
    )
    return verify(graph, OPS)


def find_faults(spec: Spec, description: Description) -> tuple[Diagnostic, ...]:
    """What lowering finds in a spec of which some parts are missing, because they are at fault.

    Layers that need such a part are passed over, and nothing is said of weights that are not
    found: they may belong to one.
    """
    lowering = _start(spec, description, training=True)
    _declare_inputs(lowering, with_target=True)
    found = _lower_layers(lowering)
    _collect_loss(found, lowering)
    return tuple(item for item in found.found if item.code != UNKNOWN_WEIGHT)


def _start(spec: Spec, description: Description, training: bool) -> _Lowering:
    storage = PRECISIONS[spec.train.precision]
    mixed = any(layer.precision for layer in spec.layers)
    return _Lowering(
        spec, description, training, Builder(OPS, spec.span), storage, mixed=mixed
    )


def _lower_layers(lowering: _Lowering) -> Collector:
    """Lower parameters, functions and layers; what they lack is gathered."""
    found = Collector()
    _declare_parameters(lowering)
    _parse_functions(lowering, found)
    for layer in lowering.spec.layers:
        _collect(found, lowering, layer)
    return found


def _collect_loss(found: Collector, lowering: _Lowering) -> None:
    """Note where the model's result does not suit the loss, if there is a result."""
    spec = lowering.spec
    if not spec.loss.inputs or spec.loss.inputs[0] not in lowering.known:
        return
    prediction = lowering.known[spec.loss.inputs[0]]
    try:
        check_loss(spec, lowering.description, prediction, lowering.places)
    except SpecError as error:
        found.found.extend(error.diagnostics)


def _declare_inputs(lowering: _Lowering, with_target: bool) -> tuple[Value, ...]:
    """Data inputs in the storage type; class targets stay integers, values are at least f32."""
    values = []
    for name, info in lowering.description.inputs.items():
        dtype = lowering.storage if info.dtype.kind == "float" else info.dtype
        values.append(Value(name, dtype, (Rows(), *info.shape)))
    target = lowering.description.target
    if with_target:
        dtype = I64 if target.kind == "class" else compute_type(lowering.storage)
        values.append(Value("target", dtype, (Rows(), *target.shape)))
    for value in values:
        lowering.known[value.name] = lowering.builder.declare(value)
        lowering.places[value.name] = lowering.spec.data.span
    return tuple(values)


def _declare_parameters(lowering: _Lowering) -> None:
    for row in lowering.spec.parameters:
        fan_in = row.shape[0] if row.shape else 1
        fan_out = row.shape[-1] if row.shape else 1
        init = Init(row.init.kind, tuple(sorted(row.init.options.items())), fan_in, fan_out)
        lowering._declare(row.name, row.shape, init, row.span)


def _parse_functions(lowering: _Lowering, found: Collector) -> None:
    """Read all functions; one that is at fault stands for its input where it is used."""
    later = {row.name: row.span for row in lowering.spec.functions}
    for row in lowering.spec.functions:
        try:
            expr = parse_formula(row.formula, row.arguments, row.span, lowering.functions, later)
        except BpcError as error:
            found.found.extend(error.diagnostics)
            expr = Var(row.arguments[0])
        del later[row.name]
        lowering.functions[row.name] = (row.arguments, expr)


def _collect(found: Collector, lowering: _Lowering, layer: LayerSpec) -> None:
    """Lower one layer, or note its fault; layers that read a faulty one are passed over."""
    if any(name not in lowering.known for name in layer.inputs):
        return
    try:
        _lower_layer(lowering, layer)
    except BpcError as error:
        found.found.extend(error.diagnostics)


def _lower_layer(lowering: _Lowering, layer: LayerSpec) -> None:
    lowering.layer, lowering.options, lowering.spans = layer, layer.options, layer.spans
    b = lowering.builder
    b.span, b.scope = layer.span, layer.full_name
    lowering.storage = PRECISIONS[layer.precision or lowering.spec.train.precision]
    _refuse_integers(lowering, layer)
    known = [lowering.cast(lowering.known[name]) for name in layer.inputs]
    inputs = [_as_number(lowering, value) for value in known]
    try:
        value = _apply(lowering, layer, inputs)
    except ShapeFault as fault:
        raise _placed(lowering, fault) from None
    lowering.known[layer.full_name] = value
    lowering.places[layer.full_name] = layer.span


def _refuse_integers(lowering: _Lowering, layer: LayerSpec) -> None:
    """Whole numbers have no derivative, and layers compute with floats."""
    schema = OPS.layers().get(layer.op)
    if schema is not None and schema.integers:
        return
    for name in layer.inputs:
        value = lowering.known[name]
        if value.dtype.kind == "int":
            message = f"{lowering._title()} computes with floats, the input {name} is {value.dtype}"
            help = f"give {name} as float32 or float64; whole numbers in it are exact there"
            raise SpecError.at(INTEGERS, message, layer.span, lowering._origins(), help)


def _as_number(lowering: _Lowering, value: Value) -> Value:
    """A truth value as 1 or 0 for a layer that is not element-wise: those compute in its type."""
    assert lowering.layer is not None
    op = lowering.layer.op
    written_out = op not in OPS.layers()  # a formula or a function
    if value.dtype != BIT or written_out or (op in OPS and OPS[op].body is not None):
        return value
    return _number(lowering, value)


def _number(lowering: _Lowering, value: Value) -> Value:
    return lowering.builder.add(
        "map",
        value,
        name=f"{value.name}.number",
        expr=select(Var("x"), 1.0, 0.0),
        arguments=("x",),
        dtype=lowering.storage.name,
    )


def _placed(lowering: _Lowering, fault: ShapeFault) -> SpecError:
    """A shape fault with the layer's name, its place, and where each party was declared."""
    span = lowering.spans.get(fault.option or "", lowering.builder.span)
    message = f"{lowering._title()}: {fault.message}"
    error = SpecError.at(SHAPES_DIFFER, message, span, lowering._origins(), fault.help or None)
    assert isinstance(error, SpecError)
    return error


def _apply(lowering: _Lowering, layer: LayerSpec, inputs: Sequence[Value]) -> Value:
    function = next((row for row in lowering.spec.functions if row.name == layer.op), None)
    if function is not None:
        return _apply_function(lowering, function, inputs)
    if layer.op == FORMULA.name:
        return _apply_formula(lowering, layer, inputs)
    return OPS.build(layer.op)(lowering, inputs)


def _apply_function(
    lowering: _Lowering, function: FunctionSpec, inputs: Sequence[Value]
) -> Value:
    arguments, expr = lowering.functions[function.name]
    if len(arguments) != len(inputs):
        raise lowering.fault(
            "BPC0207",
            f"'{function.name}' takes {count_of(len(arguments), 'input')}, found {len(inputs)}",
        )
    return _map(lowering, expr, arguments, inputs)


def _apply_formula(lowering: _Lowering, layer: LayerSpec, inputs: Sequence[Value]) -> Value:
    """The formula may call its first input x, and every input by its own name."""
    named = dict(zip(layer.inputs, inputs, strict=True))  # an input that is named twice counts once
    local = [name.rsplit(".", 1)[-1] for name in named]
    span = layer.spans.get("formula", layer.span)
    _refuse_same_names(lowering, list(named), local, span)
    text = str(layer.options["formula"])
    expr = parse_formula(text, ("x", *local), span, lowering.functions)
    if "x" not in local:
        expr = substitute(expr, {"x": Var(local[0])})
    return _map(lowering, expr, tuple(local), tuple(named.values()))


def _refuse_same_names(
    lowering: _Lowering, full: Sequence[str], local: Sequence[str], span: Span
) -> None:
    """In a formula an input goes by the last part of its name, which must tell it from others."""
    first: dict[str, str] = {}
    for name, short in zip(full, local, strict=True):
        other = first.setdefault(short, name)
        if other == name:
            continue
        message = f"{lowering._title()}: '{other}' and '{name}' are both called '{short}' here"
        help = f"rename one above: {{name: other, formula: x, from: {name}}}; then read 'other'"
        raise SpecError.at(SAME_NAME, message, span, lowering._origins(), help)


def _map(
    lowering: _Lowering, expr: Expr, arguments: Iterable[str], inputs: Sequence[Value]
) -> Value:
    names = tuple(arguments)
    b = lowering.builder
    return b.add("map", *inputs, name=b.scope, expr=expr, arguments=names)


def _finish(lowering: _Lowering, with_loss: bool) -> tuple[tuple[str, str], ...]:
    """Name the outputs; the loss is lowered last."""
    spec, b = lowering.spec, lowering.builder
    predicted = lowering.known[spec.loss.inputs[0]]
    lowering.layer, lowering.storage = None, PRECISIONS[spec.train.precision]
    lowering.options, lowering.spans = spec.loss.options, spec.loss.spans
    b.span, b.scope = spec.loss.span, "loss"
    if predicted.dtype == BIT:
        predicted = _number(lowering, predicted)
    outputs = [("prediction", predicted.name)]
    if not with_loss:
        return tuple(outputs)
    target = lowering.known["target"]
    try:
        loss, weight = LOSSES[spec.loss.op].build(lowering, predicted, target)
    except ShapeFault as fault:
        raise _placed(lowering, fault) from None
    return (*outputs, ("loss", loss.name), ("weight", weight.name))
