"""Every row, layer and loss: gradients against differences of the forward graph alone.

New rows, layers and losses join by themselves. The analytic side is the joint graph; the oracle
never runs a backward node.
"""

from __future__ import annotations

import numpy as np
import pytest
from graphs import SCORE, assert_close, differences, gradients, joint_of
from samples import CUTS, DIFFERENTIABLE, REFUSED, SAMPLES, Sample

from bpc.ops import OPS
from bpc.passes import run_passes
from bpc.types import BF16, F16, F32, F64, DType


def every(samples: list[Sample]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("sample", samples, ids=lambda sample: sample.id)


def test_every_row_has_a_sample() -> None:
    sampled = {node.op for sample in SAMPLES for node in sample.case(F64).graph.nodes}
    assert sampled >= set(OPS)


def test_rows_without_a_derivative_refuse_or_are_whole_numbers() -> None:
    without = {name for name, op in OPS.items() if op.gradient is None}
    samples = [sample for sample in SAMPLES if sample.of in without]
    assert {sample.of for sample in samples} == without
    for sample in samples:
        case = sample.case(F64)
        name = sample.of
        if case.graph.values()["result"].dtype.kind == "float":
            assert name in REFUSED
            with pytest.raises(AssertionError, match="has no derivative"):
                joint_of(case)
        else:
            assert case.floats == ()


@every(DIFFERENTIABLE)
def test_gradient_matches_differences_of_the_forward_graph(sample: Sample) -> None:
    case = sample.case(F64)
    plain, expanded = gradients(case), gradients(case, expanded=True)
    assert set(plain) == set(case.floats)
    for name, found in plain.items():
        places, oracle = differences(case, name)
        if sample.of in CUTS:
            assert np.any(oracle)
            oracle = np.zeros_like(oracle)
        assert_close(found.ravel()[places], oracle, 1e-7, name)
        assert_close(expanded[name], found, 1e-11, f"{name}, expanded")


@every(SAMPLES)
def test_expansion_gives_the_values_of_the_row(sample: Sample) -> None:
    case = sample.case(F64)
    before, graph = case.run(), run_passes(case.graph)
    assert all(OPS[node.op].expand is None for node in graph.nodes)
    after = case.run(graph)
    for role, name in case.graph.outputs:
        assert_close(after[dict(graph.outputs)[role]], before[name], 1e-12, role)


# Gradients in a small type, against exact ones of the same rounded inputs. Sums run in f32 over
# at most 60 terms, which with a dozen further roundings stays under 64 units of 2^-24. In 16 bits
# a gradient is rounded on the way in, at each node and on the way out: about four of 2^-11, and
# five of 2^-9.
BOUNDS = {F32: 64 * 2.0**-24, F16: 2e-3, BF16: 1e-2}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@every(DIFFERENTIABLE)
def test_gradient_in_a_small_type(sample: Sample, dtype: DType) -> None:
    case = sample.case(dtype)
    exact = gradients(case)
    for expanded in (False, True):
        native = gradients(case, exact=False, expanded=expanded)
        for name, expected in exact.items():
            assert_close(native[name], expected, BOUNDS[dtype], f"{name}, expanded {expanded}")


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@every(SAMPLES)
def test_native_forward_is_near_the_exact_one(sample: Sample, dtype: DType) -> None:
    case = sample.case(dtype)
    exact, bound = case.run(), {F64: 1e-13, F32: BOUNDS[F32]}[dtype]
    results = [name for role, name in case.graph.outputs if role != SCORE]
    terms = sum(float(np.abs(exact[name].astype(float)).sum()) for name in results)
    for graph in (case.graph, run_passes(case.graph)):
        found = float(case.run(graph, exact=False)[SCORE])
        assert abs(found - float(exact[SCORE])) <= bound * 1.5 * terms  # weights are below 1.5
