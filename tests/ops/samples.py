"""Sample operands for every row, layer and loss, made by rules that new ones fall under."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from graphs import (
    BATCH,
    ROWS,
    Case,
    float_names,
    forward_of,
    generator,
    given_for,
    op_case,
    read_spec,
    spec_case,
    spread,
    with_score,
)

from bpc.expr import Var, tanh
from bpc.ops import LOSSES, OPS, Op
from bpc.ops.layers import layer_schemas
from bpc.types import I64, DType, LayerSchema, Option

PRECISION_OF = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16"}

POSITIVE = {("log", "x"), ("sqrt", "x"), ("pow", "a")}
"""Operands whose domain ends at 0."""

_CONV = {"stride": (2, 1), "padding": (1, 0)}  # 6x5 images, 3x2 windows: a row is left over
_X, _W, _Y = (BATCH, 2, 6, 5), (3, 2, 3, 2), (BATCH, 3, 3, 4)

ROWS_OF_OPERANDS: dict[str, list[tuple[Sequence[Sequence[Any]], dict[str, Any]]]] = {
    "map": [
        (
            [(BATCH, 4), (4,)],
            {"expr": Var("g") * tanh(Var("y")), "arguments": ("g", "y")},
        )
    ],
    "index": [([], {"axis": 1, "shape": (BATCH, 4)}), ([], {"axis": None, "shape": (BATCH, 4)})],
    "extent": [([], {"dim": BATCH})],
    "reshape": [([(BATCH, 4, 3)], {"shape": (BATCH, 12)})],
    "row_reduce": [
        ([(BATCH, 4, 3)], {"count": 2, "kind": "sum"}),
        ([(BATCH, 4, 3)], {"count": 1, "kind": "max"}),
    ],
    "col_reduce": [
        ([(BATCH, 4, 3)], {"first": 0, "count": 2, "kind": "sum"}),
        ([(BATCH, 4, 3)], {"first": 1, "count": 1, "kind": "sum"}),
    ],
    "chunk_reduce": [([(5, 2)], {"dtype": "f64"})],
    "combine": [([(5,)], {"dtype": "f64"})],
    "gemm": [
        ([(4, 3), (3, 2)], {}),
        ([(3, 4), (3, 2)], {"ta": True}),
        ([(4, 3), (2, 3)], {"tb": True}),
        ([(3, 4), (2, 3), (2,)], {"ta": True, "tb": True}),
    ],
    "matmul": [([(BATCH, 3), (3, 4)], {}), ([(BATCH, 2, 3), (3, 4)], {})],
    "linear": [([(BATCH, 3), (3, 4), (4,)], {}), ([(BATCH, 2, 3), (3, 4), (4,)], {})],
    "conv2d": [([_X, _W, (3,)], _CONV), ([_X, _W], {"stride": (1, 1), "padding": (0, 0)})],
    "conv2d_input": [([_Y, _W], {**_CONV, "shape": _X})],
    "conv2d_weight": [([_X, _Y], {**_CONV, "shape": _W})],
    "layernorm": [
        ([(BATCH, 5), (5,), (5,)], {"eps": 1e-5}),
        ([(BATCH, 2, 3), (2, 3), (2, 3)], {"eps": 0.1}),
    ],
    "norm": [
        ([(BATCH, 5)], {"p": 2.0, "count": 1}),
        ([(BATCH, 2, 3)], {"p": 3.0, "count": 2}),
        ([(BATCH, 5)], {"p": 1.0, "count": 1}),
        ([(BATCH, 5)], {"p": math.inf, "count": 1}),
    ],
    "sum": [
        ([(BATCH, 4, 3)], {"axes": (0, 2)}),
        ([(BATCH, 4, 3)], {"axes": (-2,), "keepdims": True}),
        ([(BATCH, 4, 3)], {"axes": (0, 1, 2)}),
        ([(90, 100)], {"axes": (0, 1)}),  # more than two chunks: summed by chunks
    ],
    "dropout": [
        ([(BATCH, 40), "seed", "seed", "seed"], {"p": 0.3, "stream": 11}),
    ],
    "cross_entropy": [
        ([(BATCH, 5), "classes"], {"label_smoothing": s, "ignore_index": i})
        for s, i in ((0.0, None), (0.1, None), (0.2, 1))
    ]
    + [
        (
            [(BATCH, 5), "classes"],
            {"label_smoothing": s, "ignore_index": 1, "class_weights": (0.5, 2.0, 2.0, 0.0, 3.0)},
        )
        for s in (0.0, 0.2)
    ],
}
"""Shapes and attributes of rows that are not element-wise; what is not here takes one operand."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One way to use a row, a layer or a loss; `id` names it in a test's title."""

    id: str
    make: Any = field(compare=False)

    @property
    def of(self) -> str:
        """The name of the row, layer or loss."""
        return self.id.split("-")[0]

    def case(self, dtype: DType) -> Case:
        """The graph with its values, stored in `dtype`."""
        return self.make(dtype)


def _operand(op: str, shape: Any, position: int, dtype: DType, name: str) -> Any:
    if shape == "seed":
        return I64, (), np.asarray(position)
    if shape == "classes":
        return I64, (BATCH,), np.array([0, 1, 4])
    counts = [ROWS if dim == BATCH else dim for dim in shape]
    array = spread(counts, position, generator(op, position))
    if op in ("softmax", "log_softmax", "layernorm", "row_reduce"):
        array = array + generator(op).uniform(-0.01, 0.01, counts)  # no two equal in a row
    return dtype, shape, np.abs(array) if (op, name) in POSITIVE else array


def _row_samples(op: Op) -> Iterator[Sample]:
    if op.body is not None and op.name not in ROWS_OF_OPERANDS:
        yield from _elementwise_samples(op)
        return
    for k, (shapes, attrs) in enumerate(ROWS_OF_OPERANDS.get(op.name, [([(BATCH, 4)], {})])):

        def make(dtype: DType, shapes: Any = shapes, attrs: Any = attrs) -> Case:
            operands = [_operand(op.name, s, n, dtype, "") for n, s in enumerate(shapes)]
            return op_case(op.name, operands, **attrs)

        yield Sample(f"{op.name}-{k}", make)


def _elementwise_samples(op: Op) -> Iterator[Sample]:
    """Equal shapes and broadcast ones, options at their default and at 1.6 times that."""
    plain: list[Any] = [(BATCH, 6)] * len(op.arguments)
    ragged: list[Any] = [(BATCH, 2, 3), (3,), (2, 1), (1,)][: len(op.arguments)]
    variants = [("same", plain, 1.0)]
    if len(op.arguments) > 1:
        variants.append(("broadcast", ragged, 1.0))
    if op.parameters:
        variants.append(("options", plain, 1.6))
    for title, shapes, factor in variants:

        def make(dtype: DType, shapes: Any = shapes, factor: float = factor) -> Case:
            named = zip(op.arguments, shapes, strict=True)
            operands = [
                _operand(op.name, shape, n, dtype, name) for n, (name, shape) in enumerate(named)
            ]
            attrs = {p.name: factor * float(p.default) for p in op.parameters}
            return op_case(op.name, operands, **attrs)

        yield Sample(f"{op.name}-{title}", make)


ROW_SAMPLES = [sample for op in OPS.values() for sample in _row_samples(op)]

# -- layers ---------------------------------------------------------------------------------------

LAYER_SHAPES: dict[str, list[int]] = {"conv2d": [2, 6, 5], "layernorm": [3, 4]}
REQUIRED = {"int": "3", "shape": "[2, 2]", "formula": '"x * tanh(x) + 1"', "float": "0.3"}


def _written(option: Option) -> str | None:
    """What a spec says for a required option."""
    return f"{option.name}: {REQUIRED[option.kind]}" if option.required else None


def _layer_text(schema: LayerSchema, inputs: int, extra: str, precision: str) -> str:
    options = [text for text in map(_written, schema.options) if text]
    shape = LAYER_SHAPES.get(schema.name, [4])
    names = "xabc"[:inputs]
    written = ", ".join(f"{name}: {shape}" for name in names)
    sources = ", ".join(names)
    if any(option.name == "out" for option in schema.options):
        options = [*(text for text in options if not text.startswith("out")), "out: 3"]
    parameters = ""
    if schema.name == "matmul":
        written, parameters = f"x: {shape}", "parameters: {w: {shape: [4, 3], init: zeros}}\n"
        sources = "x, w"
    body = ", ".join([*options, *([extra] if extra else [])])
    return (
        f"bpc: 1\nname: layer\n{parameters}"
        f"data: {{source: synthetic, batch: {ROWS}, inputs: {{{written}}}}}\n"
        f"model:\n  - {{{schema.name}: {{{body}}}, name: layer, from: [{sources}]}}\n"
        "loss: mse\n"
        f"train: {{steps: 1, precision: {precision}, optimizer: {{sgd: {{lr: 0.1}}}}}}\n"
    )


def _layer_variants(schema: LayerSchema) -> Iterator[tuple[str, int, str]]:
    """Least and most inputs, each choice, each switch turned round, a constant operand."""
    named = {option.name for option in schema.options}
    if "value" in named and schema.most_inputs == 2:
        yield "constant", 1, "value: 0.5"
        yield "two", 2, ""
        return
    yield "plain", schema.least_inputs, ""
    for option in schema.options:
        if option.kind == "bool":
            text = str(not option.default).lower()
            yield f"{option.name}-{text}", schema.least_inputs, f"{option.name}: {text}"
        for choice in option.choices:
            yield f"{option.name}-{choice}", schema.least_inputs, f"{option.name}: {choice}"


def _layer_samples(schema: LayerSchema) -> Iterator[Sample]:
    for title, inputs, extra in _layer_variants(schema):

        def make(dtype: DType, inputs: int = inputs, extra: str = extra) -> Case:
            spec = read_spec(_layer_text(schema, inputs, extra, PRECISION_OF[dtype.name]))
            positive = {"x"} if any(op == schema.name for op, _ in POSITIVE) else set()

            def fill(name: str, shape: Sequence[int], position: int) -> np.ndarray:
                array = spread(shape, position, generator(schema.name, name))
                array = array + generator(name).uniform(-0.01, 0.01, shape)
                return np.abs(array) if name in positive else array

            return spec_case(spec, fill)

        yield Sample(f"{schema.name}-{title}", make)


LAYER_SAMPLES = [sample for row in layer_schemas().values() for sample in _layer_samples(row)]

# -- losses ---------------------------------------------------------------------------------------

LOSS_VARIANTS = {
    "float": lambda option: f"{option.name}: 0.3",
    "int": lambda option: f"{option.name}: 1",
    "numbers": lambda option: f"{option.name}: [0.5, 2, 2, 1, 3]",
}


def loss_text(name: str, options: str, target: str, precision: str, width: int = 5) -> str:
    """A spec whose prediction is its input."""
    return (
        "bpc: 1\nname: loss\n"
        f"data: {{source: synthetic, batch: {ROWS}, shape: [{width}], {target}}}\n"
        'model:\n  - {formula: "1 * x", name: copy}\n'
        f"loss: {{{name}: {{{options}}}}}\n"
        f"train: {{steps: 1, precision: {precision}, optimizer: {{sgd: {{lr: 0.1}}}}}}\n"
    )


def _loss_samples(name: str) -> Iterator[Sample]:
    options = [""]
    for option in LOSSES[name].schema.options:
        options.append(LOSS_VARIANTS[option.kind](option))
    for written in options:

        def make(dtype: DType, written: str = written) -> Case:
            classes = name == "cross_entropy"
            target = "classes: 5" if classes else "target_shape: [5]"
            spec = read_spec(loss_text(name, written, target, PRECISION_OF[dtype.name]))
            graph = forward_of(spec)

            def fill(label: str, shape: Sequence[int], position: int) -> np.ndarray:
                return spread(shape, position, generator(name, label))

            given = given_for(graph, fill, ROWS)
            if classes:
                given["target"] = np.array([0, 1, 4])
            names = tuple(n for n in float_names(graph) if n != "target")
            return Case(with_score(graph, "loss"), given, ROWS, names)

        yield Sample(f"{name}-{written.split(':')[0] or 'plain'}", make)


LOSS_SAMPLES = [sample for name in LOSSES for sample in _loss_samples(name)]
SAMPLES = [*ROW_SAMPLES, *LAYER_SAMPLES, *LOSS_SAMPLES]
REFUSED = {"chunk_reduce"}
"""Rows that appear after differentiation only: they have no derivative, and must say so."""

CUTS = {"stop_gradient"}
"""Rows whose gradient is zero by definition, not by differentiation."""

DIFFERENTIABLE = [sample for sample in SAMPLES if sample.of not in REFUSED]

__all__ = [
    "CUTS",
    "DIFFERENTIABLE",
    "LAYER_SAMPLES",
    "LOSS_SAMPLES",
    "REFUSED",
    "ROW_SAMPLES",
    "SAMPLES",
    "Sample",
    "loss_text",
]
