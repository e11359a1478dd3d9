"""What the text of a kernel is made of on every target: names, arguments, holes of templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bpc.codegen.lines import Lines, pointee, register, render_dim
from bpc.kernel import (
    RESERVED,
    Extent,
    Index,
    Item,
    Kernel,
    Operand,
    Reduction,
    Statement,
    Store,
)
from bpc.ops.linear import output_size
from bpc.plan.naming import shorten
from bpc.types import BIT, compute_type, extent, multiply

UPDATES = ("flat", "chunks")
"""Skeletons whose functions serve tensors of any size, as the parts of an update do."""

LIBRARY_FUNCTIONS = frozenset(
    [
        "norm", "norm3d", "norm4d", "rnorm", "hypot", "exp", "exp2", "exp10", "expm1",
        "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt", "sin", "cos", "tan",
        "sinh", "cosh", "tanh", "asin", "acos", "atan", "erf", "erfc", "pow", "fma", "fmod",
        "min", "max", "abs", "fabs", "floor", "ceil", "round", "trunc", "rint", "clock",
        "printf", "malloc", "free", "memcpy", "memset", "assert", "signbit", "isnan",
        "isinf",
    ]
)
"""Functions of CUDA and C that a kernel must not be called after."""

Holes = dict[str, Any]


# -- names ----------------------------------------------------------------------------------------


def common_name(group: Sequence[Kernel]) -> str:
    """The words that all names share (`adam` of adam_fc1_weight, adam_fc2_bias), else the first.

    Names of different lengths share a meaning only where each begins with it, as updates do.
    """
    names = [kernel.name.split("_") for kernel in group]
    updates = group[0].skeleton in UPDATES
    if not updates and len({len(words) for words in names}) > 1:
        return group[0].name
    columns = zip(*names, strict=False)
    shared = "_".join(words[0] for words in columns if len(set(words)) == 1)
    return group[0].name if not shared or shared[0].isdigit() else shared


def function_name(name: str) -> str:
    """The name, with a suffix where it belongs to a library or to the text itself."""
    taken = name.startswith("bpc_") or name in RESERVED or name in LIBRARY_FUNCTIONS
    return f"{name.removeprefix('bpc_')}_kernel" if taken else name


def unique_names(names: Sequence[str]) -> list[str]:
    """Names that differ: a later `adam` becomes `adam_2`, or the first number that is free."""
    unique: list[str] = []
    for name in names:
        name = function_name(name)
        label, count = name, 1
        while label in unique or (count > 1 and label in names):
            count += 1
            label = shorten(f"{name}_{count}")
        unique.append(label)
    return unique


def generalise(kernel: Kernel, group: Sequence[Kernel]) -> Kernel:
    """The kernel in words that fit all that its function serves: `grad_parameter`.

    Only where the group's names differ in the parameter alone, as those of an update do.
    """
    served = list(dict.fromkeys(item.name for item in group))
    stem = f"{common_name(group)}_"
    own = kernel.name.removeprefix(stem)
    updates = kernel.skeleton in UPDATES and len(served) > 1
    if not updates or not own or not all(name.startswith(stem) for name in served):
        return kernel
    labels = [item.label for item in (*kernel.reads, *kernel.writes, *kernel.body)]
    renamed = {label: _with_word(label, own, "parameter") for label in labels}
    if len(set(renamed.values())) < len(set(labels)):
        return kernel
    return _rename(kernel, lambda label: renamed.get(label, label), f"{len(served) - 1} more")


def _with_word(label: str, own: str, word: str) -> str:
    """The label with `own` replaced where it stands between underscores."""
    return f"_{label}_".replace(f"_{own}_", f"_{word}_").strip("_")


def _rename(kernel: Kernel, name: Callable[[str], str], more: str) -> Kernel:
    def item(old: Item) -> Item:
        if isinstance(old, Statement):
            names = tuple((variable, name(label)) for variable, label in old.names)
            return replace(old, label=name(old.label), names=names, op=f"{old.op} and {more}")
        if isinstance(old, Index):
            return replace(old, label=name(old.label), first=old.first and name(old.first))
        if isinstance(old, Extent):
            return replace(old, label=name(old.label))
        return replace(old, label=name(old.label), source=name(old.source))

    return replace(
        kernel,
        reads=tuple(replace(operand, label=name(operand.label)) for operand in kernel.reads),
        writes=tuple(replace(operand, label=name(operand.label)) for operand in kernel.writes),
        body=tuple(item(old) for old in kernel.body),
        stores=tuple(Store(name(s.label), name(s.operand)) for s in kernel.stores),
        sources=tuple(name(label) for label in kernel.sources),
    )


# -- arguments ------------------------------------------------------------------------------------


def arguments(kernel: Kernel) -> tuple[Operand, ...]:
    """The tensors of a kernel in the order of its offsets: what it reads, then what it writes."""
    return (*kernel.reads, *kernel.writes)


def is_read(kernel: Kernel, operand: Operand) -> bool:
    """Whether the kernel only reads through this operand."""
    return any(operand is item for item in kernel.reads)


def pointer_type(kernel: Kernel, operand: Operand) -> str:
    """`const float*` for what is read, `float*` for what is written."""
    return f"{'const ' if is_read(kernel, operand) else ''}{pointee(operand.dtype)}*"


def pointer_name(kernel: Kernel, operand: Operand) -> str:
    """The name of the pointer: the operand's own, and `_in` where values are loaded from it."""
    return f"{operand.label}_in" if is_read(kernel, operand) else operand.label


# -- lines ----------------------------------------------------------------------------------------


def plain_step(lines: list[str]) -> Holes:
    """Lines that are no reduction, as a step of a row."""
    return {"kind": "", "lines": lines}


def all_labels(kernel: Kernel) -> list[str]:
    """Everything that the kernel stores or reduces."""
    stored = [store.label for store in kernel.stores]
    return stored + [item.source for item in kernel.body if isinstance(item, Reduction)]


def scalar_lines(kernel: Kernel, lines: Lines) -> list[str]:
    """Loads and statements that do not depend on the position."""
    return lines.block(all_labels(kernel), "scalar")


def inner_stores(kernel: Kernel) -> list[Store]:
    """Stores of one value per element."""
    return [s for s in kernel.stores if kernel.operand(s.operand).level == "inner"]


def row_loads(kernel: Kernel, lines: Lines) -> list[str]:
    """Loads of what differs from row to row."""
    needed = [item for item in kernel.reads if item.level == "row"]
    return [lines.load(item) for item in needed if item.label not in kernel.sources]


def only_reduction(kernel: Kernel) -> Reduction:
    """The one reduction of a kernel over chunks or columns."""
    return next(item for item in kernel.body if isinstance(item, Reduction))


def reduction_holes(item: Reduction, lines: Lines, over: str = "the row") -> Holes:
    """A reduction along c, as a step of a row."""
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
        "comment": f"{item.kind} over {over}, {item.span.file}:{item.span.line}",
    }


# -- holes ----------------------------------------------------------------------------------------


def row_holes(kernel: Kernel, lines: Lines) -> Holes:
    """Per row: its loads, then each reduction and row statement in order; and the row's stores."""
    inner = inner_stores(kernel)
    steps = [plain_step(row_loads(kernel, lines))]
    outer = render_dim(kernel.outer_dim)
    over = "all c" if outer == "1" else "the row"
    for item in kernel.body:
        if isinstance(item, Reduction):
            steps.append(reduction_holes(item, lines, over))
        elif item.level == "row":
            steps.append(plain_step(lines.item(item)))
    return {
        "scalars": scalar_lines(kernel, lines),
        "outer": outer,
        "width": render_dim(kernel.inner_dim),
        "steps": [step for step in steps if step["lines"] or step["kind"]],
        "row_stores": [lines.store(store) for store in kernel.stores if store not in inner],
    }


def chunk_holes(kernel: Kernel, lines: Lines) -> Holes:
    """One reduction of a chunk of the tensor."""
    (store,) = kernel.stores
    return {
        "scalars": scalar_lines(kernel, lines),
        "reduction": reduction_holes(only_reduction(kernel), lines, "the chunk"),
        "target": kernel.operand(store.operand).label,
    }


def column_holes(kernel: Kernel) -> Holes:
    """A sum over the reduced part of r for each column."""
    lines = Lines(kernel)
    reduction = only_reduction(kernel)
    first, count = kernel.attr("first"), kernel.attr("count")
    (store,) = kernel.stores
    wanted = [reduction.source]
    return {
        "scalars": scalar_lines(kernel, lines),
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


def scalar_holes(kernel: Kernel) -> Holes:
    """All statements in order; sums over a few partial results are loops of their own.

    Everything is loaded first, since a result may take the place of a state that others still
    need; each result is stored as soon as it is there, so that few values are held at once.
    """
    lines = Lines(kernel)
    summed = {item.source for item in kernel.body if isinstance(item, Reduction)}
    body = [lines.load(item) for item in kernel.reads if item.label not in summed]
    for item in kernel.body:
        if isinstance(item, Reduction):
            kind = register(item.accumulate)
            call = f"bpc_serial_sum<{kind}>({item.source}_in, {item.count})"
            body.append(f"const {kind} {item.label} = {call};")
        else:
            body.extend(lines.item(item))
        body.extend(_scalar_store(kernel, s) for s in kernel.stores if s.label == item.label)
    return {"body": body}


def _scalar_store(kernel: Kernel, store: Store) -> str:
    operand = kernel.operand(store.operand)
    if operand.dtype == BIT:
        return f"{operand.label}[0] = {store.label};"
    return f"bpc_store({operand.label}, 0, {store.label});"


def epilogue_holes(kernel: Kernel, lines: Lines) -> Holes:
    """What a product's finished sums still need that does not depend on the column."""
    return {
        "scalars": scalar_lines(kernel, lines),
        "row": lines.block(all_labels(kernel), "row"),
    }


def gemm_holes(kernel: Kernel) -> Holes:
    """The factors of a matrix product and its sizes m, n, k."""
    left, right = (kernel.operand(label) for label in kernel.sources)
    (a_rows, a_cols), (_, b_cols) = kernel.attr("shapes")
    ta, tb = bool(kernel.attr("ta")), bool(kernel.attr("tb"))
    return {
        "accumulate": register(compute_type(left.dtype, right.dtype)),
        "left": f"{left.label}_in",
        "right": f"{right.label}_in",
        "left_strides": f"1, {render_dim(a_cols)}" if ta else f"{render_dim(a_cols)}, 1",
        "right_strides": f"1, {render_dim(b_cols)}" if tb else f"{render_dim(b_cols)}, 1",
        "m": render_dim(kernel.space[0]),
        "n": render_dim(kernel.space[1]),
        "k": render_dim(a_rows if ta else a_cols),
    }


_DIRECTIONS = {
    "conv2d": ("forward", "bpc_conv_forward"),
    "conv2d_input": ("input", "bpc_conv_input_gradient"),
    "conv2d_weight": ("weight", "bpc_conv_weight_gradient"),
}


def conv2d_holes(kernel: Kernel) -> Holes:
    """The shape constants from whichever two of image, weight and result the kernel has."""
    first, second = (kernel.operand(label) for label in kernel.sources)
    one, two = kernel.attr("shapes")
    image = kernel.space if kernel.skeleton == "conv2d_input" else one
    weight = kernel.space if kernel.skeleton == "conv2d_weight" else two
    (sh, sw), (ph, pw) = kernel.attr("stride"), kernel.attr("padding")
    _, channels, height, width = (extent(dim, 1) for dim in image)
    out, _, kh, kw = (extent(dim, 1) for dim in weight)
    oh, ow = output_size(height, kh, sh, ph), output_size(width, kw, sw, pw)
    shape = (channels, height, width, out, oh, ow, kh, kw, sh, sw, ph, pw)
    direction, function = _DIRECTIONS[kernel.skeleton]
    return {
        "accumulate": register(compute_type(first.dtype, second.dtype)),
        "direction": direction,
        "call": function,
        "first": f"{first.label}_in",
        "second": f"{second.label}_in",
        "shape": ", ".join(str(number) for number in shape),
        "images": render_dim(one[0]),
        "space": [render_dim(dim) for dim in kernel.space],
    }


def fill(skeletons: Mapping[str, Callable[[Kernel], Holes]], kernel: Kernel) -> tuple[str, Holes]:
    """The template of a kernel's skeleton and what goes into its holes."""
    family = "conv2d" if kernel.skeleton.startswith("conv2d") else kernel.skeleton
    return f"{family}.jinja", skeletons[kernel.skeleton](kernel)


def unique_by_name(kernels: Iterable[Kernel]) -> list[Kernel]:
    """The kernels without those whose name came before."""
    found: dict[str, Kernel] = {}
    for kernel in kernels:
        found.setdefault(kernel.name, kernel)
    return list(found.values())
