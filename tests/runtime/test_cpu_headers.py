"""Functions, storage types and reductions of the C++ headers, for several instruction sets.

Every number is held against something that shares no code with the headers (mpmath, NumPy, a
tree written in Python), and must have the same bits on every instruction set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import ml_dtypes
import mpmath
import numpy as np
import pytest
from header_drivers import LEVELS, NEEDS_COMPILER, NUMBERS, UNARY, call, driver, mapped, same

pytestmark = NEEDS_COMPILER

# ---- element-wise functions --------------------------------------------------------------------

EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(-abs(x))) + max(x, 0),
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "recip": lambda x: 1 / x,
    "sign": mpmath.sign,
}
DOMAINS = {
    "exp": [(-87, 88.7), (-1, 1)],
    "expm1": [(-20, 88), (-1, 1), (-0.01, 0.01)],
    "log": [(0.3, 3), (1e-3, 1e5), (1e-30, 1e30)],
    "log1p": [(-0.99, 1), (-0.01, 0.01), (0, 1e5), (1e6, 1e30)],
    "tanh": [(-10, 10), (-1, 1), (-0.01, 0.01)],
    "erf": [(-6, 6), (-1.2, 1.2), (-0.01, 0.01)],
    "sin": [(-4, 4), (-1e5, 1e5)],
    "cos": [(-4, 4), (-1e5, 1e5)],
    "sigmoid": [(-80, 20), (-2, 2)],
    "softplus": [(-80, 20), (-2, 2)],
    "sqrt": [(0.1, 1e5)],
    "rsqrt": [(0.1, 1e5)],
    "recip": [(0.1, 1e5)],
    "sign": [(-5, 5)],
}


def ulp_error(y: np.ndarray, exact: list[mpmath.mpf]) -> float:
    """The largest distance in units of the last place of the exact value."""
    spacing = np.spacing(np.abs(np.array([float(e) for e in exact])).astype(y.dtype))
    return max(
        float(abs(mpmath.mpf(float(a)) - e) / mpmath.mpf(float(s)))
        for a, e, s in zip(y, exact, spacing, strict=True)
    )


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize(("kind", "limit"), [("float", 2.0), ("double", 2.5)])
def test_function_is_within_its_error(name, kind, limit):
    if kind == "float" and name in ("exp", "log"):
        limit = 1.5
    rng = np.random.default_rng(1)
    with mpmath.workprec(140):
        for low, high in DOMAINS[name]:
            x = rng.uniform(low, high, 300).astype(NUMBERS[kind])
            exact = [EXACT[name](mpmath.mpf(float(v))) for v in x]
            assert ulp_error(mapped(driver("math"), f"{name}_{kind}", x.dtype, x), exact) <= limit


@pytest.mark.parametrize(("kind", "span"), [("float", 86.0), ("double", 700.0)])
def test_pow_is_within_its_error(kind, span):
    rng = np.random.default_rng(2)
    x = np.exp(rng.uniform(-8, 8, 500)).astype(NUMBERS[kind])
    y = (rng.uniform(-span, span, 500) / np.where(abs(np.log(x)) < 0.1, 1, np.log(x))).astype(
        x.dtype
    )
    with mpmath.workprec(140):
        exact = [mpmath.mpf(float(a)) ** mpmath.mpf(float(b)) for a, b in zip(x, y, strict=True)]
        assert ulp_error(mapped(driver("math"), f"pow_{kind}", x.dtype, x, y), exact) <= 2.0


SPECIAL = [
    *(0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, np.inf, -np.inf, np.nan),
    *(100.0, -100.0, 200.0, -200.0, 800.0, -800.0, 3e38, -3e38, 1e-30, -1e-30, 2e-38),
]
NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "recip": np.reciprocal,
    "sign": np.sign,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
}


def close(y: np.ndarray, expected: np.ndarray, least: float) -> None:
    """Equal up to rounding; subnormals count as zero; signs of zeros are compared."""
    with np.errstate(over="ignore", under="ignore"):
        expected = expected.astype(y.dtype)
    y, expected = (
        np.where(abs(v) < least, np.copysign(y.dtype.type(0), v), v) for v in (y, expected)
    )
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    zeros = (expected == 0) & (y == 0)
    assert (np.signbit(y) == np.signbit(expected))[zeros].all()


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_special_values_follow_numpy(name, kind):
    x = np.array(SPECIAL, NUMBERS[kind])
    with np.errstate(all="ignore"):
        expected = np.asarray(NUMPY[name](x.astype(np.float64)))
    close(mapped(driver("math"), f"{name}_{kind}", x.dtype, x), expected, np.finfo(x.dtype).tiny)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_pow_follows_numpy_in_every_special_case(kind):
    x, y = (a.ravel() for a in np.meshgrid(np.array(SPECIAL, NUMBERS[kind]), SPECIAL))
    x, y = x.copy(), y.astype(x.dtype)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64))
    close(mapped(driver("math"), f"pow_{kind}", x.dtype, x, y), expected, np.finfo(x.dtype).tiny)


def test_odd_functions_and_nan():
    x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf], np.float32)
    for name in ("sin", "erf", "tanh"):
        y = mapped(driver("math"), f"{name}_float", x.dtype, x)
        assert same(y[:3], x[:3])
    assert mapped(driver("math"), "erf_float", x.dtype, x)[3:].tolist() == [1.0, -1.0]
    assert np.isnan(mapped(driver("math"), "cos_float", x.dtype, x)[2:]).all()


def test_choices_propagate_nan():
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        assert same(mapped(driver("math"), "max_float", x.dtype, x, y) + 0, np.maximum(x, y) + 0)
        assert same(mapped(driver("math"), "min_float", x.dtype, x, y) + 0, np.minimum(x, y) + 0)
        expected = np.where(x == 0, np.float32(0), x * y)
    assert same(mapped(driver("math"), "masked_mul_float", x.dtype, x, y), expected)


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_functions_have_the_same_bits_on_every_instruction_set(level, kind):
    rng = np.random.default_rng(3)
    wide = rng.normal(size=4000) * np.exp(rng.uniform(-40, 40, 4000))
    x = np.concatenate([rng.uniform(-100, 100, 4000), wide, SPECIAL]).astype(NUMBERS[kind])
    for name in UNARY:
        results = [
            mapped(driver("math", v), f"{name}_{kind}", x.dtype, x) for v in ("native", level)
        ]
        assert same(*results), name
    y = rng.permutation(x)
    results = [mapped(driver("math", v), f"pow_{kind}", x.dtype, x, y) for v in ("native", level)]
    assert same(*results)


# ---- random numbers, storage types, masks -------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # published known answers of Philox4x32-10
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_gives_the_known_answers(counter, key, words):
    function = driver("math").philox
    function.restype = ctypes.c_uint32
    c, k = np.array(counter, np.uint32), np.array(key, np.uint32)
    found = [
        function(ctypes.c_void_p(c.ctypes.data), ctypes.c_void_p(k.ctypes.data), w)
        for w in range(4)
    ]
    assert " ".join(f"{w:08x}" for w in found) == words


@pytest.mark.parametrize("level", LEVELS)
def test_uniform_follows_its_definition(level):
    lib, first, n = driver("math", level), 4 * 2**32 - 101, 237
    y, filled = np.empty((2, n), np.float32)
    call(lib.uniform, 0x123456789ABCDEF0, 7, 9, first, y, n)
    call(lib.fill, 0x123456789ABCDEF0, 7, 9, first, filled, n)
    assert same(y, filled)
    lib.philox.restype = ctypes.c_uint32
    key = np.array([0x9ABCDEF0, 0x12345678], np.uint32)
    for i in range(n):
        element = first + i
        counter = np.array([element >> 2 & 0xFFFFFFFF, element >> 34, 7, 9], np.uint32)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (counter, key)]
        assert y[i] == (lib.philox(*pointers, element & 3) >> 8) * 2.0**-24


@pytest.mark.parametrize("level", LEVELS)
def test_narrow_types_convert_as_numpy_does(level):
    lib, every = driver("math", level), np.arange(65536, dtype=np.uint16)
    halves, brains = every.view(np.float16), every.view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        assert same(mapped(lib, "f16_to_float", np.float32, halves), halves.astype(np.float32))
        assert same(mapped(lib, "bf16_to_float", np.float32, brains), brains.astype(np.float32))
        rng = np.random.default_rng(4)
        x = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
        middle = halves.astype(np.float32)  # ties, and their neighbours on both sides
        ties = (middle[:31743] + middle[1:31744]) / 2
        x = np.concatenate(
            [x, ties, np.nextafter(ties, 9), np.nextafter(ties, -9), SPECIAL]
        ).astype("f")
        assert same(mapped(lib, "float_to_f16", np.float16, x), x.astype(np.float16))
        brain = mapped(lib, "float_to_bf16", ml_dtypes.bfloat16, x)
        assert same(brain, x.astype(ml_dtypes.bfloat16))


def test_double_rounds_once():
    half = np.array(
        [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 3 * 2.0**-11 - 2.0**-40, np.nan, 1e300]
    )
    with np.errstate(all="ignore"):
        expected = half.astype(np.float16)
    assert same(mapped(driver("math"), "double_to_f16", np.float16, half), expected)
    brain = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8 - 2.0**-40])
    found = mapped(driver("math"), "double_to_bf16", ml_dtypes.bfloat16, brain)
    assert found.astype(float).tolist() == [1 + 2.0**-7, 1.0, 1 + 2.0**-7]


@pytest.mark.parametrize(("first", "count"), [(0, 64), (8, 24), (3, 5), (0, 13), (5, 40)])
def test_bit_masks_round_trip_and_keep_their_neighbours(first, count):
    rng = np.random.default_rng(5)
    flags, packed = rng.integers(0, 2, count, dtype=np.uint8), np.full(12, 0xA5, np.uint8)
    expected = np.unpackbits(packed, bitorder="little")
    expected[first : first + count] = flags
    again = np.empty(count, np.uint8)
    call(driver("math").mask, flags, packed, again, first, count)
    assert (np.unpackbits(packed, bitorder="little") == expected).all()
    assert (again == flags).all()


# ---- reductions ---------------------------------------------------------------------------------


def row_sum(x: np.ndarray) -> np.ndarray:
    """The tree of a row sum, as documented."""
    total = None
    for start in range(0, x.size, 4096):
        piece, lanes = x[start : start + 4096], np.zeros(16, x.dtype)
        for j in range(0, piece.size, 16):
            part = piece[j : j + 16]
            lanes[: part.size] += part
        for step in (8, 4, 2, 1):
            lanes[:step] += lanes[step : 2 * step]
        total = lanes[0] if total is None else total + lanes[0]
    return np.asarray(0 if total is None else total, x.dtype)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("n", [0, 1, 10, 16, 17, 255, 257, 4096, 4097, 10_000])
def test_row_reductions_follow_their_tree(level, kind, n):
    x = np.random.default_rng(n).normal(size=n).astype(NUMBERS[kind])
    found = np.empty(2, x.dtype)
    call(getattr(driver("reduce", level), f"rows_{kind}"), x, found, n)
    assert same(found[:1], row_sum(x).reshape(1))
    assert found[1] == (x.max() if n else -np.inf)


@pytest.mark.parametrize("place", [0, 15, 16, 299, 4500])
def test_row_reductions_propagate_nan(place):
    x, found = np.zeros(4501, np.float32), np.empty(2, np.float32)
    x[place] = np.nan
    call(driver("reduce").rows_float, x, found, x.size)
    assert np.isnan(found).all()
