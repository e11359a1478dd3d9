"""Matrix products and convolutions of the C++ headers against plain loops, bit by bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from header_drivers import LEVELS, NEEDS_COMPILER, call, driver, random_matrix, same

pytestmark = NEEDS_COMPILER

# ---- matrix products ----------------------------------------------------------------------------

PAIRS = [
    *((a, b) for a in ("float", "f16", "bf16") for b in ("float", "f16", "bf16")),
    *(("double", "double"), ("double", "float"), ("float", "double"), ("bf16", "double")),
]
SHAPES = [
    (1, 1, 1),
    (8, 32, 16),
    (13, 10, 7),
    (17, 33, 300),
    (5, 47, 0),
    (131, 40, 19),
    (9, 70, 517),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_gemm_is_one_chain_per_element(level, left, right):
    rng, function = np.random.default_rng(6), getattr(driver("gemm", level), f"gemm_{left}_{right}")
    out = np.float64 if "double" in (left, right) else np.float32
    for m, n, k in SHAPES:
        a = random_matrix(rng, 2 * m * k + 1, left)
        b = random_matrix(rng, 2 * n * k + 1, right)
        for a_strides in ((k, 1), (1, m), (2 * k, 2)):
            for b_strides in ((n, 1), (1, k), (2 * n, 2)):
                window = (m // 3, m, n // 2, n) if m == 131 else (0, m, 0, n)
                strides = np.array([*a_strides, *b_strides, *window, n, k], np.int64)
                found, expected = np.zeros((2, m * n), out)
                call(function, a, b, strides, found, ctypes.c_bool(False))
                call(function, a, b, strides, expected, ctypes.c_bool(True))
                assert same(found, expected), (m, n, k, a_strides, b_strides)


@pytest.mark.parametrize(("m", "n"), [(128, 256), (784, 256), (128, 10), (1, 1), (13, 100)])
@pytest.mark.parametrize("slices", [(1, 1), (2, 1), (4, 2), (3, 5)])
def test_slices_cover_a_product_once_and_evenly(m, n, slices):
    count, tile, rows = np.zeros((m, n), int), np.empty(4, np.int64), []
    for part in range(slices[0] * slices[1]):
        call(driver("gemm").tile, m, n, *slices, part, tile)
        m0, m1, n0, n1 = tile.tolist()
        count[m0:m1, n0:n1] += 1
        rows.append(m1 - m0)
        assert (m0 % 8 == 0 or m0 == m) and (n0 % 32 == 0 or n0 == n)
    assert (count == 1).all()
    assert max(rows) - min(rows) <= 15  # one unit of 8, and the last one may be short


# ---- convolution --------------------------------------------------------------------------------

CONVOLUTIONS = [  # in, height, width, out, kernel (h, w), stride (h, w), pad (h, w)
    (1, 6, 6, 1, (1, 1), (1, 1), (0, 0)),
    (3, 9, 21, 9, (3, 3), (1, 1), (1, 1)),
    (2, 7, 40, 5, (5, 3), (1, 1), (2, 0)),
    (2, 11, 35, 10, (3, 5), (2, 3), (1, 2)),
    (4, 5, 5, 3, (3, 3), (2, 2), (0, 0)),
    (1, 3, 3, 2, (5, 5), (1, 1), (2, 2)),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["float", "double", "bf16"])
@pytest.mark.parametrize("way", [0, 1, 2], ids=["forward", "input", "weight"])
def test_convolution_follows_its_definition(level, kind, way):
    rng, function = np.random.default_rng(7), getattr(driver("conv", level), f"conv_{kind}")
    for c, h, w, o, (kh, kw), (sh, sw), (ph, pw) in CONVOLUTIONS:
        oh, ow, images = (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1, 3
        shape = np.array([c, h, w, o, oh, ow, kh, kw, sh, sw, ph, pw], np.int64)
        x, weight, y = (
            random_matrix(rng, size, kind)
            for size in (images * c * h * w, o * c * kh * kw, images * o * oh * ow)
        )
        left, right, like = ((x, weight, y), (y, weight, x), (x, y, weight))[way]
        results = np.zeros((3, like.size), np.float64 if kind == "double" else np.float32)
        for parts, out in zip((0, 1, 3), results, strict=True):
            call(function, ctypes.c_int(way), shape, left, right, images, parts, out)
        assert same(results[1], results[0]), (c, h, w, o, kh, kw)
        assert same(results[2], results[0]), (c, h, w, o, kh, kw)


def test_padding_is_skipped_not_multiplied():
    shape = np.array([1, 4, 4, 1, 4, 4, 3, 3, 1, 1, 1, 1], np.int64)
    x, weight, y = np.ones(16, "f"), np.ones(9, "f"), np.zeros(16, "f")
    weight[0] = np.inf
    call(driver("conv").conv_float, ctypes.c_int(0), shape, x, weight, 1, 1, y)
    y = y.reshape(4, 4)
    assert np.isfinite(y[0]).all() and np.isfinite(y[:, 0]).all() and np.isinf(y[1:, 1:]).all()
