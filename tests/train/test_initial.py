from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from bpc.errors import Span, SpecError
from bpc.ir import Init, State, Value
from bpc.train.initial import check_initials, initial_value, initial_values
from bpc.types import F32

SPAN = Span("net.yaml", 3, 5)
ROWS, COLUMNS = 300, 200


def state(
    kind: str,
    shape: tuple[int, ...] = (ROWS, COLUMNS),
    fans: tuple[int, int] = (ROWS, COLUMNS),
    name: str = "fc.weight",
    **options: object,
) -> State:
    init = Init(kind, tuple(sorted(options.items())), *fans)
    return State(Value(name, F32, shape), "parameter", init, SPAN)


STANDARD_DEVIATIONS = [
    (state("normal", std=0.3), 0.3),
    (state("uniform", low=-3.0, high=1.0), 4 / sqrt(12)),
    (state("xavier"), sqrt(2 / (ROWS + COLUMNS))),
    (state("xavier_uniform", gain=2.0), 2 * sqrt(2 / (ROWS + COLUMNS))),
    (state("xavier_normal"), sqrt(2 / (ROWS + COLUMNS))),
    (state("he"), sqrt(2 / ROWS)),
    (state("he", mode="fan_out"), sqrt(2 / COLUMNS)),
    (state("he", distribution="normal", gain=1.0), sqrt(1 / ROWS)),
    (state("he_uniform"), sqrt(2 / ROWS)),
    (state("he_normal", mode="fan_out", gain=1.0), sqrt(1 / COLUMNS)),
]


@pytest.mark.parametrize(
    ("parameter", "std"), STANDARD_DEVIATIONS, ids=lambda v: str(getattr(v, "init", v))
)
def test_spread_is_what_the_formula_says(parameter: State, std: float) -> None:
    made = initial_value(parameter, 0)
    mean = -1.0 if parameter.init.kind == "uniform" else 0.0
    count = made.size  # the error of a standard deviation from n draws is below std / sqrt(n)
    assert made.mean() == pytest.approx(mean, abs=5 * std / sqrt(count))
    assert made.std() == pytest.approx(std, rel=5 / sqrt(count))


@pytest.mark.parametrize(
    ("parameter", "bound"),
    [
        (state("xavier"), sqrt(6 / (ROWS + COLUMNS))),
        (state("he_uniform", gain=1.0), sqrt(3 / ROWS)),
        (state("uniform", low=-2.0, high=2.0), 2.0),
    ],
)
def test_uniform_draws_fill_their_interval(parameter: State, bound: float) -> None:
    made = initial_value(parameter, 7)
    assert bound * 0.999 < np.abs(made).max() <= bound


def test_normal_draws_have_the_tails_and_no_correlation() -> None:
    made = initial_value(state("normal", shape=(40_001,)), 3)
    assert (np.abs(made) > 2).mean() == pytest.approx(0.0455, rel=0.1)
    assert (made**4).mean() == pytest.approx(3, rel=0.1)
    half = len(made) // 2
    assert abs(np.corrcoef(made[:half], made[half : 2 * half])[0, 1]) < 4 / sqrt(half)


@pytest.mark.parametrize("shape", [(20, 20), (30, 12), (12, 30), (8, 2, 3, 3), (4, 3, 5, 5)])
def test_orthogonal_rows_or_columns_are_orthonormal(shape: tuple[int, ...]) -> None:
    matrix = initial_value(state("orthogonal", shape=shape, gain=2.0), 1).reshape(shape[0], -1) / 2
    small = min(matrix.shape)
    gram = matrix @ matrix.T if matrix.shape[0] == small else matrix.T @ matrix
    np.testing.assert_allclose(gram, np.eye(small), rtol=0, atol=1e-13 * small)


def test_fixed_kinds() -> None:
    assert (initial_value(state("zeros"), 0) == 0).all()
    assert (initial_value(state("ones"), 0) == 1).all()
    assert (initial_value(state("constant", value=0.25), 0) == 0.25).all()
    literal = state("values", shape=(2, 2), values=((1, 2), (3, 4)))
    assert initial_value(literal, 0).tolist() == [[1, 2], [3, 4]]


def test_draws_belong_to_a_seed_and_a_name() -> None:
    first, second = (state("he", name=name) for name in ("a.weight", "b.weight"))
    alone = initial_values([second], 5)["b.weight"]
    together = initial_values([first, second], 5)
    assert (alone == together["b.weight"]).all()
    assert abs(np.corrcoef(alone.ravel(), together["a.weight"].ravel())[0, 1]) < 0.02
    assert not (alone == initial_values([second], 6)["b.weight"]).any()


def test_a_master_starts_as_its_parameter() -> None:
    master = state("he", name="master.fc.weight")
    assert (initial_value(master, 2) == initial_value(state("he"), 2)).all()


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (state("values", shape=(2, 3), values=((1, 2), (3, 4))), "the tensor is [2, 3]"),
        (state("values", shape=(2,), values=1.0), "are []"),
        (state("orthogonal", shape=(9,)), "at least two axes, found [9]"),
        (state("he", mode="fan_out", shape=(9,), fans=(4, 0)), "needs fan_out"),
    ],
)
def test_an_initialiser_that_does_not_fit_has_a_place(parameter: State, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_initials([parameter, parameter])
    assert [item.span for item in caught.value.diagnostics] == [SPAN, SPAN]
    assert message in caught.value.diagnostics[0].message
    with pytest.raises(SpecError):
        initial_value(parameter, 0)
