"""Every row, layer and loss, compiled: forward and gradients against the float64 oracle.

All samples of one type are entry points of one program, so that a type costs one compilation. The
program is planned for more rows than it is run with, and whatever no state or input owns is NaN
before each run.
"""

from __future__ import annotations

from functools import cache
from math import sqrt

import pytest
from graphs import SCORE, Case, assert_close, gradients, joint_of
from header_drivers import NEEDS_COMPILER
from programs import Bundle, bundle
from samples import REFUSED, SAMPLES, Sample

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
