"""The op table: what one row says, and the rules that every element-wise row shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from bpc.errors import Span, SpecError
from bpc.expr import (
    Call,
    Const,
    Expr,
    Var,
    as_expr,
    derivative,
    evaluate,
    flops,
    gradient_product,
    is_bool,
    may_be_singular,
    substitute,
    variables,
)
from bpc.ir import Attrs, Builder, Init, Node, Result, Value
from bpc.types import (
    BIT,
    DTYPES,
    F32,
    F64,
    I64,
    DType,
    LayerSchema,
    Option,
    Rows,
    Shape,
    compute_type,
    elements,
    format_shape,
    shape_at,
)

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a NumPy reference needs beside its operands: the rows at hand and the real type."""

    rows: int
    real: type[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class GradientForm:
    """One way to write a local derivative: an expression over operands, `y`, `g` and masks.

    `masks` maps a variable of `factor` to a condition on the operands that may be kept in one bit
    per element in place of the operands themselves.
    """

    factor: Expr
    masks: tuple[tuple[str, Expr], ...] = ()


class LayerContext(Protocol):
    """What a row's `build` may ask of the lowering while it turns a layer into nodes."""

    builder: Builder
    training: bool

    def parameter(self, role: str, shape: Shape, init: Init, option: str | None = None) -> Value:
        """A trained tensor `<layer>.<role>`, or the one that `option` ties it to."""

    def option(self, name: str) -> Any:
        """The layer's option, defaults filled in."""

    def init(self, option: str, default: str, fan_in: int, fan_out: int) -> Init:
        """The initialiser that the spec gives under `option`, or the default one."""

    def fault(
        self, code: str, message: str, option: str | None = None, help: str = ""
    ) -> SpecError:
        """An error at the layer, or at one of its options."""

    def state(self, name: str) -> Value:
        """A control value such as the dropout seed."""


Build = Callable[[LayerContext, Sequence[Value]], Value]
ChooseForm = Callable[[Node, int, tuple[GradientForm, ...]], GradientForm]


@dataclass(frozen=True, slots=True)
class Op:
    """A row of the table.

    infer: operand values and attributes to result types and shapes; raises ShapeFault.
    reference: NumPy arrays to NumPy arrays, computed in the context's real type.
    gradient: appends backward nodes; one result (or None) per operand.
    expand: rewrites the node into primitive nodes; None for a primitive.
    saves: operands (index) and results (-1 - index) that `gradient` reads.
    body, arguments, parameters: the scalar form of an element-wise op.
    layer, build: what a spec may write, and how it becomes nodes.
    """

    name: str
    infer: Callable[[Sequence[Value], Attrs], tuple[Result, ...]]
    reference: Callable[[Node, Sequence[np.ndarray], RunContext], Arrays]
    gradient: Callable[[Builder, Node, Sequence[Value | None]], tuple[Value | None, ...]] | None
    expand: Callable[[Builder, Node], tuple[Value, ...]] | None = None
    saves: tuple[int, ...] = ()
    flops: Callable[[Node, Sequence[Value], int], int] = lambda node, operands, rows: 0
    body: Expr | None = None
    arguments: tuple[str, ...] = ()
    parameters: tuple[Option, ...] = ()
    better: Mapping[str, Expr] | None = None
    layer: LayerSchema | None = None
    build: Build | None = None


class ShapeFault(Exception):
    """Operands do not fit an op; the lowering adds the places and raises a SpecError."""

    def __init__(self, message: str, help: str = "", option: str | None = None):
        super().__init__(message)
        self.message = message
        self.help = help
        self.option = option


class OpTable(Mapping[str, Op]):
    """Rows by name; `register` adds one."""

    def __init__(self) -> None:
        self._rows: dict[str, Op] = {}
        self._layers: dict[str, tuple[LayerSchema, Build]] = {}

    def __getitem__(self, name: str) -> Op:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def register(self, op: Op) -> Op:
        """Add a row and return it; a name can be taken once."""
        assert op.name not in self._rows, f"op {op.name} is registered twice"
        self._rows[op.name] = op
        if op.layer and op.build:
            self.register_layer(op.layer, op.build)
        return op

    def register_layer(self, schema: LayerSchema, build: Build) -> None:
        """Add something that a spec may write and that is made of several ops."""
        assert schema.name not in self._layers, f"layer {schema.name} is registered twice"
        self._layers[schema.name] = (schema, build)

    def remove(self, name: str) -> None:
        """Forget a row (a test that registered one cleans up with this)."""
        del self._rows[name]
        self._layers.pop(name, None)

    def layers(self) -> dict[str, LayerSchema]:
        """What a spec may write in `model:`."""
        return {name: schema for name, (schema, _) in self._layers.items()}

    def build(self, layer: str) -> Build:
        """How a layer becomes nodes."""
        return self._layers[layer][1]


OPS = OpTable()


def broadcast_dims(shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcasting over shapes that may hold the batch extent; raises ShapeFault."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for axis in range(rank):
        found = {shape[axis] for shape in padded if shape[axis] != 1}
        if len(found) > 1:
            told = " and ".join(format_shape(shape) for shape in shapes)
            raise ShapeFault(f"shapes {told} do not broadcast: axis {axis - rank} differs")
        result.append(found.pop() if found else 1)
    return tuple(result)


def result_type(operands: Sequence[Value], attrs: Attrs) -> DType:
    """The type of an arithmetic result: the attribute `dtype`, else the widest real operand.

    Sums and products of truth values are numbers, in f32.
    """
    named = dict(attrs).get("dtype")
    if named is not None:
        return DTYPES[named]
    real = [value.dtype for value in operands if value.dtype.kind == "float"]
    if not real:
        return F32 if operands[0].dtype == BIT else operands[0].dtype
    return max(real, key=lambda dtype: dtype.bits)


def scalar_form(node: Node) -> tuple[Expr, tuple[str, ...]]:
    """The element-wise expression of a node and the names its operands have in it."""
    if node.op == "map":
        return node.attr("expr"), node.attr("arguments")
    op = OPS[node.op]
    assert op.body is not None, f"{node.op} is not element-wise"
    constants = {p.name: Const(node.attr(p.name, p.default)) for p in op.parameters}
    return substitute(op.body, constants), op.arguments


def is_elementwise(node: Node) -> bool:
    """Whether the node computes each element of its result from one element of each operand."""
    return node.op == "map" or OPS[node.op].body is not None


def compute_dtype(node: Node, operands: Sequence[Value]) -> DType:
    """The type a node's arithmetic runs in: f64 for f64 operands or results and for i64 results."""
    if node.output.dtype in (F64, I64):
        return F64
    return compute_type(*(value.dtype for value in operands))


def infer_elementwise(op: Op | None) -> Callable[[Sequence[Value], Attrs], tuple[Result, ...]]:
    """Shape rule of an element-wise row; conditions give `bit` results."""

    def infer(operands: Sequence[Value], attrs: Attrs) -> tuple[Result, ...]:
        body: Expr = op.body if op and op.body is not None else dict(attrs)["expr"]
        named = dict(attrs).get("shape")
        shape = named if named is not None else broadcast_dims([v.shape for v in operands])
        return ((BIT if is_bool(body) else result_type(operands, attrs), shape),)

    return infer


def reference_elementwise(node: Node, operands: Sequence[np.ndarray], run: RunContext) -> Arrays:
    """Evaluate the scalar form with NumPy broadcasting."""
    expr, arguments = scalar_form(node)
    result = evaluate(expr, dict(zip(arguments, operands, strict=True)), np.dtype(run.real))
    return (np.broadcast_to(result, shape_at(node.output.shape, run.rows)),)


def flops_elementwise(node: Node, operands: Sequence[Value], rows: int) -> int:
    """Operations of the scalar form times elements."""
    return flops(scalar_form(node)[0]) * elements(node.output.shape, rows)


def gradient_forms(node: Node, position: int) -> tuple[GradientForm, ...]:
    """All ways to write d y / d operand, the plain one first."""
    expr, arguments = scalar_form(node)
    name = arguments[position]
    plain = GradientForm(derivative(expr, name))
    forms = [plain]
    op = OPS[node.op]
    if op.better and name in op.better:
        constants = {p.name: Const(node.attr(p.name, p.default)) for p in op.parameters}
        forms.append(GradientForm(substitute(op.better[name], constants)))
    masked = _masked_form(plain.factor, arguments)
    return (*forms, masked) if masked else tuple(forms)


def _masked_form(factor: Expr, arguments: tuple[str, ...]) -> GradientForm | None:
    """The factor with its conditions as one-bit operands, if it needs nothing else."""
    masks: dict[Expr, str] = {}

    def walk(expr: Expr) -> Expr:
        if is_bool(expr) and variables(expr):
            return Var(masks.setdefault(expr, f"m{len(masks)}"))
        if isinstance(expr, Call):
            return Call(expr.function, tuple(walk(part) for part in expr.arguments))
        return expr

    replaced = walk(factor)
    if not masks or len(masks) > 2 or set(variables(replaced)) & set(arguments):
        return None
    return GradientForm(replaced, tuple((name, condition) for condition, name in masks.items()))


def gradient_elementwise(choose: ChooseForm) -> Callable[..., tuple[Value | None, ...]]:
    """The gradient rule of every element-wise op, with a choice among forms."""

    def gradient(
        b: Builder, node: Node, results: Sequence[Value | None]
    ) -> tuple[Value | None, ...]:
        g = results[0]
        if g is None or node.output.dtype == BIT:
            return (None,) * len(node.inputs)
        return tuple(_operand_gradient(b, node, k, g, choose) for k in range(len(node.inputs)))

    return gradient


def _operand_gradient(
    b: Builder, node: Node, position: int, g: Value, choose: ChooseForm
) -> Value | None:
    target = b.values[node.inputs[position]]
    if target.dtype.kind != "float":
        return None
    forms = gradient_forms(node, position)
    form = choose(node, position, forms)
    if form.factor == Const(0.0):
        return None
    arguments = scalar_form(node)[1]
    symbol = Var(_unused("g", arguments))
    hidden = form is not forms[0] and may_be_singular(forms[0].factor)
    product = _scale(symbol, form.factor, hidden)
    if product == symbol and g.dtype == target.dtype:
        return sum_to(b, g, target.shape)
    operands = {"y": b.values[node.output.name]}
    operands.update(zip(arguments, (b.values[name] for name in node.inputs), strict=True))
    operands.update((name, _mask(b, node, condition)) for name, condition in form.masks)
    operands[symbol.name] = g
    used = variables(product)
    made = b.add(
        "map",
        *(operands[name] for name in used),
        name=f"d_{target.name}",
        expr=product,
        arguments=used,
        dtype=target.dtype.name,
    )
    return sum_to(b, made, target.shape)


def _unused(stem: str, names: Sequence[str]) -> str:
    """A name for the gradient that no operand has: a backward node has an operand g itself."""
    while stem in names:
        stem += "_"
    return stem


def _scale(g: Expr, factor: Expr, hidden: bool) -> Expr:
    """g * factor with a choice on the outside, so that a branch not taken gives exactly 0.

    `hidden`: the derivative can be infinite, though `factor`, written with y, does not show it;
    then too the product is exactly 0 where g is 0.
    """
    if isinstance(factor, Call) and factor.function == "select":
        condition, first, second = factor.arguments
        parts = (_scale(g, first, hidden), _scale(g, second, hidden))
        return Call("select", (condition, *parts))
    if isinstance(factor, Const):
        return factor if factor == Const(0.0) else gradient_product(g, factor)
    return Call("masked_mul", (g, factor)) if hidden else gradient_product(g, factor)


def _mask(b: Builder, node: Node, condition: Expr) -> Value:
    """The one-bit value of a condition on the node's operands, made beside the node itself."""
    named = dict(zip(scalar_form(node)[1], node.inputs, strict=True))
    used = variables(condition)
    inputs = tuple(named[name] for name in used)
    for other in b.nodes:
        same = other.op == "map" and other.inputs == inputs and other.attr("arguments") == used
        if same and other.attr("expr") == condition:
            return other.output
    forward = b.at(node)
    operands = [b.values[name] for name in inputs]
    stem = f"{node.output.name}.mask"
    return forward.add("map", *operands, name=stem, expr=condition, arguments=used)


def sum_to(b: Builder, value: Value, shape: Shape) -> Value:
    """Undo a broadcast: sum `value` over the axes along which `shape` was expanded."""
    if value.shape == shape:
        return value
    offset = len(value.shape) - len(shape)
    padded = (1,) * offset + shape
    axes = tuple(
        k for k, (have, want) in enumerate(zip(value.shape, padded, strict=True)) if have != want
    )
    total = b.add("sum", value, axes=axes, keepdims=True) if axes else value
    return b.add("reshape", total, shape=shape) if total.shape != shape else total


def build_elementwise(name: str, parameters: tuple[Option, ...]) -> Build:
    """A layer that applies the row to its inputs with the options as attributes."""

    def build(context: LayerContext, inputs: Sequence[Value]) -> Value:
        attrs = {p.name: context.option(p.name) for p in parameters}
        return context.builder.add(name, *inputs, name=context.builder.scope, **attrs)

    return build


def elementwise(
    name: str,
    body: Expr,
    arguments: tuple[str, ...] = ("x",),
    parameters: tuple[Option, ...] = (),
    gradient: Mapping[str, Expr] | Expr | None = None,
    build: Build | None = None,
    layer: LayerSchema | None = None,
    help: str = "",
) -> Op:
    """A row of an element-wise op: its gradient is derived from `body`.

    `gradient` may give a better form of d y / d x (over the arguments and `y`); it is compared
    with the derived one at sample points, and a difference is an error of the row.
    """
    better = {"x": gradient} if isinstance(gradient, Expr) else gradient
    shorthand = parameters[0].name if len(parameters) == 1 else None
    schema = layer or LayerSchema(
        name, parameters, len(arguments), len(arguments), shorthand, help
    )
    op = Op(
        name=name,
        infer=lambda operands, attrs: infer_elementwise(op)(operands, attrs),
        reference=reference_elementwise,
        gradient=gradient_elementwise(lambda node, position, forms: forms[0]),
        flops=flops_elementwise,
        body=body,
        arguments=arguments,
        parameters=parameters,
        better=better,
        layer=schema,
        build=build or build_elementwise(name, parameters),
    )
    for argument, form in (better or {}).items():
        _check_agreement(op, argument, form)
    return op


def _check_agreement(op: Op, argument: str, form: Expr) -> None:
    """Compare a given derivative with the derived one at sample points away from kinks."""
    assert op.body is not None
    constants = {p.name: as_expr(cast(float, p.default)) for p in op.parameters}
    body, given = substitute(op.body, constants), substitute(form, constants)
    samples = np.linspace(-3.1, 3.3, 23)
    shifts = {name: np.roll(samples, 5 * k) for k, name in enumerate(op.arguments)}
    double = np.dtype(np.float64)
    shifts["y"] = np.broadcast_to(evaluate(body, shifts, double), samples.shape)
    derived = evaluate(derivative(body, argument), shifts, double)
    close = np.isclose(evaluate(given, shifts, double), derived, rtol=1e-9, atol=1e-12)
    known = np.isfinite(derived)
    assert np.all(close | ~known), f"{op.name}: the given gradient differs from the derived one"


def static_count(shape: Shape, axes: Sequence[int]) -> int | None:
    """The number of elements along `axes`, or None where it grows with the batch."""
    count = 1
    for axis in axes:
        dim = shape[axis]
        if isinstance(dim, Rows):
            return None
        count *= dim
    return count


def place(span: Span) -> str:
    """`file:line`, the short form of a place."""
    return f"{span.file}:{span.line}"
