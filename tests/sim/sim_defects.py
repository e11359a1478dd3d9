"""Defects planted into right kernels: one change of text each."""

from __future__ import annotations

from dataclasses import dataclass

from sim_cases import read_kernel, run_case

from bpc.runtime.sim.launch import LaunchOptions
from bpc.runtime.sim.module import Mode


@dataclass(frozen=True)
class Defect:
    """What is changed where: the `nth` place of `old`, from 0. One of `seen` must be reported."""

    seen: frozenset[str]
    name: str
    case: str
    old: str
    new: str
    nth: int = 0

    def text(self) -> str:
        source = read_kernel(self.case)
        parts = source.split(self.old)
        assert len(parts) > self.nth + 1, f"{self.name}: the kernel has changed"
        at = self.nth + 1
        return self.old.join(parts[:at]) + self.new + self.old.join(parts[at:])


RACE, UNINITIALISED = frozenset({"RACE"}), frozenset({"UNINITIALISED"})
OUT_OF_BOUNDS, MISALIGNED = frozenset({"OUT-OF-BOUNDS"}), frozenset({"MISALIGNED"})
DIVERGENT, READ_ONLY = frozenset({"DIVERGENT-BARRIER"}), frozenset({"READ-ONLY"})
OVERRUN = frozenset({"UNDEFINED", "OUT-OF-BOUNDS"})  # by the array's type, or by its memory
VALUES = frozenset({"values"})  # memory is used rightly, and the result is wrong
BARRIER, WARP_BARRIER = "__syncthreads();", "__syncwarp();"

DEFECTS = (
    # missing order within a block
    Defect(UNINITIALISED, "no barrier after the tiles are loaded", "gemm", BARRIER, ""),
    Defect(RACE, "no barrier before the tiles are overwritten", "gemm", BARRIER, "", 1),
    Defect(
        UNINITIALISED, "no barrier between writing and reading the slots", "softmax", BARRIER, ""
    ),
    Defect(RACE, "no barrier before the slots are used again", "softmax", BARRIER, "", 1),
    Defect(UNINITIALISED, "no barrier after zeroing the sums", "norm", BARRIER, ""),
    Defect(RACE, "no barrier before the sums are read", "norm", BARRIER, "", 1),
    Defect(UNINITIALISED, "no barrier before the tree", "update", BARRIER, ""),
    Defect(RACE, "no barrier between the tree's levels", "update", BARRIER, "", 1),
    Defect(UNINITIALISED, "no barrier after the ticket", "update", BARRIER, "", 2),
    Defect(UNINITIALISED, "no barrier after zeroing the counts", "histogram", BARRIER, ""),
    Defect(RACE, "no barrier before the counts are added", "histogram", BARRIER, "", 1),
    Defect(RACE, "no __syncwarp between writing and reading", "attention", WARP_BARRIER, ""),
    Defect(RACE, "no __syncwarp before the next write", "attention", WARP_BARRIER, "", 1),
    # missing order between blocks, missing atomics
    Defect(RACE, "no fence before the ticket", "update", "__threadfence();", ""),
    Defect(RACE, "no fence after the ticket", "update", "__threadfence();", "", 1),
    Defect(
        RACE,
        "ticket without an atomic",
        "update",
        "atomicInc(ticket, gridDim.x - 1)",
        "(*ticket)++",
    ),
    Defect(
        RACE,
        "plain addition in shared memory",
        "histogram",
        "atomicAdd(&mine[values[i]], 1u)",
        "mine[values[i]] += 1u",
    ),
    Defect(
        RACE,
        "plain addition in global memory",
        "histogram",
        "atomicAdd(&counts[b], mine[b])",
        "counts[b] += mine[b]",
    ),
    Defect(RACE, "plain store of the same value", "unscale", "atomicOr(found, 1u)", "*found = 1u"),
    Defect(
        RACE,
        "plain addition to the column sums",
        "norm",
        "atomicAdd(&columns_sum[c], g[row + c] * h)",
        "columns_sum[c] += g[row + c] * h",
    ),
    Defect(
        RACE,
        "two blocks write one row",
        "norm",
        "(long long)blockIdx.x * columns + c",
        "(long long)(blockIdx.x / 2) * columns + c",
    ),
    # bounds
    Defect(
        OUT_OF_BOUNDS,
        "tail guard lets one more through",
        "unscale",
        "if (i < n) {",
        "if (i <= n) {",
    ),
    Defect(
        OUT_OF_BOUNDS,
        "no guard of the rows",
        "gemm",
        "row0 + i < m && k0 + p < k ?",
        "k0 + p < k ?",
    ),
    Defect(
        OUT_OF_BOUNDS,
        "no guard of the depth",
        "gemm",
        "k0 + p < k && column0 + j < n ?",
        "column0 + j < n ?",
    ),
    Defect(
        RACE, "no guard of the result", "gemm", "if (row < m && column < n) c", "if (row < m) c"
    ),
    Defect(OUT_OF_BOUNDS, "no guard of the columns", "norm", "if (c >= columns) return;", ""),
    Defect(
        OUT_OF_BOUNDS,
        "one key too many",
        "attention",
        "for (int first = 0; first <= row; first += 32)",
        "for (int first = -1; first <= row; first += 32)",
    ),
    Defect(
        OUT_OF_BOUNDS,
        "dynamic shared memory overrun",
        "histogram",
        "b < bins; b += blockDim.x) mine",
        "b <= bins; b += blockDim.x) mine",
    ),
    Defect(OVERRUN, "row of a shared tile overrun", "gemm", "left[p][i] =", "left[p][i + 5] ="),
    Defect(OVERRUN, "shared tile overrun at its end", "gemm", "right[p][j] =", "right[p + 1][j] ="),
    # initialisation
    Defect(UNINITIALISED, "sums are not zeroed", "norm", "columns_sum[c] = 0.0f;", ""),
    Defect(UNINITIALISED, "slots of missing warps are read", "softmax", "lane < warps ?", "true ?"),
    Defect(
        VALUES,
        "last elements are not written",
        "pointwise",
        "i < n; i += step",
        "i < n - 1; i += step",
    ),
    Defect(VALUES, "a group of four is skipped", "pointwise", "g < groups; g", "g < groups - 1; g"),
    # alignment
    Defect(
        MISALIGNED,
        "four elements from an odd address",
        "pointwise",
        "reinterpret_cast<const float4*>(residual)",
        "reinterpret_cast<const float4*>(residual + 1)",
    ),
    Defect(
        MISALIGNED,
        "shared tile without an alignment",
        "gemm",
        "__shared__ __align__(16) float right",
        "__shared__ float right",
    ),
    # divergence
    Defect(
        DIVERGENT,
        "barrier for half of the threads",
        "update",
        "sums[threadIdx.x] = sum;\n  __sync",
        "sums[threadIdx.x] = sum;\n  if (threadIdx.x < 64) __sync",
    ),
    Defect(
        DIVERGENT,
        "barrier within the tree's branch",
        "update",
        "sums[threadIdx.x] += sums[threadIdx.x + half];\n    __syncthreads();",
        "{ sums[threadIdx.x] += sums[threadIdx.x + half];\n    __syncthreads(); }",
    ),
    Defect(
        DIVERGENT,
        "return before a barrier",
        "gemm",
        "float sum[4][4] = {};",
        "float sum[4][4] = {}; if (row0 + ty * 4 >= m) return;",
    ),
    Defect(
        DIVERGENT,
        "shuffle of half a warp under a full mask",
        "norm",
        "for (int step = 16; step > 0; step >>= 1) {",
        "if (lane < 16) for (int step = 16; step > 0; step >>= 1) {",
    ),
    Defect(DIVERGENT, "ballot in a loop of unequal length", "unscale", "i < rounded;", "i < n;"),
    # writes where only reads belong, and wrong values
    Defect(
        READ_ONLY,
        "write to an input",
        "softmax",
        "top = fmaxf(top, from[c]);",
        "{ top = fmaxf(top, from[c]); ((float*)from)[c] = from[c] + 0.0f; }",
    ),
    Defect(
        VALUES,
        "wrong stride of the rows",
        "softmax",
        "x + (long long)blockIdx.x * columns",
        "x + (long long)blockIdx.x * (columns - 1)",
    ),
    Defect(
        OUT_OF_BOUNDS,
        "sign of an index is wrong",
        "attention",
        "k[key * width + d]",
        "k[(key - row) * width + d]",
    ),
)


def find(defect: Defect, mode: Mode, options: LaunchOptions | None = None) -> dict[str, str]:
    """What a checked run sees: each kind with its first report; `values` for wrong results."""
    session = run_case(defect.case, mode, True, options, defect.text())
    found: dict[str, str] = {}
    for report in session.reports:
        found.setdefault(report.kind.value, str(report))
    wrong = session.finish()[len(session.reports) :]
    return found | ({"values": wrong[0]} if wrong else {})


def print_table() -> None:
    """The measured power, as docs/sim.md shows it."""
    total = {"source": 0, "ptx": 0}
    print("| planted defect | kernel | source mode | PTX mode |\n| --- | --- | --- | --- |")
    for defect in DEFECTS:
        found = {mode: find(defect, mode) for mode in ("source", "ptx")}
        for mode, kinds in found.items():
            total[mode] += bool(kinds)
        cells = " | ".join(", ".join(kinds) or "-" for kinds in found.values())
        print(f"| {defect.name} | {defect.case} | {cells} |", flush=True)
    print(f"\n{len(DEFECTS)} defects; found: {total}")


if __name__ == "__main__":
    print_table()
