"""Products by cuBLASLt, an opt-in: measured on a device, chosen per structure, stored with a run.

Only plain products are taken over: C = A B with transposes, with or without a bias, nothing else
in the epilogue, and only while the batch is full; a short batch runs the generated kernels, since
the library's sizes are fixed when a graph is captured. A library sums in an order of its own: a
run with choices does not give the bits of one without, but two runs with the same file do.

cuBLASLt is column-major: a row-major C [m, n] is its C^T [n, m], so that its first factor is our
second one, and its bias, which runs along a column, is ours. Pointers are raw addresses in the
planned arena; `nvmath.bindings.cublasLt` of nvmath-python 1.0 takes them as integers.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.plan.program import ALIGNMENT
from bpc.runtime.cuda import Memory, Stream
from bpc.runtime.cuda_errors import call_failed, choices_unfit

MOST_CANDIDATES = 8

# Numbers of the C interface: cudaDataType_t, cublasComputeType_t, cublasOperation_t.
DATA_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
_COMPUTE_F32, _COMPUTE_F64 = 68, 70
_PLAIN, _TRANSPOSED = 0, 1


@dataclass(frozen=True, slots=True)
class Product:
    """C [m, n] = A B, row-major, with transposes of what is stored; `bias` is [n]."""

    m: int
    n: int
    k: int
    transpose_left: bool
    transpose_right: bool
    factors: str
    result: str
    bias: str

    @property
    def key(self) -> str:
        """The structure as text; equal kernels of all specs share it."""
        left, right = ("t" if t else "n" for t in (self.transpose_left, self.transpose_right))
        bias = f"+{self.bias}" if self.bias else ""
        return f"{self.m}x{self.n}x{self.k} {left}{right} {self.factors}{bias}->{self.result}"


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm of the library for a product, as the library's own opaque bytes in hex."""

    algorithm: str
    workspace_bytes: int
    seconds: float
    generated_seconds: float


@dataclass(slots=True)
class Prepared:
    """A product as the library knows it; handles are released by `Library.release`."""

    product: Product
    descriptor: int
    layouts: tuple[int, int, int]
    algorithm: NDArray[np.uint64]


class Library:
    """cuBLASLt on raw pointers: descriptors, heuristic, matmul."""

    def __init__(self) -> None:
        """Raises: ToolError: nvmath-python or the library is missing."""
        try:
            self._lt: Any = importlib.import_module("nvmath.bindings.cublasLt")
            self._handle = self._lt.create()
        except (ImportError, RuntimeError) as error:
            raise choices_unfit(f"cuBLASLt cannot be used: {error}") from error
        self.version = int(self._lt.get_version())
        self._scales = {kind: np.asarray([1, 0], kind) for kind in (np.float32, np.float64)}

    def prepare(self, product: Product) -> Prepared:
        """Descriptor and layouts of a product; the algorithm is filled in later."""
        lt, double = self._lt, product.factors == "f64"
        compute = _COMPUTE_F64 if double else _COMPUTE_F32
        descriptor = lt.matmul_desc_create(compute, DATA_TYPES["f64" if double else "f32"])
        attribute = lt.MatmulDescAttribute
        first = _TRANSPOSED if product.transpose_right else _PLAIN
        second = _TRANSPOSED if product.transpose_left else _PLAIN
        self._describe(descriptor, attribute.TRANSA, np.int32(first))
        self._describe(descriptor, attribute.TRANSB, np.int32(second))
        if product.bias:
            self._describe(descriptor, attribute.EPILOGUE, np.uint32(lt.Epilogue.BIAS))
            kind = DATA_TYPES[product.bias]
            self._describe(descriptor, attribute.BIAS_DATA_TYPE, np.int32(kind))
        layouts = self._make_layouts(product)
        return Prepared(product, descriptor, layouts, np.zeros(8, np.uint64))

    def _describe(self, descriptor: int, attribute: int, value: np.generic) -> None:
        held = np.asarray([value])  # the library reads it during the call
        self._lt.matmul_desc_set_attribute(descriptor, attribute, held.ctypes.data, held.itemsize)

    def _make_layouts(self, product: Product) -> tuple[int, int, int]:
        """First factor, second factor, result; each stored row-major matrix is transposed here."""
        m, n, k = product.m, product.n, product.k
        left = (k, m) if product.transpose_left else (m, k)
        right = (n, k) if product.transpose_right else (k, n)
        factors, result = DATA_TYPES[product.factors], DATA_TYPES[product.result]
        make = self._lt.matrix_layout_create
        return (
            make(factors, right[1], right[0], right[1]),
            make(factors, left[1], left[0], left[1]),
            make(result, n, m, n),
        )

    def point_bias(self, prepared: Prepared, address: int) -> None:
        """Say where the bias lies; candidates, too, are found for a place and not for null."""
        if prepared.product.bias:
            pointer = self._lt.MatmulDescAttribute.BIAS_POINTER
            self._describe(prepared.descriptor, pointer, np.int64(address))

    def find_algorithms(self, prepared: Prepared, workspace_bytes: int) -> list[Choice]:
        """The library's candidates for a product, its own favourite first."""
        lt = self._lt
        preference = lt.matmul_preference_create()
        try:
            self._prefer(preference, workspace_bytes)
            results = np.zeros(MOST_CANDIDATES, lt.matmul_heuristic_result_dtype)
            count = np.zeros(1, np.int32)
            first, second, result = prepared.layouts
            lt.matmul_algo_get_heuristic(
                self._handle,
                prepared.descriptor,
                *(first, second, result, result),
                preference,
                MOST_CANDIDATES,
                results.ctypes.data,
                count.ctypes.data,
            )
        except lt.cuBLASLtError as error:
            raise call_failed(f"asking cuBLASLt for {prepared.product.key}", str(error)) from error
        finally:
            lt.matmul_preference_destroy(preference)
        found = [item for item in results[: int(count[0])] if item["state"] == 0]
        return [
            Choice(item["algo"].tobytes().hex(), int(item["workspace_size"]), 0.0, 0.0)
            for item in found
        ]

    def _prefer(self, preference: int, workspace_bytes: int) -> None:
        """Tensors are aligned to ALIGNMENT only, which is less than the library takes for granted;
        of reductions over split k, only those that go through the workspace."""
        lt, name = self._lt, self._lt.MatmulPreferenceAttribute
        wishes = [
            (name.MAX_WORKSPACE_BYTES, np.uint64(workspace_bytes)),
            (name.REDUCTION_SCHEME_MASK, np.uint32(lt.ReductionScheme.COMPUTE_TYPE)),
            (name.MIN_ALIGNMENT_A_BYTES, np.uint32(ALIGNMENT)),
            (name.MIN_ALIGNMENT_B_BYTES, np.uint32(ALIGNMENT)),
            (name.MIN_ALIGNMENT_C_BYTES, np.uint32(ALIGNMENT)),
            (name.MIN_ALIGNMENT_D_BYTES, np.uint32(ALIGNMENT)),
        ]
        for attribute, value in wishes:
            held = np.asarray([value])
            lt.matmul_preference_set_attribute(
                preference, attribute, held.ctypes.data, held.itemsize
            )

    def choose(self, prepared: Prepared, choice: Choice) -> None:
        """Use this algorithm for a product."""
        data = np.frombuffer(bytes.fromhex(choice.algorithm), np.uint64)
        if len(data) != len(prepared.algorithm):
            raise choices_unfit(f"{prepared.product.key}: an algorithm has {len(data)} words")
        prepared.algorithm[:] = data

    def issue(
        self,
        prepared: Prepared,
        addresses: tuple[int, int, int, int],
        workspace: Memory,
        stream: Stream,
    ) -> None:
        """Put a product on a stream; `addresses` are left, right, bias (or 0) and result."""
        left, right, bias, result = addresses
        lt, product = self._lt, prepared.product
        scales = self._scales[np.float64 if product.factors == "f64" else np.float32]
        one, zero = scales.ctypes.data, scales.ctypes.data + scales.itemsize
        first, second, target = prepared.layouts
        try:
            self.point_bias(prepared, bias)
            lt.matmul(
                *(self._handle, prepared.descriptor, one),
                *(right, first, left, second, zero),
                *(result, target, result, target),
                prepared.algorithm.ctypes.data,
                *(workspace.address, workspace.nbytes),
                stream.ptr,
            )
        except lt.cuBLASLtError as error:
            raise call_failed(f"multiplying {product.key}", str(error)) from error

    def release(self, prepared: Prepared) -> None:
        """Destroy the handles of a product."""
        self._lt.matmul_desc_destroy(prepared.descriptor)
        for layout in prepared.layouts:
            self._lt.matrix_layout_destroy(layout)

    def close(self) -> None:
        """Destroy the library's handle."""
        self._lt.destroy(self._handle)
