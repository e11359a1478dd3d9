"""A stand-in for nvmath.bindings.cublasLt: handles are counted, products are computed late.

`matmul` puts the product on the fake CuPy's stream; it is computed from the column-major layouts
that were described, so that a wrong transpose, leading dimension or bias shows in the numbers.
"""

from __future__ import annotations

from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from cupy_signatures import CUBLASLT_NUMBERS, HEURISTIC_RESULT
from fake_cupy import WORLD, Op, memory

TYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16)}
COMPUTE = {68: 0, 70: 1}


class LtError(Exception):
    def __init__(self, status: int):
        self.status = status
        super().__init__(f"status {status}")


def _enums() -> dict[str, Any]:
    grouped: dict[str, dict[str, int]] = {}
    for name, number in CUBLASLT_NUMBERS.items():
        group, member = name.split(".")
        grouped.setdefault(group, {})[member] = number
    return {group: IntEnum(group, members) for group, members in grouped.items()}


class FakeLt:
    """The functions of the module, over one table of live handles."""

    def __init__(self) -> None:
        self.live: dict[int, Any] = {}
        self.candidates = 2
        self.released = 0
        self.version = 130200

    def _make(self, thing: Any) -> int:
        handle = 0x100 + 8 * (len(self.live) + self.released)
        self.live[handle] = thing
        return handle

    def _drop(self, handle: int) -> None:
        del self.live[handle]
        self.released += 1

    def create(self) -> int:
        return self._make("library")

    def destroy(self, light_handle: int) -> None:
        assert self.live[light_handle] == "library"
        self._drop(light_handle)

    def get_version(self) -> int:
        return self.version

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        assert COMPUTE[compute_type] == scale_type
        return self._make({"scale": scale_type})

    def matmul_desc_destroy(self, matmul_desc: int) -> None:
        self._drop(matmul_desc)

    def matmul_desc_set_attribute(
        self, matmul_desc: int, attr: int, buf: int, size_in_bytes: int
    ) -> None:
        sizes = {3: 4, 4: 4, 7: 4, 8: 8, 26: 4}
        assert sizes[attr] == size_in_bytes, (attr, size_in_bytes)
        kind = np.int64 if size_in_bytes == 8 else np.int32
        self.live[matmul_desc][int(attr)] = int(memory(buf, size_in_bytes).copy().view(kind)[0])

    def matmul_preference_create(self) -> int:
        return self._make({})

    def matmul_preference_destroy(self, pref: int) -> None:
        self._drop(pref)

    def matmul_preference_set_attribute(
        self, pref: int, attr: int, buf: int, size_in_bytes: int
    ) -> None:
        assert size_in_bytes == (8 if attr == 1 else 4), (attr, size_in_bytes)
        kind = np.int64 if size_in_bytes == 8 else np.int32
        self.live[pref][int(attr)] = int(memory(buf, size_in_bytes).copy().view(kind)[0])

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        assert ld >= rows, "column-major: a column must fit between two columns"
        return self._make((TYPES[type], rows, cols, ld))

    def matrix_layout_destroy(self, mat_layout: int) -> None:
        self._drop(mat_layout)

    def matmul_algo_get_heuristic(
        self,
        light_handle: int,
        operation_desc: int,
        adesc: int,
        bdesc: int,
        cdesc: int,
        ddesc: int,
        preference: int,
        requested_algo_count: int,
        heuristic_results_array: int,
        return_algo_count: int,
    ) -> None:
        described, wishes = self.live[operation_desc], self.live[preference]
        assert 7 not in described or described[8], "a bias without an address"
        assert all(wishes[attribute] == 64 for attribute in (5, 6, 7, 8)), "alignment"
        kind = np.dtype(HEURISTIC_RESULT)
        size = requested_algo_count * kind.itemsize
        results = memory(heuristic_results_array, size).view(kind)
        for at in range(self.candidates):
            results[at]["algo"]["data_"][:] = at + 1
            results[at]["workspace_size"] = 256 * at
        memory(return_algo_count, 4).view(np.int32)[0] = self.candidates

    def matmul(
        self,
        light_handle: int,
        compute_desc: int,
        alpha: int,
        a: int,
        adesc: int,
        b: int,
        bdesc: int,
        beta: int,
        c: int,
        cdesc: int,
        d: int,
        ddesc: int,
        algo: int,
        workspace: int,
        workspace_size_in_bytes: int,
        stream: int,
    ) -> None:
        assert self.live[light_handle] == "library"
        described = dict(self.live[compute_desc])
        scale = TYPES[described["scale"]]
        assert memory(alpha, scale.itemsize).view(scale)[0] == 1
        assert memory(beta, scale.itemsize).view(scale)[0] == 0
        assert (c, cdesc) == (d, ddesc)
        assert memory(algo, 64).any(), "no algorithm was chosen"
        assert WORLD.holds(WORLD.device, workspace, workspace_size_in_bytes)
        layouts = [self.live[handle] for handle in (adesc, bdesc, ddesc)]
        WORLD.log.append(("matmul", a, b, d, stream))

        def run() -> None:
            first, second = _matrix(a, *layouts[0]), _matrix(b, *layouts[1])
            first = first.T if described[3] else first
            second = second.T if described[4] else second
            result = first.astype(scale) @ second.astype(scale)
            target = _matrix(d, *layouts[2])
            assert result.shape == target.shape, (result.shape, target.shape)
            if described.get(7) == 4:
                kind = TYPES[described[26]]
                bias = memory(described[8], len(result) * kind.itemsize).view(kind)
                result = result + bias[:, None]
            target[...] = result

        WORLD.streams[stream].put(Op("kernel matmul", run, ((d, 1), (a, 1), (b, 1))))


def _matrix(address: int, kind: Any, rows: int, cols: int, ld: int) -> Any:
    """A column-major matrix in memory."""
    nbytes = ((cols - 1) * ld + rows) * kind.itemsize
    flat = memory(address, nbytes).view(kind)
    return np.lib.stride_tricks.as_strided(
        flat, (rows, cols), (kind.itemsize, ld * kind.itemsize)
    )


def make_cublaslt() -> tuple[ModuleType, FakeLt]:
    """The module to put into sys.modules, and what it holds."""
    fake = FakeLt()
    module = ModuleType("nvmath.bindings.cublasLt")
    names = [name for name in dir(FakeLt) if not name.startswith("_")]
    found = {name: getattr(fake, name) for name in names if callable(getattr(fake, name))}
    found |= _enums() | {"cuBLASLtError": LtError}
    found["matmul_heuristic_result_dtype"] = np.dtype(HEURISTIC_RESULT)
    vars(module).update(SimpleNamespace(**found).__dict__)
    return module, fake
