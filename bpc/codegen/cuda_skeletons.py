"""What goes into the holes of the CUDA templates, and how many blocks of threads each takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bpc.codegen.lines import Lines, offset, pointee, register, render_dim
from bpc.codegen.parts import (
    Holes,
    arguments,
    chunk_holes,
    column_holes,
    conv2d_holes,
    epilogue_holes,
    gemm_holes,
    inner_stores,
    pointer_name,
    pointer_type,
    row_holes,
    scalar_holes,
    scalar_lines,
)
from bpc.kernel import CHUNK, Kernel, Operand, Reduction, Store
from bpc.types import BIT, Rows, elements, extent, multiply

WARP = 32
_THREADS = {"flat": 256, "columns": 256, "scalar": WARP}
_DEFAULT_THREADS = 128
SLICE = 256  # rows that one warp of a sum over columns takes at a time (bpc_column_slice)
_LONGEST_HELD, _MOST_HELD = 256, 64  # elements of a row, and registers of a thread, that hold it
_BLOCK = 64  # rows and columns of the block of a product that one block computes


# -- blocks and threads ---------------------------------------------------------------------------


def block_threads(kernel: Kernel) -> int:
    """Threads of a block of a kernel."""
    return _THREADS.get(kernel.skeleton, _DEFAULT_THREADS)


def block_count(kernel: Kernel, rows: int) -> int:
    """Blocks of a kernel for the planned rows."""
    threads = block_threads(kernel)
    warps = threads // WARP
    outer, inner = extent(kernel.outer_dim, rows), extent(kernel.inner_dim, rows)
    if kernel.skeleton == "flat":
        return _ceil(elements(kernel.space, rows), threads * pack_width(kernel))
    if kernel.skeleton == "chunks":
        return _ceil(_ceil(elements(kernel.space, rows), CHUNK), warps)
    if kernel.skeleton == "columns":
        first = kernel.attr("first")
        return extent(multiply(kernel.space[:first]), rows) * _ceil(inner, WARP)
    if kernel.skeleton == "gemm":
        m, n = (extent(dim, rows) for dim in kernel.space)
        return _ceil(m, _BLOCK) * _ceil(n, _BLOCK)
    if kernel.skeleton == "conv2d_weight":
        return _ceil(elements(kernel.space, rows), warps)
    if kernel.skeleton.startswith("conv2d"):
        return _ceil(outer * _ceil(inner, _line_width(kernel)), threads)
    return 1 if kernel.skeleton == "scalar" else _ceil(outer, warps)


def _ceil(count: int, by: int) -> int:
    return max(1, -(-count // by))


def pack_width(kernel: Kernel) -> int:
    """Neighbouring elements that one thread of a flat kernel handles: at least 16 bytes each."""
    narrow = any(item.dtype.bits <= 16 for item in arguments(kernel) if not item.is_scalar)
    return 8 if narrow else 4


def _line_width(kernel: Kernel) -> int:
    return 8 if any(item.dtype == BIT for item in kernel.writes) else 1


def describe_threads(kernel: Kernel) -> str:
    """Who computes what, in a sentence of the header."""
    threads = block_threads(kernel)
    warps, width = threads // WARP, _line_width(kernel)
    if kernel.skeleton == "flat":
        return f"each thread takes {pack_width(kernel)} neighbouring elements"
    if kernel.skeleton == "chunks":
        return f"each warp sums one chunk of {CHUNK} elements, {warps} chunks a block"
    if kernel.skeleton == "columns":
        return (
            f"a block makes {WARP} columns; its {warps} warps take slices of {SLICE} rows in turn"
        )
    if kernel.skeleton == "gemm":
        return f"a block makes {_BLOCK} x {_BLOCK} elements of acc, each thread 4 x 8 of them"
    if kernel.skeleton == "conv2d_weight":
        return f"each warp makes one element, {warps} a block"
    if kernel.skeleton.startswith("conv2d"):
        return f"each thread makes {width} neighbouring elements" if width > 1 else (
            "each thread makes one element"
        )
    if kernel.skeleton == "scalar":
        return "the first thread alone"
    return f"each warp computes one row, {warps} rows a block"


# -- holes ----------------------------------------------------------------------------------------


class _PackLines(Lines):
    """Lines of a flat kernel: elements come from and go to packs in registers."""

    def load(self, operand: Operand) -> str:
        """Take one element of a pack."""
        if operand.level != "inner" or operand.dtype == BIT:
            return super().load(operand)
        kind = register(operand.dtype)
        return f"const {kind} {operand.label} = bpc_load({operand.label}_pack.at, q);"

    def store(self, store: Store) -> str:
        """Put one element into a pack."""
        return f"bpc_store({store.operand}_pack.at, q, {store.label});"


def _bits(kernel: Kernel, lines: Lines, stores: Sequence[Store]) -> Holes:
    """The element's statements and stores; conditions gather in a byte per eight columns."""
    packed = [store for store in stores if kernel.operand(store.operand).dtype == BIT]
    body = lines.block([store.label for store in stores], "inner")
    body += [lines.store(store) for store in stores if store not in packed]
    body += [f"{s.operand}_byte |= unsigned({s.label}) << q;" for s in packed]
    bits = [
        {
            "name": f"{store.operand}_byte",
            "target": store.operand,
            "at": offset(kernel.operand(store.operand), lines.counters.row, "c0"),
        }
        for store in packed
    ]
    return {"body": body, "bits": bits}


def _table(kernel: Kernel) -> Holes:
    """A row of the launch's table: addresses, the elements, times rows or not, the first block."""
    pointers = []
    for at, operand in enumerate(arguments(kernel)):
        kind = pointer_type(kernel, operand)
        name = pointer_name(kernel, operand)
        pointers.append(f"{kind} {name} = reinterpret_cast<{kind}>(part[{at}]);")
    count = len(pointers)
    # The word for the rows of the batch would make them an argument of the function.
    columns = (
        f"[0] to [{count - 1}] addresses of tensors, [{count}] elements of each ([{count + 1}]: "
        f"1 if for each row of the batch), [{count + 2}] first block"
    )
    return {
        "pointers": pointers,
        "part_width": count + 3,
        "part_columns": columns,
        "elements": f"bpc_index(part[{count}])",
    }


def _flat(kernel: Kernel) -> Holes:
    lines = _PackLines(kernel)
    packs = [item for item in kernel.reads if item.level == "inner" and item.dtype != BIT]
    written = [item for item in kernel.writes if item.dtype != BIT]
    table = _table(kernel)
    batched = f"(part[{table['part_width'] - 2}] ? rows : 1)"
    return {
        **table,
        "scalars": scalar_lines(kernel, lines),
        "count": f"{table['elements']} * {batched}",
        "width": pack_width(kernel),
        "loads": [{"name": item.label, "type": pointee(item.dtype)} for item in packs],
        "stores": [{"name": item.label, "type": pointee(item.dtype)} for item in written],
        **_bits(kernel, lines, kernel.stores),
    }


@dataclass(slots=True)
class _HeldLines(Lines):
    """Lines of a kernel of rows that reads a short row once and keeps it in registers.

    `spread`: the 32 lanes have elements of their own, not the halves of the warp the same ones.
    """

    held: frozenset[str] = frozenset()
    spread: bool = False

    def load(self, operand: Operand) -> str:
        """Take an element out of the registers."""
        if operand.label not in self.held:
            return Lines.load(self, operand)
        name = f"{operand.label}_held"
        found = f"bpc_held({name}, k)" if self.spread else f"{name}[k]"
        return f"const {register(operand.dtype)} {operand.label} = {found};"


def _rows(kernel: Kernel) -> Holes:
    packed = [item for item in kernel.writes if item.dtype == BIT and item.level == "inner"]
    line = render_dim(packed[0].dims[-1] if packed else kernel.inner_dim)
    held, plain = _held(kernel), Lines(kernel)
    tensors = [
        {
            "label": item.label,
            "type": register(item.dtype),
            "load": plain.load(item).partition(" = ")[2],
        }
        for item in held
    ]
    names = frozenset(item.label for item in held)
    return {
        **row_holes(kernel, _HeldLines(kernel, held=names)),
        **_bits(kernel, _HeldLines(kernel, held=names, spread=True), inner_stores(kernel)),
        "line": line,
        "held": {"tensors": tensors, "count": _held_elements(kernel)} if held else None,
    }


def _held(kernel: Kernel) -> list[Operand]:
    """What a thread can hold of a row that several reductions or loops of a kernel read.

    Not where conditions are packed: there a thread makes eight neighbouring columns.
    """
    bits = any(item.dtype == BIT for item in (*kernel.reads, *kernel.writes))
    if bits or not isinstance(kernel.inner_dim, int) or kernel.inner_dim > _LONGEST_HELD:
        return []
    lines = Lines(kernel)
    blocks = [[item.source] for item in kernel.body if isinstance(item, Reduction)]
    blocks.append([store.label for store in inner_stores(kernel)])
    needed = [lines.closure(block) for block in blocks]
    found, registers = [], 0
    for item in kernel.reads:
        taken = _held_elements(kernel) * (2 if item.dtype.bits == 64 else 1)
        often = sum(item.label in labels for labels in needed) > 1
        if item.level == "inner" and often and registers + taken <= _MOST_HELD:
            found.append(item)
            registers += taken
    return found


def _held_elements(kernel: Kernel) -> int:
    """Elements of a row that a thread holds, for an even number of halves of the warp."""
    assert isinstance(kernel.inner_dim, int)
    return 2 * _ceil(kernel.inner_dim, WARP)


def _chunks(kernel: Kernel) -> Holes:
    table = _table(kernel)
    holes = chunk_holes(kernel, Lines(kernel))
    return {**table, "count": table["elements"], "chunk": CHUNK, **holes}


def _columns(kernel: Kernel) -> Holes:
    holes = column_holes(kernel)
    plain = str(holes["reduced"]).isalnum()
    uses_r = any(re.search(r"\br\b", line) for line in (*holes["row"], *holes["body"]))
    return {
        **holes,
        "columns": WARP,
        "slots": _THREADS["columns"] // WARP,
        "slice": SLICE,
        "length": holes["reduced"] if plain else "reduced",
        "single": holes["outer"] == "1",
        "uses_r": uses_r,
    }


def _epilogue(kernel: Kernel) -> Holes:
    lines = Lines(kernel)
    return {**epilogue_holes(kernel, lines), **_bits(kernel, lines, kernel.stores)}


def _gemm(kernel: Kernel) -> Holes:
    return {**_epilogue(kernel), **gemm_holes(kernel)}


def _conv2d(kernel: Kernel) -> Holes:
    return {**_epilogue(kernel), **conv2d_holes(kernel), "width": _line_width(kernel)}


SKELETONS = {
    "flat": _flat,
    "rows": _rows,
    "chunks": _chunks,
    "columns": _columns,
    "scalar": scalar_holes,
    "gemm": _gemm,
    "conv2d": _conv2d,
    "conv2d_input": _conv2d,
    "conv2d_weight": _conv2d,
}


def table_numbers(kernel: Kernel, first_block: int) -> tuple[int, int, int]:
    """What follows the addresses in a row of a table."""
    whole = multiply(kernel.space)
    factor = whole.factor if isinstance(whole, Rows) else whole
    return factor, int(isinstance(whole, Rows)), first_block
