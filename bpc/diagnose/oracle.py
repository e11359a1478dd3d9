"""What a kernel's results should be: its nodes in float64, on the very values that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from bpc.expr import Call, evaluate
from bpc.ir import Graph, Node, Value
from bpc.kernel import Kernel, Reduction, Statement
from bpc.ops import OPS, RunContext, is_elementwise, scalar_form
from bpc.passes.layout import plain_layout
from bpc.runtime.device import Array
from bpc.runtime.reference import run_node, storage_type
from bpc.types import BIT, F16, F32, F64, DType, extent, shape_at

_UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_SUMS = (
    *("row_reduce", "col_reduce", "chunk_reduce"),
    *("gemm", "conv2d", "conv2d_input", "conv2d_weight"),
)
_F16_OVERFLOW = 65520.0  # rounds to infinity
_WANDER = 4.0  # the kernel's roundings differ from those of the nodes, node by node
_STEPS = 16.0  # roundings of an element-wise chain, each of half a unit, with room


def decode(value: Value, raw: NDArray[np.uint8], rows: int) -> Array:
    """A tensor's bytes as an array that NumPy computes with; `bit` lines unpacked."""
    shape = shape_at(value.shape, rows)
    if value.dtype != BIT:
        kind = storage_type(value.dtype)
        count = int(np.prod(shape, dtype=np.int64))
        return raw[: count * kind.itemsize].view(kind).reshape(shape).copy()
    padded = shape_at(plain_layout(value).padded, rows)
    flat = np.unpackbits(raw[: int(np.prod(padded)) // 8], bitorder="little")
    lines = flat.reshape(padded)
    return lines[..., : shape[-1]].astype(np.bool_) if shape else flat[0].astype(np.bool_)


@dataclass(slots=True)
class Oracle:
    """Values of one launch in float64, computed on demand from what lay in memory before it.

    `given` is that memory in declared types; `known` grows with what is asked for.
    """

    graph: Graph
    rows: int
    given: dict[str, Array]
    known: dict[str, Array] = field(init=False)
    makers: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = self.graph.producers()
        types = self.graph.values()
        self.known = {name: _widen(array, types[name].dtype) for name, array in self.given.items()}

    def learn(self, value: Value, array: Array) -> None:
        """Take what was computed as what later kernels of the launch read."""
        self.given[value.name] = array
        self.known[value.name] = _widen(array, value.dtype)

    def wander(self, name: str) -> float:
        """How far rounding each node to its declared type moves a tensor, at most.

        What cancels on the way, such as v - a^2 of a centred mean square, moves far.
        """
        rounded: dict[str, Array] = dict(self.given)

        def find(wanted: str) -> Array:
            if wanted not in rounded and wanted not in self.makers:
                rounded[wanted] = self.value(wanted)
            if wanted not in rounded:
                node = self.makers[wanted]
                operands = [find(operand) for operand in node.inputs]
                results = run_node(node, operands, self.graph, self.rows, exact=False)
                rounded.update(zip((made.name for made in node.outputs), results, strict=True))
            return rounded[wanted]

        with np.errstate(all="ignore"):
            off = np.abs(find(name).astype(np.float64) - self.value(name))
        return float(np.max(off, initial=0.0, where=np.isfinite(off)))

    def value(self, name: str) -> Array:
        """The value of this name, from memory or from its node."""
        if name not in self.known and name not in self.makers:
            # No kernel loads it: the simplified formula does not depend on it.
            shape = shape_at(self.graph.values()[name].shape, self.rows)
            self.known[name] = np.zeros(shape)
        if name not in self.known:
            node = self.makers[name]
            operands = [self.value(operand) for operand in node.inputs]
            with np.errstate(all="ignore"):
                run = RunContext(self.rows, np.float64)
                results = OPS[node.op].reference(node, operands, run)
            for made, array in zip(node.outputs, results, strict=True):
                self.known[made.name] = _widen(array, made.dtype)
        return self.known[name]

    def magnitude(self, name: str) -> float:
        """The largest finite magnitude of a tensor; of a sum, that of its terms added up.

        Terms may cancel, as those of a bias before a layer norm do: what is left is smaller than
        the rounding of what was added.
        """
        array = self.value(name)
        node = self.makers[name]
        if node.op in _SUMS:
            terms = [np.abs(self.value(operand)) for operand in node.inputs]
            with np.errstate(all="ignore"):
                run = RunContext(self.rows, np.float64)
                (array,) = OPS[node.op].reference(node, terms, run)
        return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))

    def margin(self, name: str) -> tuple[Array, Array] | None:
        """Both sides of the comparison that makes a condition; None for other conditions."""
        node = self.makers[name]
        if not is_elementwise(node):
            return None
        expr, names = scalar_form(node)
        if not isinstance(expr, Call) or expr.function not in ("gt", "ge", "lt", "le"):
            return None
        given = {k: self.value(v) for k, v in zip(names, node.inputs, strict=True)}
        double = np.dtype(np.float64)
        left, right = (evaluate(part, given, double) for part in expr.arguments)
        return left, right


def _widen(array: Array, dtype: DType) -> Array:
    return np.asarray(array, np.float64) if dtype.kind == "float" else array


def bound(kernel: Kernel, dtype: DType, rows: int) -> float:
    """Largest error of an element, as a share of the magnitude that `Oracle.magnitude` tells.

    Half a unit for each rounding of an element-wise chain; a sum of k terms, in whatever order,
    adds an error that grows like sqrt(k) where roundings are independent (Higham 2002, section
    4.2), taken four times; a result in 16 bits is rounded
    once more, as is each statement of 16 bits before it.
    """
    computed = F64 if _is_double(kernel) else F32
    error = _UNIT[computed.name] * (_STEPS + 4 * sqrt(_terms(kernel, rows)))
    narrow = sum(isinstance(item, Statement) and item.dtype.bits == 16 for item in kernel.body)
    return error + (_UNIT[dtype.name] * (1 + narrow) if dtype.bits == 16 else 0.0)


def _is_double(kernel: Kernel) -> bool:
    """Whether no step of the kernel is narrower than double."""
    for item in kernel.body:
        if isinstance(item, Statement) and F32 in (item.compute, item.dtype):
            return False
        if isinstance(item, Reduction) and item.accumulate != F64:
            return False
    sources = [kernel.operand(label).dtype for label in kernel.sources]
    return all(dtype == F64 for dtype in sources)


def _terms(kernel: Kernel, rows: int) -> int:
    """Terms of the longest sum in the kernel."""
    if kernel.skeleton == "gemm":
        (a_rows, a_cols), _ = kernel.attr("shapes")
        return extent(a_rows if kernel.attr("ta") else a_cols, rows)
    if kernel.skeleton == "flat":
        return 1
    count = 1
    for dim in kernel.space:
        count *= extent(dim, rows)
    if kernel.skeleton.startswith("conv2d"):
        one, two = kernel.attr("shapes")
        return max(int(np.prod([extent(dim, rows) for dim in shape])) for shape in (one, two))
    return count


def compare(
    name: str, got: Array, oracle: Oracle, kernel: Kernel, dtype: DType
) -> tuple[float, float]:
    """(largest error over largest magnitude, its bound); a wrong condition counts as error 1."""
    wanted = oracle.value(name)
    if dtype == F16:
        too_large = np.abs(wanted) >= _F16_OVERFLOW
        wanted = np.where(too_large, np.copysign(np.inf, wanted), wanted)
    if dtype == BIT:
        return _compare_conditions(name, got, wanted, oracle, kernel), 0.0
    if dtype.kind != "float":
        return float(np.any(got != wanted)), 0.0
    got64, limit = got.astype(np.float64), bound(kernel, dtype, oracle.rows)
    if dtype.bits > 16:
        limit += sum(_UNIT[kind] for kind in _narrow_sources(name, oracle, kernel))
    same = (got64 == wanted) | (np.isnan(wanted) & (np.isnan(got64) | _skips_padding(kernel)))
    finite = np.isfinite(wanted)
    scale = oracle.magnitude(name)
    if not np.all(same | finite):
        return float("inf"), limit
    if scale == 0:
        return (0.0 if np.all(same) else float("inf")), limit
    off = np.abs(np.subtract(got64, wanted, out=np.zeros_like(got64), where=~same))
    error = float(np.max(off, initial=0.0)) / scale
    if error > limit:
        limit += _WANDER * oracle.wander(name) / scale
    return error, limit


def _skips_padding(kernel: Kernel) -> bool:
    """Whether NaN may be the reference's alone; what is right then, the C++ kernels' bits say.

    Convolutions skip taps on padding, and the reference multiplies them by 0: of an infinity, such
    as a gradient that overflowed, that makes NaN.
    """
    return kernel.skeleton.startswith("conv2d")


def _narrow_sources(name: str, oracle: Oracle, kernel: Kernel) -> list[str]:
    """The 16-bit types that the kernel rounds to on the way to a wider result."""
    found: dict[str, str] = {}
    pending = [name]
    while pending:
        node = oracle.makers.get(pending.pop())
        if node is None or node.name not in kernel.nodes or node.name in found:
            continue
        dtype = node.output.dtype
        found[node.name] = dtype.name if dtype.kind == "float" and dtype.bits == 16 else ""
        pending += node.inputs
    return [kind for kind in found.values() if kind]


def _compare_conditions(
    name: str, got: Array, wanted: Array, oracle: Oracle, kernel: Kernel
) -> float:
    """0 if conditions agree wherever their two sides are further apart than rounding explains."""
    wrong = got != wanted
    if not np.any(wrong):
        return 0.0
    sides = oracle.margin(name)
    if sides is None:
        return 1.0
    left, right = np.broadcast_arrays(*sides)
    scale = float(np.max(np.abs(left), initial=0.0)) + float(np.max(np.abs(right), initial=0.0))
    close = np.abs(left - right) <= bound(kernel, F32, oracle.rows) * scale
    return float(np.any(wrong & ~close))
