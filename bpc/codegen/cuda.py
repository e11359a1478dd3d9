"""CUDA C++ from the same kernels: text, and a list of launches with their arguments.

One function serves all kernels of equal structure. The launch list says for each launch how many
blocks of how many threads run, and which tensors are its arguments; a packer turns it into
addresses, the same for the simulator and for CuPy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bpc.codegen.cpu import (
    _all_labels,
    _header,
    _inner_stores,
    _plain,
    _reduction,
    _row_loads,
    _scalars,
    _unique_names,
    arguments,
)
from bpc.codegen.launches import TABLE, Launch, group_launches
from bpc.codegen.lines import Lines, offset, pointee, register, render_dim, structure
from bpc.codegen.templating import render
from bpc.kernel import Kernel, Operand, Reduction, Store
from bpc.ops.linear import output_size
from bpc.plan.program import Program
from bpc.types import BIT, Rows, compute_type, elements, extent, multiply

WARP = 32
_THREADS = {"flat": 256, "columns": 256, "scalar": WARP}
_DEFAULT_THREADS = 128
_BLOCK = 64  # rows and columns of the block of a product that one block computes


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a launch.

    `kind`: tensor (address of `value`), rows (address of the batch's row count), ticket (address
    of the ticket), table (address of the launch's table), parts (their number, a 32-bit integer).
    """

    kind: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """One launch: function, grid, block, arguments in order, and rows of its table.

    A table row holds the addresses of the named tensors, then `numbers`.
    """

    function: str
    grid: int
    threads: int
    arguments: tuple[Argument, ...]
    kernels: tuple[int, ...]
    tails: tuple[int, ...]
    table: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class CudaSource:
    """The text, and the launches of every entry point."""

    text: str
    launches: Mapping[str, tuple[CudaLaunch, ...]]


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of a generated function and what is passed for it."""

    kind: str
    name: str
    argument: Argument

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(slots=True)
class _Function:
    """A function under construction."""

    name: str
    kernel: Kernel
    inside: bool
    threads: int
    parameters: list[_Parameter]
    text: str


@dataclass(slots=True)
class _Writer:
    """Collects functions, one per structure and role."""

    rows: int
    names: list[str] = field(default_factory=list)
    functions: dict[object, _Function] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def function(self, kernel: Kernel, group: Sequence[Kernel], inside: bool) -> _Function:
        """The function of a kernel: a __global__ one, or one that is called `inside` another."""
        key = (structure(kernel), inside)
        if key not in self.functions:
            made = self._write(kernel, group, inside)
            self.functions[key] = made
            self.texts.append(made.text)
        return self.functions[key]

    def name(self, stem: str) -> str:
        """A name that no function has yet."""
        self.names.append(stem)
        return _unique_names(self.names)[-1]

    def _write(self, kernel: Kernel, group: Sequence[Kernel], inside: bool) -> _Function:
        threads = _THREADS.get(kernel.skeleton, _DEFAULT_THREADS)
        values = _SKELETONS[kernel.skeleton](kernel)
        name = self.name(kernel.name)
        parameters = _parameters(kernel, values)
        if inside:
            parameters = [_Parameter("int", "block", Argument("block")), *parameters]
        facts = {
            "name": name,
            "header": _header(kernel, group, self.rows),
            "threads": threads,
            "inside": inside,
            "parameters": [str(parameter) for parameter in parameters],
            "uses_rows": any(parameter.name == "rows_in" for parameter in parameters),
        }
        family = "conv2d" if kernel.skeleton.startswith("conv2d") else kernel.skeleton
        text = render("cuda", f"{family}.jinja", {"kernel": facts, **values})
        return _Function(name, kernel, inside, threads, parameters, text)


def generate(title: str, program: Program) -> CudaSource:
    """The CUDA file of a program and its launches."""
    writer = _Writer(program.rows)
    launches: dict[str, tuple[CudaLaunch, ...]] = {}
    for name, entry in program.entries.items():
        groups = group_launches(entry.kernels, entry.barriers, program.rows)
        launches[name] = tuple(_launch(writer, entry.kernels, group) for group in groups)
    wide = any(
        elements(value.shape, program.rows) >= 1 << 31
        for entry in program.entries.values()
        for value in entry.graph.values().values()
    )
    values = {
        "title": title,
        "index_type": "long long" if wide else "int",
        "functions": [{"text": text} for text in writer.texts],
    }
    return CudaSource(render("cuda", "program.cu.jinja", values), launches)


# -- launches -------------------------------------------------------------------------------------


def _launch(writer: _Writer, kernels: Sequence[Kernel], launch: Launch) -> CudaLaunch:
    parts = [kernels[at] for at in launch.parts]
    main = writer.function(parts[0], parts, inside=bool(launch.tails))
    blocks = [block_count(kernel, writer.rows) for kernel in parts]
    table = _table(parts, blocks)
    if not launch.tails:
        direct = tuple(_pass(parameter, parts[0], main) for parameter in main.parameters)
        return CudaLaunch(main.name, sum(blocks), main.threads, direct, launch.parts, (), table)
    tails = [kernels[at] for at in launch.tails]
    inner = [writer.function(kernel, [kernel], inside=True) for kernel in tails]
    name, passed = _join(writer, main, parts[0], list(zip(inner, tails, strict=True)))
    return CudaLaunch(
        name, sum(blocks), main.threads, tuple(passed), launch.parts, launch.tails, table
    )


def _table(
    parts: Sequence[Kernel], blocks: Sequence[int]
) -> tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]:
    if parts[0].skeleton not in TABLE:
        return ()
    rows, first = [], 0
    for kernel, count in zip(parts, blocks, strict=True):
        whole = multiply(kernel.space)
        factor = whole.factor if isinstance(whole, Rows) else whole
        names = tuple(operand.value for operand in arguments(kernel))
        rows.append((names, (factor, int(isinstance(whole, Rows)), first)))
        first += count
    return tuple(rows)


def _pass(parameter: _Parameter, kernel: Kernel, function: _Function) -> Argument:
    """What a launch passes for a parameter: the kernel's own tensor in the same position."""
    if parameter.argument.kind != "tensor":
        return parameter.argument
    mine = [item for item in arguments(function.kernel)]
    place = next(k for k, item in enumerate(mine) if item.label == parameter.argument.value)
    return Argument("tensor", arguments(kernel)[place].value)


def _join(
    writer: _Writer,
    main: _Function,
    kernel: Kernel,
    tails: Sequence[tuple[_Function, Kernel]],
) -> tuple[str, list[Argument]]:
    """A __global__ function that runs the main part and then the tails in the last block."""
    parameters: list[tuple[str, str, Argument]] = []
    calls = []
    for at, (function, used) in enumerate([(main, kernel), *tails]):
        words = []
        for parameter in function.parameters:
            passed = _pass(parameter, used, function)
            if passed.kind == "block":
                words.append("blockIdx.x" if at == 0 else "0")
                continue
            words.append(_share(parameters, parameter, passed))
        calls.append({"name": function.name, "call": ", ".join(words)})
    names = tuple(function.name for function, _ in [(main, kernel), *tails])
    key = ("joined", names)
    everything = [argument for _, _, argument in parameters] + [Argument("ticket")]
    if key not in writer.functions:
        values = {
            "name": writer.name(f"{main.name}_to_the_end"),
            "main": calls[0],
            "tails": calls[1:],
            "threads": main.threads,
            "parameters": [f"{kind} {name}" for kind, name, _ in parameters],
        }
        text = render("cuda", "joined.jinja", values)
        made = _Function(str(values["name"]), kernel, False, main.threads, [], text)
        writer.functions[key] = made
        writer.texts.append(text)
    return writer.functions[key].name, everything


def _share(
    parameters: list[tuple[str, str, Argument]], parameter: _Parameter, passed: Argument
) -> str:
    """The name under which the joined function has this argument."""
    for kind, name, argument in parameters:
        if argument == passed and kind == parameter.kind:
            return name
    taken = {name for _, name, _ in parameters}
    name, count = parameter.name, 1
    while name in taken:
        count += 1
        name = f"{parameter.name}_{count}"
    parameters.append((parameter.kind, name, passed))
    return name


def block_count(kernel: Kernel, rows: int) -> int:
    """Blocks of a kernel for the planned rows."""
    threads = _THREADS.get(kernel.skeleton, _DEFAULT_THREADS)
    warps = threads // WARP
    outer, inner = extent(kernel.outer_dim, rows), extent(kernel.inner_dim, rows)
    if kernel.skeleton == "flat":
        return _ceil(elements(kernel.space, rows), threads * pack_width(kernel))
    if kernel.skeleton == "chunks":
        return _ceil(_ceil(elements(kernel.space, rows), 4096), warps)
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


# -- parameters -----------------------------------------------------------------------------------


def _parameters(kernel: Kernel, values: Mapping[str, Any]) -> list[_Parameter]:
    """Tensors by type and name, or a table of them; then the rows where the text speaks of them."""
    if kernel.skeleton in TABLE:
        found = [
            _Parameter("const int64_t*", "table", Argument("table")),
            _Parameter("int", "parts", Argument("parts")),
        ]
    else:
        found = [_tensor(kernel, operand) for operand in arguments(kernel)]
    if _mentions_rows(values):
        found.append(_Parameter("const int64_t*", "rows_in", Argument("rows")))
    return found


def _tensor(kernel: Kernel, operand: Operand) -> _Parameter:
    read = any(operand is item for item in kernel.reads)
    kind = f"{'const ' if read else ''}{pointee(operand.dtype)}*"
    name = f"{operand.label}_in" if read else operand.label
    return _Parameter(kind, name, Argument("tensor", operand.label))


def _mentions_rows(values: object) -> bool:
    if isinstance(values, str):
        return re.search(r"\brows\b", values) is not None
    if isinstance(values, Mapping):
        return any(_mentions_rows(value) for value in values.values())
    if isinstance(values, list | tuple):
        return any(_mentions_rows(value) for value in values)
    return False


# -- skeletons ------------------------------------------------------------------------------------


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


def _bits(kernel: Kernel, lines: Lines, stores: Sequence[Store]) -> dict[str, Any]:
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


def _flat(kernel: Kernel) -> dict[str, Any]:
    lines = _PackLines(kernel)
    count = len(arguments(kernel))
    packs = [item for item in kernel.reads if item.level == "inner" and item.dtype != BIT]
    written = [item for item in kernel.writes if item.dtype != BIT]
    return {
        "scalars": _scalars(kernel, lines),
        "pointers": _table_pointers(kernel),
        "part_width": count + 3,
        "count": f"bpc_index(part[{count}]) * (part[{count + 1}] ? rows : 1)",
        "width": pack_width(kernel),
        "loads": [{"name": item.label, "type": pointee(item.dtype)} for item in packs],
        "stores": [{"name": item.label, "type": pointee(item.dtype)} for item in written],
        **_bits(kernel, lines, kernel.stores),
    }


def _table_pointers(kernel: Kernel) -> list[str]:
    lines = []
    for at, operand in enumerate(arguments(kernel)):
        read = at < len(kernel.reads)
        kind = f"{'const ' if read else ''}{pointee(operand.dtype)}*"
        name = f"{operand.label}_in" if read else operand.label
        lines.append(f"{kind} {name} = reinterpret_cast<{kind}>(part[{at}]);")
    return lines


def _rows(kernel: Kernel) -> dict[str, Any]:
    lines = Lines(kernel)
    inner = _inner_stores(kernel, lines)
    outer = [store for store in kernel.stores if store not in inner]
    steps = [_plain(_row_loads(kernel, lines))]
    for item in kernel.body:
        if isinstance(item, Reduction):
            steps.append(_reduction(item, lines))
        elif item.level == "row":
            steps.append(_plain(lines.item(item)))
    return {
        "scalars": _scalars(kernel, lines),
        "outer": render_dim(kernel.outer_dim),
        "width": render_dim(kernel.inner_dim),
        "steps": [step for step in steps if step["lines"] or step["kind"]],
        "row_stores": [lines.store(store) for store in outer],
        **_bits(kernel, lines, inner),
    }


def _chunks(kernel: Kernel) -> dict[str, Any]:
    lines = Lines(kernel)
    reduction = next(item for item in kernel.body if isinstance(item, Reduction))
    count = len(arguments(kernel))
    (store,) = kernel.stores
    return {
        "scalars": _scalars(kernel, lines),
        "pointers": _table_pointers(kernel),
        "part_width": count + 3,
        "count": f"bpc_index(part[{count}])",
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
        "target": kernel.operand(store.operand).label,
        "comment": f"{reduction.span.file}:{reduction.span.line}",
    }


def _scalar(kernel: Kernel) -> dict[str, Any]:
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
    for store in kernel.stores:
        operand = kernel.operand(store.operand)
        text = f"{operand.label}[0] = {store.label};"
        plain = f"bpc_store({operand.label}, 0, {store.label});"
        body.append(text if operand.dtype == BIT else plain)
    return {"body": body}


def _epilogue(kernel: Kernel) -> dict[str, Any]:
    lines = Lines(kernel)
    return {
        "scalars": _scalars(kernel, lines),
        "row": lines.block(_all_labels(kernel), "row"),
        **_bits(kernel, lines, kernel.stores),
    }


def _gemm(kernel: Kernel) -> dict[str, Any]:
    left, right = (kernel.operand(label) for label in kernel.sources)
    (a_rows, a_cols), (_, b_cols) = kernel.attr("shapes")
    ta, tb = bool(kernel.attr("ta")), bool(kernel.attr("tb"))
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
    }


_DIRECTIONS = {
    "conv2d": ("forward", "bpc_conv_forward"),
    "conv2d_input": ("input", "bpc_conv_input_gradient"),
    "conv2d_weight": ("weight", "bpc_conv_weight_gradient"),
}


def _conv2d(kernel: Kernel) -> dict[str, Any]:
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
        **_epilogue(kernel),
        "accumulate": register(compute_type(first.dtype, second.dtype)),
        "direction": direction,
        "call": function,
        "first": f"{first.label}_in",
        "second": f"{second.label}_in",
        "shape": ", ".join(str(number) for number in shape),
        "images": render_dim(one[0]),
        "space": [render_dim(dim) for dim in kernel.space],
        "width": _line_width(kernel),
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
