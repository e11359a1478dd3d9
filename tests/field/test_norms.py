"""Field cases about layernorm."""

from __future__ import annotations

import numpy as np
import pytest
from field_cases import Array, assert_near, expected, inputs_of
from field_nets import BELOW_ALL, Maker

from bpc.api import Net


def test_norm_ln_large_mean(make: Maker) -> None:
    name = "norm-ln-large-mean"
    given, want = inputs_of(name), expected(name)
    scaled = {"x": given["x"], "gamma": np.ones(4), "beta": np.zeros(4)}
    net = normalise(make, (3, 4), 1e-5, "fp32", rows=True)
    batch = {"x": given["x"], "upstream": given["upstream"]}
    batch["target"] = np.full((3, 4), BELOW_ALL)
    slope = net.gradients(batch, ["x", "ln.gamma", "ln.beta"])
    found = net.predict({"x": given["x"], "upstream": np.ones((3, 4))})
    assert np.isfinite(found).all() and np.isfinite(slope["x"]).all()
    assert_near(name, "fp32", found, want["y"])
    assert_near(name, "fp32", found[0], found[1])
    for key, label in (("x", "x"), ("gamma", "ln.gamma"), ("beta", "ln.beta")):
        assert_near(name, "fp32", slope[label], want["grad"][key])
    assert scaled["gamma"].shape == slope["ln.gamma"].shape


def normalise(
    make: Maker, shape: tuple[int, ...], eps: float, precision: str, rows: bool = False
) -> Net:
    """layernorm of [batch, ...] times `upstream`; the loss is the sum."""
    inner = list(shape[1:] if rows else shape)
    batch = shape[0] if rows else 1
    return make.build(
        f"layernorm: {{eps: {eps}, name: ln, from: x}}\nmul: {{name: y, from: [ln, upstream]}}",
        data=f"source: synthetic, inputs: {{x: {inner}, upstream: {inner}}}, "
        f"target_shape: {inner}, batch: {batch}, rows: {batch}, test_rows: 1",
        loss=f"{{l1: {{scale: {batch * int(np.prod(inner))}}}}}",
        precision=precision,
    )


def test_norm_ln_constant_row(make: Maker) -> None:
    name = "norm-ln-constant-row"
    want = expected(name)
    x, upstream = np.full((1, 256), 1234.0), np.zeros((1, 256))
    upstream[0, 0] = 1
    net = normalise(make, (1, 256), 1e-5, "fp32", rows=True)
    assert np.abs(net.predict({"x": x, "upstream": np.ones((1, 256))})).max() <= 1e-3
    batch = {"x": x, "upstream": upstream, "target": np.full((1, 256), BELOW_ALL)}
    slope = net.gradients(batch, ["x"])["x"][0]
    assert_near(name, "fp32", slope[0], want["grad"]["x[0]"])
    assert_near(name, "fp32", slope[1:], np.full(255, want["grad"]["x[1..255]"]))


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("flat", [False, True], ids=["rank 3", "reshaped"])
def test_norm_ln_rank3_backward(make: Maker, precision: str, flat: bool) -> None:
    name = "norm-ln-rank3-backward"
    given, want = inputs_of(name), expected(name)
    shape = (6, 4) if flat else (2, 3, 4)
    net = normalise(make, shape, 1e-5, precision, rows=True)
    net.load_parameters({"ln.gamma": given["gamma"], "ln.beta": given["beta"]})
    x, upstream = given["x"].reshape(shape), given["upstream"].reshape(shape)
    found = net.predict({"x": x, "upstream": np.ones(shape)})
    assert_near(name, precision, found, np.reshape(want["y"], shape))
    batch = {"x": x, "upstream": upstream, "target": np.full(shape, BELOW_ALL)}
    slope = net.gradients(batch, ["x", "ln.gamma", "ln.beta"])
    assert_near(name, precision, slope["x"], np.reshape(want["grad"]["x"], shape))
    assert_near(name, precision, slope["ln.gamma"], want["grad"]["gamma"])
    assert_near(name, precision, slope["ln.beta"], want["grad"]["beta"])
    unit = np.finfo(np.float64 if precision == "fp64" else np.float32).eps
    assert np.abs(slope["x"].sum(axis=-1)).max() < 32 * unit * np.abs(slope["x"]).max()


COLUMNS = [2, 8, 32, 63, 64, 65]
ROW_COUNTS = [1, 2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4095, 4097]


@pytest.mark.parametrize("columns", COLUMNS)
def test_norm_ln_tail_rows(make: Maker, columns: int) -> None:
    """y y summed: the gradients of gamma and beta are 2 R and 0 where y is x."""
    name = "norm-ln-tail-rows"
    net = make.build(
        "layernorm: {eps: 0.0, name: ln, from: x}\nsquare: {name: y}",
        data=f"source: synthetic, shape: [{columns}], target_shape: [{columns}], "
        f"batch: {max(ROW_COUNTS)}",
        loss="l1",
    )
    for rows in ROW_COUNTS:
        sign = (-1.0) ** (np.arange(rows)[:, None] + np.arange(columns))
        batch = sign, np.full((rows, columns), BELOW_ALL)
        slope = net.gradients(batch, ["x", "ln.gamma", "ln.beta"])
        total = rows * columns  # of which bpc's loss is the mean
        gamma, beta = (slope[f"ln.{key}"] * total for key in ("gamma", "beta"))
        want = _exact(sign)
        assert_near(name, "fp32", slope["x"] * total, want[2])
        if columns % 2 == 0:
            assert_near(name, "fp32", gamma, np.full(columns, 2 * rows))
            odd = 2 * sign[0] if rows % 2 else np.zeros(columns)
            assert_near(name, "fp32", beta, odd)
            continue
        # NumPy adds rows in order; generated code 256 at a time, then the sums of these slices
        roundings = rows if make.device == "reference" else 256 + rows / 256
        bound = (8 + roundings) * 2.0**-24 * np.abs(want[0]).max()
        assert np.abs(gamma - want[0]).max() <= bound
        assert np.abs(beta - want[1]).max() <= bound


def _exact(x: Array) -> tuple[Array, Array, Array]:
    """The gradients of sum(y^2) in float64, gamma 1 and beta 0."""
    centred = x - x.mean(axis=1, keepdims=True)
    hat = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True))
    grad = 2 * hat
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True))
    mean = grad.mean(axis=1, keepdims=True)
    along = hat * (grad * hat).mean(axis=1, keepdims=True)
    return (grad * hat).sum(axis=0), grad.sum(axis=0), (grad - mean - along) / deviation


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_norm_ln_65536_rows(make: Maker, rows: int) -> None:
    """Also softmax; layers that come later join here."""
    x = np.arange(rows)[:, None] % 7 + np.array([0.0, 2.0])
    data = f"source: synthetic, shape: [2], target_shape: [2], batch: {rows}, rows: 8"
    net = make.build("layernorm: {eps: 0.0, name: y, from: x}", data=data)
    found = net.predict(x)
    assert np.array_equal(found, np.broadcast_to([-1.0, 1.0], (rows, 2)))
    net = make.build(
        "mul: {from: [x, one]}\nsoftmax: {name: y}", data=data, parameters={"one": [1.0]}
    )
    shares = net.predict(x)
    assert np.array_equal(shares, np.broadcast_to(shares[0], (rows, 2)))
    np.testing.assert_allclose(shares[0], [1 / (1 + np.exp(2)), 1 / (1 + np.exp(-2))], rtol=2e-6)
