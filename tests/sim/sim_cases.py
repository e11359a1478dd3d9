"""Right kernels with their NumPy references, run in any mode and under any options."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bpc.runtime.sim.buffers import GuardedBuffer
from bpc.runtime.sim.launch import Argument, LaunchOptions
from bpc.runtime.sim.module import Mode, SimModule, load_cuda
from bpc.runtime.sim.reports import Report

FOLDER = Path(__file__).parent / "kernels"
Array = np.ndarray[Any, Any]


def read_kernel(name: str) -> str:
    return (FOLDER / f"{name}.cu").read_text(encoding="utf-8")


@dataclass
class Session:
    """Launches of one module; keeps the reports and notes which outputs are wrong."""

    module: SimModule
    options: LaunchOptions = field(default_factory=LaunchOptions)
    reports: list[Report] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    outputs: list[GuardedBuffer] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def normal(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(np.float32)

    def given(self, values: Array, name: str) -> GuardedBuffer:
        return GuardedBuffer.of(values, name, read_only=True)

    def result(
        self, shape: Sequence[int] | int, name: str, dtype: Any = np.float32
    ) -> GuardedBuffer:
        made = GuardedBuffer(shape, dtype, name)
        self.outputs.append(made)
        return made

    def changed(self, values: Array, name: str) -> GuardedBuffer:
        return GuardedBuffer.of(values, name)

    def run(
        self, kernel: str, grid: Any, block: Any, args: Sequence[Argument], shared: int = 0
    ) -> None:
        self.reports += self.module.launch(kernel, grid, block, shared, args, self.options)

    def expect(self, found: GuardedBuffer, wanted: Array, tolerance: float = 1e-5) -> None:
        scale = np.abs(wanted).max() or 1.0
        error = np.abs(found.array.astype(np.float64) - wanted).max() / scale
        if not error <= tolerance:
            self.wrong.append(f"{found.name} is off by {error:.3g} of {scale:.3g}")

    def finish(self) -> list[str]:
        """All that is wrong, the reports' kinds first."""
        kinds = [report.kind.value for report in self.reports]
        unwritten = []
        if self.module.checked and not kinds:
            unwritten = [f"{b.name} has unwritten bytes" for b in self.outputs if b.unwritten()]
        return [*kinds, *self.wrong, *unwritten]


def pointwise(s: Session) -> None:
    n = 4 * 700 + 3
    x, residual = s.normal(n), s.normal(n)
    y = s.result(n, "y")
    s.run("scaled_silu", 3, 128, [s.given(x, "x"), s.given(residual, "r"), y, np.float32(0.5), n])
    s.expect(y, residual + 0.5 * x / (1 + np.exp(-x.astype(np.float64))))


def softmax(s: Session) -> None:
    rows, columns = 5, 301
    x = 3 * s.normal(rows, columns)
    y = s.result((rows, columns), "y")
    s.run("softmax", rows, 128, [s.given(x, "x"), y, columns])
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    s.expect(y, e / e.sum(1, keepdims=True))


def norm(s: Session) -> None:
    rows, columns, blocks = 37, 75, 3
    x, g, gain = s.normal(rows, columns), s.normal(rows, columns), s.normal(columns)
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    dx, partial = s.result((rows, columns), "dx"), s.result((blocks, columns), "partial")
    dgain = s.result(columns, "dgain")
    inputs = [s.given(v, n) for v, n in ((x, "x"), (g, "g"), (gain, "gain"), (mean, "mean"))]
    args = [*inputs, s.given(rstd, "rstd"), dx, partial, rows, columns]
    s.run("norm_rows", blocks, 128, args, 4 * columns)
    s.run("norm_columns", 2, 64, [partial, dgain, blocks, columns])
    h = (x.astype(np.float64) - mean[:, None]) * rstd[:, None]
    d = g.astype(np.float64) * gain
    inner = d - d.mean(1, keepdims=True) - h * (d * h).mean(1, keepdims=True)
    s.expect(dx, rstd[:, None] * inner)
    s.expect(dgain, (g * h).sum(0))


def gemm(s: Session) -> None:
    m, n, k = 70, 45, 39
    a, b = s.normal(m, k), s.normal(k, n)
    c = s.result((m, n), "c")
    s.run("gemm", (2, 3), 64, [s.given(a, "a"), s.given(b, "b"), c, m, n, k])
    s.expect(c, a.astype(np.float64) @ b)


def attention(s: Session) -> None:
    length, width = 70, 16
    q, k, v = (s.normal(length, width).astype(np.float16) for _ in range(3))
    out = s.result((length, width), "out")
    inputs = [s.given(values, name) for values, name in ((q, "q"), (k, "k"), (v, "v"))]
    s.run("attention", (length + 3) // 4, 128, [*inputs, out, length])
    scores = q.astype(np.float64) @ k.T.astype(np.float64)
    scores[np.triu_indices(length, 1)] = -np.inf
    e = np.exp(scores - scores.max(1, keepdims=True))
    s.expect(out, e / e.sum(1, keepdims=True) @ v.astype(np.float64))


class Tensors(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_uint64 * 4),
        ("gradient", ctypes.c_uint64 * 4),
        ("count", ctypes.c_int * 4),
        ("tensors", ctypes.c_int),
    )


def update(s: Session) -> None:
    sizes, blocks = (1000, 7, 333), 5
    weights, gradients = ([s.normal(n) for n in sizes] for _ in range(2))
    held = [s.changed(w, f"w{i}") for i, w in enumerate(weights)]
    given = [s.given(g, f"g{i}") for i, g in enumerate(gradients)]
    table = Tensors(
        (ctypes.c_uint64 * 4)(*(b.pointer for b in held)),
        (ctypes.c_uint64 * 4)(*(b.pointer for b in given)),
        (ctypes.c_int * 4)(*sizes),
        len(sizes),
    )
    partial, norm_ = s.result(blocks, "partial"), s.result(1, "norm")
    ticket = s.changed(np.zeros(1, np.uint32), "ticket")
    s.run("gradient_norm", blocks, 128, [bytes(table), partial, ticket, norm_])
    s.run("step", 3, 128, [bytes(table), norm_, np.float32(0.1)])
    norm_value = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))
    s.expect(norm_, np.array([norm_value]))
    for buffer, w, g in zip(held, weights, gradients, strict=True):
        s.expect(buffer, w - 0.1 * g / norm_value)


def histogram(s: Session) -> None:
    n, bins = 3000, 100
    values = s.random.integers(0, bins, n).astype(np.int32)
    counts, top = (
        s.changed(np.zeros(bins, np.uint32), "counts"),
        s.changed(np.full(1, -1, np.int32), "top"),
    )
    s.run("histogram", 4, 128, [s.given(values, "values"), counts, top, n, bins], 4 * bins)
    s.expect(counts, np.bincount(values, minlength=bins).astype(np.float64))
    s.expect(top, np.array([values.max()]))


def unscale(s: Session) -> None:
    n = 1001
    for has_infinity in (False, True):
        g = s.normal(n)
        if has_infinity:
            g[5::40] = np.inf  # in several warps
        bits = (g.view(np.uint32) >> 16).astype(np.uint16)
        out, found = s.result(n, "out"), s.changed(np.zeros(1, np.uint32), "found")
        s.run("unscale", 3, 96, [s.given(bits, "g"), out, np.float32(0.25), found, n])
        exact = (bits.astype(np.uint32) << 16).view(np.float32) * np.float32(0.25)
        if not np.array_equal(out.array, exact):
            s.wrong.append("out differs")
        s.expect(found, np.array([float(has_infinity)]))


CASES: dict[str, Callable[[Session], None]] = {
    case.__name__: case
    for case in (pointwise, softmax, norm, gemm, attention, update, histogram, unscale)
}


def run_case(
    name: str,
    mode: Mode,
    checked: bool,
    options: LaunchOptions | None = None,
    text: str | None = None,
    arch: str = "compute_90",
) -> Session:
    """One case in one mode; `text` replaces its kernels."""
    source = read_kernel(name) if text is None else text
    module = load_cuda(source, mode, checked, arch, f"{name}.cu")
    session = Session(module, options or LaunchOptions())
    CASES[name](session)
    return session
