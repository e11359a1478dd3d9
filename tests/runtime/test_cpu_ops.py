"""Every row, layer and loss, compiled: forward and gradients against the float64 oracle.

All samples of one type are entry points of one program, so that a type costs one compilation. The
program is planned for more rows than it is run with, and whatever no state or input owns is NaN
before each run.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import pytest
from graphs import (
    BATCH,
    SCORE,
    Case,
    assert_close,
    differences,
    generator,
    gradients,
    joint_of,
    op_case,
    spread,
)
from header_drivers import NEEDS_COMPILER
from programs import Bundle, bundle
from samples import CUTS, DIFFERENTIABLE, REFUSED, SAMPLES, Sample

from bpc.ir import Value
from bpc.types import BF16, F16, F32, F64, DType

pytestmark = NEEDS_COMPILER

PLANNED = 5
"""Rows that the programs are planned for; samples have three."""

BOUNDS = {"f64": 1e-13, "f32": 2e-6, "f16": 2e-3, "bf16": 1.5e-2}
"""Error over the largest element of the tensor: a few roundings of 2^-53, 2^-24, 2^-11 and 2^-8
each. Sums get the root of their length on top, where rounding errors add up at random."""


@cache
def compiled(dtype: str) -> tuple[Bundle, dict[str, Case]]:
    """All samples stored in one type, with every gradient as an output."""
    cases = {sample.id: sample.case(TYPES[dtype]) for sample in SAMPLES}
    graphs = {
        name: case.graph if name.split("-")[0] in REFUSED else joint_of(case)[0]
        for name, case in cases.items()
    }
    return bundle(graphs, PLANNED), cases


TYPES: dict[str, DType] = {kind.name: kind for kind in (F64, F32, F16, BF16)}
ALL = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)


@pytest.mark.parametrize("dtype", TYPES)
@ALL
def test_forward_and_gradients_match_the_oracle(sample: Sample, dtype: str) -> None:
    made, cases = compiled(dtype)
    case = cases[sample.id]
    found = made.run(sample.id, case.given, case.rows)
    bound = BOUNDS[dtype] * sqrt(max(array.size for array in case.given.values()))
    expected = case.run()
    for role, name in case.graph.outputs:
        # The score is a sum whose terms cancel; where the terms are results, they are compared.
        if role in found and (role != SCORE or len(case.graph.outputs) == 1):
            assert_close(found[role], expected[name], bound, role)
    slopes = {} if sample.of in REFUSED else gradients(case)
    assert {f"gradient.{name}" for name in slopes} >= {r for r in found if "gradient" in r}
    for name, slope in slopes.items():
        if f"gradient.{name}" in found:
            assert_close(found[f"gradient.{name}"], slope, bound, f"gradient of {name}")


@pytest.mark.parametrize("sample", DIFFERENTIABLE, ids=lambda sample: sample.id)
def test_gradients_match_central_differences_of_the_forward_oracle(sample: Sample) -> None:
    """Two places of each operand; the oracle runs the forward graph alone, in float64."""
    if sample.of in CUTS:
        pytest.skip("its gradient is zero by definition, not by differentiation")
    made, cases = compiled("f64")
    case = cases[sample.id]
    found = made.run(sample.id, case.given, case.rows)
    for name in case.floats:
        if f"gradient.{name}" in found:
            slope = found[f"gradient.{name}"]
            places, slopes = differences(case, name, most=2)
            largest = max(float(np.abs(slope).max()), float(np.abs(slopes).max()))
            assert np.abs(slope.flat[places] - slopes).max(initial=0.0) <= 2e-8 * largest, name


# -- other shapes ---------------------------------------------------------------------------------

TALL = 37
"""Planned rows: no multiple of 8, 16 or 32."""
WIDTHS = (1, 2, 7, 8, 9, 16, 33, 65, 300)
LONG = 5000  # more than one slice of a row's reduction


def shaped(op: str, shapes: list[Any], dtype: DType, **attrs: Any) -> Case:
    """A case of `TALL` rows."""
    operands = []
    for k, shape in enumerate(shapes):
        counts = [TALL if dim == BATCH else dim for dim in shape]
        rng = generator(op, shapes, k)
        array = spread(counts, k, rng) + rng.uniform(-0.01, 0.01, counts)
        operands.append((dtype, shape, array / (4 if len(shape) == 2 and k else 1)))
    return op_case(op, operands, TALL, **attrs)


def other_shapes(dtype: DType) -> dict[str, Case]:
    """Tails, single rows and columns, deep tensors, every way to broadcast."""
    found: dict[str, Case] = {}

    def add(op: str, *shapes: Any, **attrs: Any) -> None:
        label = " ".join("x".join(map(str, shape)) for shape in shapes)
        found[f"{op} {label}{attrs.get('axes', '')}"] = shaped(op, list(shapes), dtype, **attrs)

    for width in WIDTHS:
        add("relu", (BATCH, width))
        add("softmax", (BATCH, width))
        add("linear", (BATCH, width), (width, 5), (5,))
        add("linear", (BATCH, 6), (6, width), (width,))
    for width in (3, 65, 300, LONG):
        add("layernorm", (BATCH, width), (width,), (width,), eps=1e-5)
        add("sum", (BATCH, width), axes=(0,))
    add("log_softmax", (BATCH, LONG))
    add("sum", (BATCH, LONG), axes=(0, 1))
    add("sum", (300, LONG), axes=(0, 1))
    add("layernorm", (BATCH, 3, 5, 7), (3, 5, 7), (3, 5, 7), eps=1e-5)
    add("linear", (BATCH, 3, 33), (33, 9), (9,))
    for shape in ((BATCH, 3, 5), (BATCH, 2, 3, 5), (BATCH, 4, 1), (BATCH, 1, 9), (BATCH, 1, 1)):
        add("gelu", shape)
        add("relu", shape)
        for axes in ((1,), (0, 1), (0, 2), (2,)):
            add("sum", shape, axes=axes)
    for other in ((5,), (1,), (), (3, 1), (3, 5), (1, 1), (1, 3, 5), (BATCH, 1, 1), (BATCH, 3, 1)):
        add("mul", (BATCH, 3, 5), other)
        add("max", (BATCH, 3, 5), other)
    add("mul", (BATCH, 1, 5), (BATCH, 3, 1))
    add("where", (BATCH, 3, 5), (5,), (3, 1))
    for (image, kernel), stride, padding in (
        (((1, 8, 8), 3), (1, 1), (1, 1)),
        (((3, 9, 7), 3), (2, 3), (1, 2)),
        (((2, 5, 40), 1), (1, 2), (0, 0)),
        (((4, 6, 6), 5), (1, 1), (2, 2)),
    ):
        x, w = (BATCH, *image), (9, image[0], kernel, kernel)
        add("conv2d", x, w, (9,), stride=stride, padding=padding)
    return found


@cache
def compiled_shapes(dtype: str) -> tuple[Bundle, dict[str, Case]]:
    cases = other_shapes(TYPES[dtype])
    if dtype != "f32":  # a third is enough to see tails of narrow types
        cases = dict(list(cases.items())[::3])
    numbered = {f"s{k}": joint_of(case)[0] for k, case in enumerate(cases.values())}
    return bundle(numbered, TALL), cases


@pytest.mark.parametrize("rows", [TALL, TALL - 4, 1])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_other_shapes_and_short_batches(dtype: str, rows: int) -> None:
    made, cases = compiled_shapes(dtype)
    for number, (label, case) in enumerate(cases.items()):
        inputs = {value.name: value.shape for value in (*case.graph.inputs, *states_of(case))}
        given = {
            name: array[:rows] if inputs[name][:1] == (BATCH,) else array
            for name, array in case.given.items()
        }
        short = Case(case.graph, given, rows, case.floats)
        found = made.run(f"s{number}", given, rows)
        expected, slopes = short.run(), gradients(short)
        longest = max(array.size for array in given.values())
        bound = BOUNDS[dtype] * max(3.0, sqrt(longest) / 16)
        for name in [role for role in found if role != SCORE]:
            exact = slopes[name[9:]] if name.startswith("gradient.") else expected[name]
            # Where exact values cancel to (nearly) nothing, rounding is relative to the operands.
            if np.abs(exact).max(initial=0.0) > 1e-6:
                assert_close(found[name], exact, bound, f"{label}, {rows} rows: {name}")


def states_of(case: Case) -> list[Value]:
    return [state.value for state in case.graph.states]
