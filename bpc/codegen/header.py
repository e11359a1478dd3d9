"""The comment above a generated function: formulas, shapes, bytes, FLOPs, nodes, spec lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from bpc.codegen.parts import UPDATES, unique_by_name
from bpc.errors import Span
from bpc.expr import render_formula
from bpc.kernel import CHUNK, Kernel, Operand, Reduction, Statement, kernel_bytes
from bpc.types import F64, DType, Shape, format_shape

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
    read, written = kernel_bytes(kernel, rows)
    served = unique_by_name(other for other in group if "_again" not in other.name) or [group[0]]
    together = kernel != group[0] and len(served) > 1
    lines = formulas(kernel)
    lines += _tensors("reads ", kernel.reads, together)
    lines += _tensors("writes", kernel.writes, together)
    lines += list_after("nodes ", kernel.nodes)
    lines.append(_space(kernel))
    lines.append(f"at {rows} rows reads {read:,} B, writes {written:,} B, {kernel.flops:,} FLOPs")
    lines += list_after("from", list_lines(span for other in served for span in other.spans))
    # Repetitions are left out: a plan for another budget should not change the text.
    return lines + (_served(served) if len(served) > 1 else [])


def _served(served: Sequence[Kernel]) -> list[str]:
    words = [
        f"{kernel.name} {format_shape(kernel.space)} ({_numbers(kernel.spans)})"
        for kernel in served[:_MOST_SERVED]
    ]
    if len(served) > _MOST_SERVED:
        words[-1] += f" and {len(served) - _MOST_SERVED} more"
    return list_after("serves", words)


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
    return lines


def formula(item: Statement) -> str:
    """A statement as a person writes it, with numbers as short as its type tells them apart."""
    text = render_formula(item.expr, dict(item.names))
    return f"{item.label} = {_LONG_NUMBER.sub(lambda m: _short(m[0], item.compute), text)}"


def _short(number: str, compute: DType) -> str:
    return number if compute == F64 else str(np.float32(number))


def _reduction(kernel: Kernel, item: Reduction) -> str:
    if kernel.skeleton == "columns":
        return f"{item.label}[c] = {item.kind} over r of {item.source}[r, c]"
    if kernel.skeleton == "chunks":
        return f"{item.label} = {item.kind} over {CHUNK} elements each of {item.source}"
    if kernel.skeleton == "scalar":
        return f"{item.label} = {item.kind} of the {item.count} values of {item.source}"
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
        rows = "1 row" if outer == "1" else f"{outer} rows"
        return f"space {space}: {rows} r, {inner} elements c along each"
    if kernel.skeleton not in _COUNTERS:
        return f"space {space}"
    row, column = _COUNTERS[kernel.skeleton]
    return f"space {space}: {row}, r < {outer}; {column}, c < {inner}"

