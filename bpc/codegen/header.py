"""The comment above a generated function: formulas, shapes, bytes, FLOPs, nodes, spec lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from bpc.codegen.lines import structure
from bpc.codegen.parts import UPDATES, unique_by_name
from bpc.errors import Span
from bpc.expr import render_formula
from bpc.kernel import CHUNK, Extent, Kernel, Operand, Reduction, Statement, kernel_bytes
from bpc.types import F32, F64, DType, Rows, Shape, format_shape

_WIDTH = 94
_MOST_SERVED = 12
_LONG_NUMBER = re.compile(r"\d+\.\d{8,}(?:e-?\d+)?")


def describe(kernel: Kernel, group: Sequence[Kernel], rows: int) -> list[str]:
    """What the kernel computes, on which shapes, how much it moves, and where it comes from.

    Args:
        kernel: as its function is written.
        group: all kernels that the function serves; the first is the one it is written for.
        rows: the planned number of rows, for sizes.
    """
    served = unique_by_name(other for other in group if "_again" not in other.name) or [group[0]]
    together = kernel != group[0] and len(served) > 1
    lines = formulas(kernel)
    if len(served) > 1:
        lines.append(f"of the first of {len(served)} that it serves, {served[0].name}:")
    lines += _tensors("reads ", kernel.reads, together)
    lines += _tensors("writes", kernel.writes, together)
    lines += list_after("nodes ", kernel.nodes)
    lines.append(_space(kernel))
    lines.append(_sizes(kernel, rows))
    lines += list_after("from", list_lines(span for other in served for span in other.spans))
    # Repetitions are left out: a plan for another budget should not change the text.
    return lines + (_served(served, rows) if len(served) > 1 else [])


def describe_joined(
    names: Sequence[str], parts: Sequence[Kernel], first: Sequence[Kernel], served: Sequence[Kernel]
) -> list[str]:
    """What a function does that calls others, as one.

    Args:
        names: of the functions that it calls: the one of every block, then those of the last.
        parts: the kernels that these are written for.
        first: of each of them, the first kernel that it serves.
        served: all kernels that the function serves.
    """
    made = {operand.value for kernel in served for operand in kernel.writes}
    alike = [kernel for kernel in served if structure(kernel) == structure(first[0])]
    count = len(unique_by_name(alike))
    reads = [o for kernel in first for o in kernel.reads if o.value not in made]
    writes = [o for kernel in first for o in kernel.writes]
    tails = zip(names[1:], parts[1:], strict=True)
    return [
        f"every block runs {names[0]}; the block that finishes last goes on:",
        *list_after("then  ", (f"{name} ({name_tail(kernel)})" for name, kernel in tails)),
        *([f"of the last block and the first of {count} {names[0]}:"] if count > 1 else []),
        *_tensors("reads ", reads, False),
        *_tensors("writes", writes, False),
        *list_after("nodes ", dict.fromkeys(node for kernel in first for node in kernel.nodes)),
        *list_after("from", list_lines(span for kernel in served for span in kernel.spans)),
    ]


def name_tail(kernel: Kernel) -> str:
    """Who runs what follows in the last block."""
    return "one warp" if kernel.skeleton == "rows" else "one thread"


def _sizes(kernel: Kernel, rows: int) -> str:
    """Bytes and FLOPs, with the rows where they matter."""
    read, written = kernel_bytes(kernel, rows)
    sizes = f"reads {read:,} B, writes {written:,} B, {kernel.flops:,} FLOPs"
    return f"at {rows} rows {sizes}" if _grows(kernel) else f"at any batch {sizes}"


def _grows(kernel: Kernel) -> bool:
    """Whether the kernel's work depends on the rows of the batch."""
    operands = (*kernel.reads, *kernel.writes)
    shapes = (kernel.space, *(operand.dims for operand in operands))
    return any(isinstance(dim, Rows) for shape in shapes for dim in shape)


def _served(served: Sequence[Kernel], rows: int) -> list[str]:
    words = [
        f"{kernel.name} {format_shape(kernel.space)} ({_numbers(kernel.spans)})"
        for kernel in served[:_MOST_SERVED]
    ]
    if len(served) > _MOST_SERVED:
        words[-1] += f" and {len(served) - _MOST_SERVED} more"
    moved = [kernel_bytes(kernel, rows) for kernel in served]
    read, written = (sum(side) for side in zip(*moved, strict=True))
    flops = sum(kernel.flops for kernel in served)
    total = f"all {len(served)}: read {read:,} B, write {written:,} B, {flops:,} FLOPs"
    return [*list_after("serves", words), total]


def _numbers(spans: Iterable[Span]) -> str:
    return ", ".join(f":{line}" for line in dict.fromkeys(span.line for span in spans))


def list_lines(spans: Iterable[Span]) -> list[str]:
    """`specs/a.yaml:9`, `:10`: each place once, its file where it differs from the one before."""
    shown: list[str] = []
    file = ""
    for place in dict.fromkeys((span.file, span.line) for span in spans):
        shown.append(f"{place[0] if place[0] != file else ''}:{place[1]}")
        file = place[0]
    return shown


def _tensors(verb: str, operands: Sequence[Operand], together: bool) -> list[str]:
    """Each tensor with its type and the shape that the kernel touches.

    Labels are shown where the name does not tell them: unnamed parts of a layer, and those of a
    function for many tensors.
    """
    texts = []
    for operand in operands:
        text = f"{operand.value} {operand.dtype}{format_shape(touched_shape(operand))}"
        own = "#" in operand.value or (together and "parameter" in operand.label)
        texts.append(f"{operand.label.removesuffix('_out')} = {text}" if own else text)
    return list_after(verb, dict.fromkeys(texts))


def list_after(verb: str, words: Iterable[str]) -> list[str]:
    """`verb a, b, c` in lines of at most 96 columns; nothing for no words."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) <= _WIDTH:
            lines[-1] += f", {word}"
        else:
            if lines:
                lines[-1] += ","
            lines.append(f"{' ' * len(verb) if lines else verb} {word}")
    return lines


def touched_shape(operand: Operand) -> Shape:
    """The axes of an operand along which its elements differ."""
    pairs = zip(operand.dims, operand.strides, strict=True)
    return tuple(dim for dim, stride in pairs if stride)


# -- formulas -------------------------------------------------------------------------------------


def formulas(kernel: Kernel) -> list[str]:
    """The product of a kernel that has one, then a line a statement and reduction."""
    lines = [_product(kernel)] if kernel.sources else []
    for item in kernel.body:
        if isinstance(item, Statement):
            lines.append(formula(item))
        elif isinstance(item, Reduction):
            lines.append(_reduction(kernel, item))
        elif isinstance(item, Extent):
            lines.append(f"{item.label} = {format_shape((item.dim,)).strip('[]')}")
        elif item.axis is not None:
            lines.append(f"{item.label} = the element's place along axis {item.axis}")
    return lines


def formula(item: Statement) -> str:
    """A statement as a person writes it, with numbers as short as its type tells them apart."""
    text = render_formula(item.expr, dict(item.names))
    number = _LONG_NUMBER.sub(lambda m: _short(m[0], item.compute), text)
    # Of 16-bit results it is the rule, and said at the head of the file.
    rounded = item.dtype == F32 and item.compute == F64
    return f"{item.label} = {number}" + (", rounded to f32" if rounded else "")


def _short(number: str, compute: DType) -> str:
    return number if compute == F64 else str(np.float32(number))


def _reduction(kernel: Kernel, item: Reduction) -> str:
    if kernel.skeleton == "columns":
        return f"{item.label}[c] = {item.kind} over r of {item.source}[r, c]"
    if kernel.skeleton == "chunks":
        return f"{item.label}[chunk] = {item.kind} of {item.source} over {CHUNK} elements a chunk"
    if kernel.skeleton == "scalar":
        return f"{item.label} = {item.kind} of the {item.count} values of {item.source}"
    if kernel.outer_dim == 1:
        count = format_shape((kernel.inner_dim,)).strip("[]")
        return f"{item.label} = {item.kind} over all c < {count} of {item.source}"
    return f"{item.label}[r] = {item.kind} over c of {item.source}"


def _product(kernel: Kernel) -> str:
    one, two = kernel.attr("shapes")
    first, second = kernel.sources
    if kernel.skeleton == "gemm":
        ta, tb = kernel.attr("ta"), kernel.attr("tb")
        left = f"{first}[{'k, r' if ta else 'r, k'}]"
        right = f"{second}[{'c, k' if tb else 'k, c'}]"
        count = format_shape((one[0 if ta else 1],)).strip("[]")
        return f"acc[r, c] = sum over k < {count} of {left} * {right}"
    (sh, sw), (ph, pw) = kernel.attr("stride"), kernel.attr("padding")
    how = f"stride {sh} x {sw}, padding {ph} x {pw}"
    a, b = f"{first} {format_shape(one)}", f"{second} {format_shape(two)}"
    if kernel.skeleton == "conv2d":
        return f"acc = convolution of {a} by the weight {b}, {how}"
    if kernel.skeleton == "conv2d_input":
        return f"acc = gradient of a convolution's input: from {a} back through {b}, {how}"
    return f"acc = gradient of a convolution's weight: from its input {a} and {b}, {how}"


_COUNTERS = {
    "columns": ("r summed", "c a column kept"),
    "gemm": ("r a row of the result", "c a column of it"),
}


def _space(kernel: Kernel) -> str:
    """The space of positions, and what r and c count in it."""
    space = format_shape(kernel.space)
    if kernel.skeleton in UPDATES:
        return f"space {space}, every element c"
    outer = format_shape((kernel.outer_dim,)).strip("[]")
    inner = format_shape((kernel.inner_dim,)).strip("[]")
    if kernel.skeleton == "rows":
        if outer == "1":
            return f"space {space}, taken as one row: element c < {inner}"
        return f"space {space}: row r < {outer}, element c < {inner} of a row"
    if kernel.skeleton not in _COUNTERS:
        return f"space {space}"
    row, column = _COUNTERS[kernel.skeleton]
    return f"space {space}: {row}, r < {outer}; {column}, c < {inner}"
