"""C++ for the CPU: one function per distinct kernel, found by its index in a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bpc.codegen.lines import (
    Counters,
    Lines,
    offset,
    pointee,
    register,
    render_dim,
    structure,
)
from bpc.codegen.templating import render
from bpc.expr import render_formula
from bpc.kernel import (
    Kernel,
    Operand,
    Reduction,
    Statement,
    Store,
    contiguous,
    kernel_bytes,
)
from bpc.ops.linear import output_size
from bpc.types import BIT, F64, Rows, Shape, compute_type, extent, format_shape, multiply

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


def generate(title: str, kernels: Sequence[Kernel], rows: int) -> Source:
    """The C++ file of a network.

    Args:
        title: the network's name.
        kernels: of all entry points, in order; equal ones share a function.
        rows: the planned number of rows, for the sizes that headers print.
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
    names = _unique_names([_common_name(group) for group in served])
    functions = tuple(
        Function(name, _function(name, group, rows), tuple(kernel.name for kernel in group))
        for name, group in zip(names, served, strict=True)
    )
    text = render("cpu", "program.cpp.jinja", {"title": title, "functions": functions})
    return Source(text, functions, tuple(index))


def _common_name(group: Sequence[Kernel]) -> str:
    """The words that all names share (`adam` of adam_fc1_weight, adam_fc2_bias), else the first.

    Names of different lengths share a meaning only where each begins with it, as updates do.
    """
    names = [kernel.name.split("_") for kernel in group]
    updates = group[0].skeleton in ("flat", "chunks")
    if not updates and len({len(words) for words in names}) > 1:
        return group[0].name
    columns = zip(*names, strict=False)
    return "_".join(words[0] for words in columns if len(set(words)) == 1) or group[0].name


def _unique_names(names: list[str]) -> list[str]:
    """Names that differ: a later `adam` becomes `adam_2`, or the first number that is free."""
    unique: list[str] = []
    for name in names:
        label, count = name, 1
        while label in unique or (count > 1 and label in names):
            count += 1
            label = f"{name}_{count}"
        unique.append(label)
    return unique


def arguments(kernel: Kernel) -> tuple[Operand, ...]:
    """The tensors of a kernel in the order of its offsets: what it reads, then what it writes."""
    return (*kernel.reads, *kernel.writes)


def extents(kernel: Kernel, rows: int) -> tuple[int, ...]:
    """Numbers that follow the offsets: the slices, and the elements where they are not fixed."""
    if kernel.skeleton in ("flat", "chunks"):
        batched = any(isinstance(dim, Rows) for dim in kernel.space)
        count = multiply(kernel.space)
        factor = count.factor if isinstance(count, Rows) else count
        return kernel.slices, factor, int(batched)
    return (kernel.slices,)


def _function(name: str, group: Sequence[Kernel], rows: int) -> str:
    kernel = group[0]
    values: dict[str, Any] = {
        "name": name,
        "header": _header(kernel, group, rows),
        "pointers": _pointers(kernel),
        "slices": f"offsets[{len(arguments(kernel))}]",
    }
    values |= _SKELETONS[kernel.skeleton](kernel)
    family = "conv2d" if kernel.skeleton.startswith("conv2d") else kernel.skeleton
    return render("cpu", f"{family}.jinja", values)


def _pointers(kernel: Kernel) -> list[str]:
    lines = []
    for at, operand in enumerate(arguments(kernel)):
        constant, suffix = ("const ", "_in") if at < len(kernel.reads) else ("", "")
        kind = f"{constant}{pointee(operand.dtype)}"
        lines.append(f"{kind}* {operand.label}{suffix} = ({kind}*)(arena + offsets[{at}]);")
    return lines


def _header(kernel: Kernel, group: Sequence[Kernel], rows: int) -> list[str]:
    """What the kernel computes, on which shapes, how much it moves, and where it comes from."""
    read, written = kernel_bytes(kernel, rows)
    lines = [_formula(item) for item in kernel.body if isinstance(item, Statement | Reduction)]
    lines += _tensors("reads ", kernel.reads) + _tensors("writes", kernel.writes)
    lines.append(f"space {format_shape(kernel.space)}; at {rows} rows reads {read:,} B, writes")
    lines[-1] += f" {written:,} B, {kernel.flops:,} FLOPs"
    places = dict.fromkeys(f"{span.file}:{span.line}" for span in kernel.spans)
    lines.append("from " + ", ".join(places))
    if len(group) > 1:
        # Repetitions are left out: a plan for another budget should not change the text.
        served = list(dict.fromkeys(k.name for k in group if "_again" not in k.name))
        more = f" and {len(served) - 6} more" if len(served) > 6 else ""
        if len(served) > 1:
            lines += _list_after("serves", [*served[:5], served[5] + more] if more else served)
    return lines


def _tensors(verb: str, operands: Sequence[Operand]) -> list[str]:
    """Each tensor with its type and the shape that the kernel touches."""
    texts = (f"{op.value} {op.dtype}{format_shape(touched_shape(op))}" for op in operands)
    return _list_after(verb, dict.fromkeys(texts))


def _list_after(verb: str, words: Iterable[str]) -> list[str]:
    """`verb a, b, c` in lines of at most 96 columns; nothing for no words."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) <= 94:
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


def _formula(item: Statement | Reduction) -> str:
    if isinstance(item, Reduction):
        return f"{item.label} = {item.kind}({item.source})"
    return f"{item.label} = {render_formula(item.expr, dict(item.names))}"


# -- skeletons ------------------------------------------------------------------------------------


def _scalars(kernel: Kernel, lines: Lines) -> list[str]:
    """Loads and statements that do not depend on the position."""
    return lines.block(_all_labels(kernel), "scalar")


def _all_labels(kernel: Kernel) -> list[str]:
    stored = [store.label for store in kernel.stores]
    return stored + [item.source for item in kernel.body if isinstance(item, Reduction)]


def _inner_stores(kernel: Kernel, lines: Lines, every: bool = False) -> list[Store]:
    """Stores of one value per element; `every` for epilogues, where all are."""
    return [
        store
        for store in kernel.stores
        if every or kernel.operand(store.operand).level == "inner"
    ]


def _inner(kernel: Kernel, lines: Lines, stores: list[Store]) -> dict[str, Any]:
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


def _flat(kernel: Kernel) -> dict[str, Any]:
    lines = Lines(kernel)
    at = len(arguments(kernel))
    return {
        "scalars": _scalars(kernel, lines),
        "count": f"offsets[{at + 1}] * (offsets[{at + 2}] ? rows : 1)",
        "block": BLOCK,
        **_inner(kernel, lines, list(kernel.stores)),
    }


def _rows(kernel: Kernel) -> dict[str, Any]:
    """Per row: its loads, then each reduction and row statement in order, then the stores."""
    lines = Lines(kernel)
    inner = _inner_stores(kernel, lines)
    outer = [store for store in kernel.stores if store not in inner]
    steps: list[dict[str, Any]] = [_plain(_row_loads(kernel, lines))]
    for item in kernel.body:
        if isinstance(item, Reduction):
            steps.append(_reduction(item, lines))
        elif item.level == "row":
            steps.append(_plain(lines.item(item)))
    steps.append(_plain([lines.store(store) for store in outer]))
    return {
        "scalars": _scalars(kernel, lines),
        "outer": render_dim(kernel.outer_dim),
        "width": render_dim(kernel.inner_dim),
        "steps": [step for step in steps if step["lines"] or step["kind"]],
        "block": BLOCK,
        **_inner(kernel, lines, inner),
    }


def _plain(lines: list[str]) -> dict[str, Any]:
    return {"kind": "", "lines": lines}


def _row_loads(kernel: Kernel, lines: Lines) -> list[str]:
    needed = [item for item in kernel.reads if item.level == "row"]
    return [lines.load(item) for item in needed if item.label not in kernel.sources]


def _reduction(item: Reduction, lines: Lines) -> dict[str, Any]:
    result = register(item.dtype)
    accumulate = register(item.accumulate)
    text = f"bpc_round<{pointee(item.dtype)}>" if item.dtype.bits == 16 else result
    return {
        "label": item.label,
        "type": result,
        "accumulate": accumulate,
        "round": "" if result == accumulate and item.dtype.bits != 16 else text,
        "kind": item.kind,
        "lines": [],
        "body": lines.block([item.source], "inner"),
        "source": item.source,
        "comment": f"{item.kind} over the row, {item.span.file}:{item.span.line}",
    }


def _chunks(kernel: Kernel) -> dict[str, Any]:
    lines = Lines(kernel)
    reduction = next(item for item in kernel.body if isinstance(item, Reduction))
    at = len(arguments(kernel))
    (store,) = kernel.stores
    return {
        "scalars": _scalars(kernel, lines),
        "count": f"offsets[{at + 1}]",
        "reduction": _reduction(reduction, lines),
        "target": kernel.operand(store.operand).label,
    }


def _columns(kernel: Kernel) -> dict[str, Any]:
    lines = Lines(kernel)
    reduction = next(item for item in kernel.body if isinstance(item, Reduction))
    first, count = kernel.attr("first"), kernel.attr("count")
    (store,) = kernel.stores
    wanted = [reduction.source]
    return {
        "scalars": _scalars(kernel, lines),
        "outer": render_dim(multiply(kernel.space[:first])),
        "reduced": render_dim(multiply(kernel.space[first : first + count])),
        "width": render_dim(kernel.inner_dim),
        "row": lines.block(wanted, "row"),
        "body": lines.block(wanted, "inner"),
        "source": reduction.source,
        "accumulate": register(reduction.accumulate),
        "kind": reduction.kind,
        "target": kernel.operand(store.operand).label,
        "comment": f"{reduction.span.file}:{reduction.span.line}",
    }


def _scalar(kernel: Kernel) -> dict[str, Any]:
    """All statements in order; sums over a few partial results are loops of their own."""
    lines = Lines(kernel)
    loaded = [
        lines.load(operand)
        for operand in kernel.reads
        if not any(isinstance(i, Reduction) and i.source == operand.label for i in kernel.body)
    ]
    body = list(loaded)
    for item in kernel.body:
        if isinstance(item, Reduction):
            accumulate = register(item.accumulate)
            call = f"bpc_serial_sum<{accumulate}>({item.source}_in, {item.count})"
            body.append(f"const {accumulate} {item.label} = {call};")
        else:
            body.extend(lines.item(item))
    stores = []
    for store in kernel.stores:
        operand = kernel.operand(store.operand)
        if operand.dtype == BIT:
            stores.append(f"{operand.label}[0] = {store.label};")
        else:
            stores.append(f"bpc_store({operand.label}, 0, {store.label});")
    return {"body": body + stores}


def _epilogue(kernel: Kernel) -> dict[str, Any]:
    lines = Lines(kernel)
    stores = _inner_stores(kernel, lines, every=True)
    return {
        "scalars": _scalars(kernel, lines),
        "row": lines.block(_all_labels(kernel), "row"),
        **_inner(kernel, lines, stores),
    }


def _gemm(kernel: Kernel) -> dict[str, Any]:
    left, right = (kernel.operand(label) for label in kernel.sources)
    (a_rows, a_cols), (_, b_cols) = kernel.attr("shapes")
    ta, tb = bool(kernel.attr("ta")), bool(kernel.attr("tb"))
    across, along = kernel.attr("slices")
    return {
        **_epilogue(kernel),
        "accumulate": register(compute_type(left.dtype, right.dtype)),
        "left": f"{left.label}_in",
        "right": f"{right.label}_in",
        "left_strides": f"1, {render_dim(a_cols)}" if ta else f"{render_dim(a_cols)}, 1",
        "right_strides": f"1, {render_dim(b_cols)}" if tb else f"{render_dim(b_cols)}, 1",
        "m": render_dim(kernel.space[0]),
        "n": render_dim(kernel.space[1]),
        "k": render_dim(a_rows if ta else a_cols),
        "across": across,
        "along": along,
    }


_DIRECTIONS = {
    "conv2d": ("forward", "bpc_conv_forward"),
    "conv2d_input": ("input", "bpc_conv_input_gradient"),
    "conv2d_weight": ("weight", "bpc_conv_weight_gradient"),
}


def _conv2d(kernel: Kernel) -> dict[str, Any]:
    """The shape constants from whichever two of image, weight and result the kernel has."""
    first, second = (kernel.operand(label) for label in kernel.sources)
    one, two = kernel.attr("shapes")
    if kernel.skeleton == "conv2d":
        image, weight = one, two
    elif kernel.skeleton == "conv2d_input":
        image, weight = kernel.space, two
    else:
        image, weight = one, kernel.space
    (sh, sw), (ph, pw) = kernel.attr("stride"), kernel.attr("padding")
    _, channels, height, width = (extent(dim, 1) for dim in image)
    out, _, kh, kw = (extent(dim, 1) for dim in weight)
    oh, ow = output_size(height, kh, sh, ph), output_size(width, kw, sw, pw)
    shape = (channels, height, width, out, oh, ow, kh, kw, sh, sw, ph, pw)
    direction, function = _DIRECTIONS[kernel.skeleton]
    images = one[0]
    return {
        **_epilogue(kernel),
        "accumulate": register(compute_type(first.dtype, second.dtype)),
        "direction": direction,
        "call": function,
        "first": f"{first.label}_in",
        "second": f"{second.label}_in",
        "shape": ", ".join(str(number) for number in shape),
        "images": render_dim(images),
        "space": [render_dim(dim) for dim in kernel.space],
    }


_SKELETONS = {
    "flat": _flat,
    "rows": _rows,
    "chunks": _chunks,
    "columns": _columns,
    "scalar": _scalar,
    "gemm": _gemm,
    "conv2d": _conv2d,
    "conv2d_input": _conv2d,
    "conv2d_weight": _conv2d,
}

__all__ = ["F64", "Counters", "Function", "Source", "arguments", "extents", "generate"]
