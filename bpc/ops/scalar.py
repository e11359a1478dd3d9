"""Element-wise rows: arithmetic, comparisons, activations; gradients are derived from bodies."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from bpc.expr import (
    Const,
    Expr,
    Var,
    absolute,
    call,
    clip,
    erf,
    exp,
    expm1,
    gt,
    le,
    log,
    maximum,
    minimum,
    select,
    sigmoid,
    softplus,
    square,
    substitute,
    tanh,
)
from bpc.expr import sqrt as root
from bpc.ir import Init, Value
from bpc.ops.base import OPS, Build, LayerContext, elementwise
from bpc.types import LayerSchema, Option

x, y, a, b, c = (Var(name) for name in "xyabc")

SELU_ALPHA = 1.6732632423543772  # Klambauer et al. 2017 (arXiv:1706.02515), equation 14
SELU_SCALE = 1.0507009873554805
VALUE = Option("value", "float", None, help="a constant in place of the second input")


def _build_binary(name: str, body: Expr) -> Build:
    """Two inputs, or one input and the constant `value` in place of the second."""

    def build(context: LayerContext, inputs: Sequence[Value]) -> Value:
        constant = context.option("value")
        if (constant is None) == (len(inputs) == 1):
            raise context.fault(
                "BPC0211",
                f"{name} takes two inputs, or one input and a value",
                help=f"write `{name}: 0.5`, or `{{{name}: {{}}, from: [first, second]}}`",
            )
        label = context.builder.scope
        if constant is None:
            return context.builder.add(name, *inputs, name=label)
        expr = substitute(body, {"b": Const(float(constant))})
        return context.builder.add("map", *inputs, name=label, expr=expr, arguments=("a",))

    return build


def _binary(name: str, body: Expr, help: str) -> None:
    schema = LayerSchema(name, (VALUE,), 1, 2, "value", help)
    build = _build_binary(name, body)
    OPS.register(elementwise(name, body, ("a", "b"), build=build, layer=schema))


def _parameter(name: str, default: float, least: float | None, help: str) -> tuple[Option, ...]:
    return (Option(name, "float", default, minimum=least, help=help),)


_binary("add", a + b, "a + b")
_binary("sub", a - b, "a - b")
_binary("mul", a * b, "a * b")
_binary("div", a / b, "a / b")
_binary("pow", a**b, "a to the power b; 0 to the power 0 is 1")
_binary("max", maximum(a, b), "the larger; equal elements share the gradient evenly")
_binary("min", minimum(a, b), "the smaller; equal elements share the gradient evenly")
_SIGNS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="), ("eq", "="), ("ne", "!="))
for _name, _sign in _SIGNS:
    _binary(_name, call(_name, a, b), f"whether a {_sign} b; no gradient")

OPS.register(elementwise("where", select(c, a, b), ("c", "a", "b"), help="a where c, else b"))
OPS.register(elementwise("neg", -x, help="-x"))
OPS.register(elementwise("abs", absolute(x), help="|x|, gradient 0 at 0"))
OPS.register(elementwise("exp", exp(x), gradient=y, help="e to the power x"))
OPS.register(elementwise("log", log(x), help="natural logarithm"))
OPS.register(
    elementwise("sqrt", root(x), gradient=Const(0.5) / y, help="square root")
)
OPS.register(elementwise("square", square(x), help="x * x"))
OPS.register(
    elementwise(
        "clip",
        clip(x, Var("min"), Var("max")),
        parameters=(
            Option("min", "float", -1.0, help="the least value of the result"),
            Option("max", "float", 1.0, help="the largest value of the result"),
        ),
        help="x kept within [min, max]; the gradient passes at the bounds",
    )
)
OPS.register(
    elementwise(
        "relu",
        select(le(x, 0.0), 0.0, x),  # this way round, a NaN goes through
        gradient=select(le(y, 0.0), 0.0, 1.0),
        help="max(x, 0), gradient 0 at 0",
    )
)
OPS.register(
    elementwise(
        "leaky_relu",
        select(gt(x, 0.0), x, Var("slope") * x),
        parameters=_parameter("slope", 0.01, 0.0, "factor of negative inputs"),
        gradient=select(gt(y, 0.0), 1.0, Var("slope")),
        help="x where x > 0, else slope * x",
    )
)
OPS.register(
    elementwise(
        "elu",
        select(gt(x, 0.0), x, Var("alpha") * expm1(x)),
        parameters=_parameter("alpha", 1.0, 0.0, "limit of very negative inputs, negated"),
        gradient=select(gt(y, 0.0), 1.0, y + Var("alpha")),
        help="x where x > 0, else alpha * (exp(x) - 1)",
    )
)
OPS.register(
    elementwise(
        "selu",
        SELU_SCALE * select(gt(x, 0.0), x, SELU_ALPHA * expm1(x)),
        gradient=select(gt(y, 0.0), SELU_SCALE, y + SELU_SCALE * SELU_ALPHA),
        help="1.0507 * (x where x > 0, else 1.6733 * (exp(x) - 1)), which keeps mean 0, variance 1",
    )
)
OPS.register(elementwise("sigmoid", sigmoid(x), gradient=y * (1.0 - y), help="1 / (1 + exp(-x))"))
OPS.register(elementwise("tanh", tanh(x), gradient=1.0 - y * y, help="hyperbolic tangent"))
OPS.register(elementwise("softplus", softplus(x), gradient=-expm1(-y), help="log(1 + exp(x))"))
OPS.register(elementwise("silu", x * sigmoid(x), help="x * sigmoid(x)"))
OPS.register(
    elementwise(
        "swish",
        x * sigmoid(Var("beta") * x),
        parameters=_parameter("beta", 1.0, None, "slope of the gate"),
        help="x * sigmoid(beta * x)",
    )
)
OPS.register(elementwise("mish", x * tanh(softplus(x)), help="x * tanh(softplus(x))"))


def _build_gelu(context: LayerContext, inputs: Sequence[Value]) -> Value:
    name = "gelu" if context.option("approximate") == "none" else "gelu_tanh"
    return context.builder.add(name, *inputs, name=context.builder.scope)


_APPROXIMATE = Option(
    "approximate", "choice", "none", choices=("none", "tanh"), help="none: by erf; tanh: gelu_tanh"
)
OPS.register(
    elementwise(
        "gelu",
        0.5 * x * (1.0 + erf(x * (1 / sqrt(2)))),
        build=_build_gelu,
        layer=LayerSchema("gelu", (_APPROXIMATE,), 1, 1, "approximate", "x * Phi(x)"),
    )
)
# Hendrycks and Gimpel 2016 (arXiv:1606.08415): the tanh form and its constant
OPS.register(
    elementwise(
        "gelu_tanh",
        0.5 * x * (1.0 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x))),
        help="x * Phi(x), the normal distribution approximated by tanh",
    )
)


def _build_prelu(context: LayerContext, inputs: Sequence[Value]) -> Value:
    """One learned slope for all elements, or one per position of the last axis."""
    (value,) = inputs
    shape = (1,) if context.option("shared") else value.shape[-1:]
    start = Init("constant", (("value", context.option("slope")),))
    slope = context.parameter("slope", shape, start)
    return context.builder.add("prelu", value, slope, name=context.builder.scope)


OPS.register(
    elementwise(
        "prelu",
        select(gt(x, 0.0), x, a * x),
        ("x", "a"),
        build=_build_prelu,
        layer=LayerSchema(
            "prelu",
            (
                Option("slope", "float", 0.25, help="initial factor of negative inputs"),
                Option("shared", "bool", True, help="one slope, or one per last-axis position"),
            ),
            1,
            1,
            "slope",
            "leaky relu with a learned slope",
        ),
    )
)
