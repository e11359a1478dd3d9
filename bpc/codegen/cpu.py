"""C++ for the CPU: one function per distinct kernel, found by its index in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bpc.codegen.header import describe
from bpc.codegen.lines import Counters, Lines, offset, structure
from bpc.codegen.parts import (
    Holes,
    arguments,
    chunk_holes,
    column_holes,
    common_name,
    conv2d_holes,
    epilogue_holes,
    fill,
    gemm_holes,
    generalise,
    inner_stores,
    plain_step,
    pointer_name,
    pointer_type,
    row_holes,
    scalar_holes,
    scalar_lines,
    unique_names,
)
from bpc.codegen.templating import render
from bpc.codegen.wrapping import mark_places, wrap_code
from bpc.kernel import Kernel, Operand, Store, contiguous
from bpc.plan.naming import identifier
from bpc.types import BIT, F64, Rows, multiply

BLOCK = 256
"""Columns between two writes of packed conditions."""


@dataclass(frozen=True, slots=True)
class Function:
    """One generated C++ function and the kernels that it serves."""

    name: str
    text: str
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A generated file: its text, its functions, and each kernel's index among them."""

    text: str
    functions: tuple[Function, ...]
    index: tuple[int, ...]


def generate(
    title: str, kernels: Sequence[Kernel], rows: int, debug_lines: bool = False
) -> Source:
    """The C++ file of a network.

    Args:
        title: the network's name.
        kernels: of all entry points, in order; equal ones share a function.
        rows: the planned number of rows, for the sizes that headers print.
        debug_lines: let compilers and debuggers name the spec's line of each statement.
    """
    found: dict[tuple[object, ...], int] = {}
    served: list[list[Kernel]] = []
    index = []
    for kernel in kernels:
        key = structure(kernel)
        if key not in found:
            found[key] = len(served)
            served.append([])
        served[found[key]].append(kernel)
        index.append(found[key])
    names = unique_names([common_name(group) for group in served])
    finish = str if debug_lines else wrap_code  # a continuation would have the wrong line
    functions = tuple(
        Function(name, finish(_function(name, group, rows)), tuple(kernel.name for kernel in group))
        for name, group in zip(names, served, strict=True)
    )
    text = render("cpu", "program.cpp.jinja", {"title": title, "functions": functions})
    if debug_lines:
        text = mark_places(text, kernels, f"{identifier(title)}.cpp")
    return Source(text, functions, tuple(index))


def extents(kernel: Kernel, rows: int) -> tuple[int, ...]:
    """Numbers that follow the offsets: the slices, and the elements where they are not fixed."""
    if kernel.skeleton in ("flat", "chunks"):
        batched = any(isinstance(dim, Rows) for dim in kernel.space)
        count = multiply(kernel.space)
        factor = count.factor if isinstance(count, Rows) else count
        return kernel.slices, factor, int(batched)
    return (kernel.slices,)


def _function(name: str, group: Sequence[Kernel], rows: int) -> str:
    kernel = generalise(group[0], group)
    template, holes = fill(_SKELETONS, kernel)
    values = {
        "name": name,
        "header": describe(kernel, group, rows),
        "pointers": _pointers(kernel),
        "slices": f"offsets[{len(arguments(kernel))}]",
        **holes,
    }
    return render("cpu", template, values)


def _pointers(kernel: Kernel) -> list[str]:
    lines = []
    for at, operand in enumerate(arguments(kernel)):
        kind = pointer_type(kernel, operand)
        name = pointer_name(kernel, operand)
        lines.append(f"{kind} {name} = ({kind})(arena + offsets[{at}]);")
    return lines


# -- skeletons ------------------------------------------------------------------------------------


def _inner(kernel: Kernel, lines: Lines, stores: list[Store]) -> Holes:
    """The element loop: statements, plain stores, and flags of packed conditions."""
    bits = [s for s in stores if kernel.operand(s.operand).dtype == BIT]
    plain = [s for s in stores if s not in bits]
    body = lines.block([store.label for store in stores], "inner")
    body += [lines.store(store) for store in plain]
    body += [f"{store.operand}_flags[q] = {store.label};" for store in bits]
    flags = [_flags(kernel.operand(store.operand), lines) for store in bits]
    return {"body": body, "flags": flags}


def _flags(operand: Operand, lines: Lines) -> dict[str, str]:
    """Where the packed conditions of a block begin, and the function that writes them."""
    row, name = lines.counters.row, f"{operand.label}_flags"
    dims, strides = operand.dims[-operand.inner :], operand.strides[-operand.inner :]
    if operand.inner == 1 or strides == contiguous(dims):
        at = f"{operand.label}, {offset(operand, row, 'c0')}"
        return {"name": name, "function": "bpc_bits_store", "at": at}
    # Lines along the last axis are padded to whole bytes, and c runs over several lines.
    line, pitch = dims[-1], next(s for s in reversed(strides[:-1]) if s)
    at = f"{operand.label}, {offset(operand, row, '0')}, {line}, {pitch}, c0"
    return {"name": name, "function": "bpc_bits_store_lines", "at": at}


def _flat(kernel: Kernel) -> Holes:
    lines = Lines(kernel)
    at = len(arguments(kernel))
    return {
        "scalars": scalar_lines(kernel, lines),
        "count": f"offsets[{at + 1}] * (offsets[{at + 2}] ? rows : 1)",
        "block": BLOCK,
        **_inner(kernel, lines, list(kernel.stores)),
    }


def _rows(kernel: Kernel) -> Holes:
    lines = Lines(kernel)
    holes = row_holes(kernel, lines)
    stores = holes.pop("row_stores")
    steps = [*holes.pop("steps"), *([plain_step(stores)] if stores else [])]
    inner = _inner(kernel, lines, inner_stores(kernel))
    return {**holes, "steps": steps, "block": BLOCK, **inner}


def _chunks(kernel: Kernel) -> Holes:
    count = f"offsets[{len(arguments(kernel)) + 1}]"
    return {"count": count, **chunk_holes(kernel, Lines(kernel))}


def _epilogue(kernel: Kernel) -> Holes:
    lines = Lines(kernel)
    return {**epilogue_holes(kernel, lines), **_inner(kernel, lines, list(kernel.stores))}


def _gemm(kernel: Kernel) -> Holes:
    across, along = kernel.attr("slices")
    return {**_epilogue(kernel), **gemm_holes(kernel), "across": across, "along": along}


def _conv2d(kernel: Kernel) -> Holes:
    return {**_epilogue(kernel), **conv2d_holes(kernel)}


_SKELETONS = {
    "flat": _flat,
    "rows": _rows,
    "chunks": _chunks,
    "columns": column_holes,
    "scalar": scalar_holes,
    "gemm": _gemm,
    "conv2d": _conv2d,
    "conv2d_input": _conv2d,
    "conv2d_weight": _conv2d,
}

__all__ = [
    "F64",
    "Counters",
    "Function",
    "Source",
    "arguments",
    "extents",
    "generate",
]
