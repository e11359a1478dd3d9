"""CUDA C++ from the same kernels: text, and a list of launches with their arguments.

One function serves all kernels of equal structure. The launch list says for each launch how many
blocks of how many threads run, and which tensors are its arguments; a packer turns it into
addresses, the same for the simulator and for CuPy.

Functions are found first, so that each is named and described after everything that it serves;
then they are written in the order of their first launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bpc.codegen.cuda_needs import Key, Names, Need, find_needs, function_key, name_needs
from bpc.codegen.cuda_skeletons import (
    SKELETONS,
    WARP,
    block_count,
    block_threads,
    describe_threads,
    pack_width,
    table_numbers,
)
from bpc.codegen.glossary import glossary, kept_lines
from bpc.codegen.header import describe, describe_joined, list_after, name_tail
from bpc.codegen.launches import TABLE, Launch, group_launches
from bpc.codegen.parts import (
    arguments,
    fill,
    generalise,
    pointer_name,
    pointer_type,
)
from bpc.codegen.templating import render
from bpc.codegen.wrapping import mark_places, wrap_code
from bpc.kernel import Kernel, Operand
from bpc.plan.naming import identifier
from bpc.plan.program import Entry, Program
from bpc.types import elements


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
class CudaFunction:
    """A function of the text.

    `kernels` are all that it serves; a function that joins others serves theirs and names them in
    `calls`, the one of every block first.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    threads: int
    kernels: tuple[Kernel, ...]
    is_global: bool
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaSource:
    """The text, the launches of every entry point, and the functions in the text's order."""

    text: str
    launches: Mapping[str, tuple[CudaLaunch, ...]]
    functions: tuple[CudaFunction, ...] = ()

    def function(self, name: str) -> CudaFunction:
        """A function by its name."""
        return next(function for function in self.functions if function.name == name)


def generate(title: str, program: Program, debug_lines: bool = False) -> CudaSource:
    """The CUDA file of a program and its launches.

    Args:
        title: the network's name.
        program: what is planned.
        debug_lines: let compilers and debuggers name the spec's line of each statement.
    """
    groups = {name: _group(entry, program.rows) for name, entry in program.entries.items()}
    needs = find_needs([item for found in groups.values() for item in found])
    writer = _Writer(program.rows, needs, name_needs(needs))
    launches: dict[str, tuple[CudaLaunch, ...]] = {}
    starts: dict[int, str] = {}
    for name, found in groups.items():
        starts.setdefault(len(writer.order), name)
        launches[name] = tuple(_launch(writer, kernels, launch) for kernels, launch in found)
    text = render("cuda", "program.cu.jinja", _page(title, program, launches, writer, starts))
    every = [kernel for entry in program.entries.values() for kernel in entry.kernels]
    name = f"{identifier(title)}.cu"
    text = mark_places(text, every, name) if debug_lines else wrap_code(text)
    functions = tuple(replace(f, text=wrap_code(f.text)) for f in writer.order)
    return CudaSource(text, launches, functions)


def _group(entry: Entry, rows: int) -> list[tuple[Sequence[Kernel], Launch]]:
    launches = group_launches(entry.kernels, entry.barriers, rows)
    return [(entry.kernels, launch) for launch in launches]


_ENTRIES = {
    "micro_step": "the {first}batch of a step forward and back: loss, gradient of every parameter",
    "micro_step_add": "a further batch of the same step: adds to the loss and gradients there",
    "update": "once a step: from the gradients to new weights",
    "evaluate": "the loss of a batch, with nothing kept for gradients",
    "predict": "the model's result for a batch",
}


def _page(
    title: str,
    program: Program,
    launches: Mapping[str, tuple[CudaLaunch, ...]],
    writer: _Writer,
    starts: Mapping[int, str],
) -> dict[str, object]:
    """What the file's template needs: its contents, and its functions in sections."""
    wide = any(
        elements(value.shape, program.rows) >= 1 << 31
        for entry in program.entries.values()
        for value in entry.graph.values().values()
    )
    contents = []
    for name, found in launches.items():
        kernels = program.entries[name].kernels
        # Repetitions are left out: a plan for another budget should not change the text.
        shown = [item for item in found if "_again" not in kernels[item.kernels[0]].name]
        words = dict.fromkeys(item.function for item in shown)
        first = "first " if "micro_step_add" in program.entries else ""
        contents.append(f"{name}: {_ENTRIES.get(name, '').format(first=first)}".rstrip(": "))
        contents += list_after("   launches", words)
        contents += kept_lines(program.entries[name], program)
    sections = [
        {"text": function.text, "title": starts.get(at)}
        for at, function in enumerate(writer.order)
    ]
    index = "long long" if wide else "int"
    text = "\n".join([*contents, *(function.text for function in writer.order)])
    return {
        "title": title,
        "index_type": index,
        "contents": contents,
        "functions": sections,
        "glossary": glossary(text, program.rows),
    }


# -- functions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of a generated function and what is passed for it."""

    kind: str
    name: str
    argument: Argument

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class _Function:
    """A written function; `kernel` is what it is written for."""

    name: str
    kernel: Kernel
    threads: int
    parameters: tuple[_Parameter, ...]


@dataclass(slots=True)
class _Writer:
    """Writes functions when they are first launched."""

    rows: int
    needs: Mapping[Key, Need]
    names: dict[Key, str]
    functions: dict[Key, _Function] = field(default_factory=dict)
    order: list[CudaFunction] = field(default_factory=list)

    def function(self, kernel: Kernel, inside: bool) -> _Function:
        """The function of a kernel: a __global__ one, or one that is called `inside` another."""
        key = function_key(kernel, inside)
        if key not in self.functions:
            self.functions[key] = self._write(key, inside)
        return self.functions[key]

    def _write(self, key: Key, inside: bool) -> _Function:
        """Render one function."""
        need, name = self.needs[key], self.names[key]
        kernel = generalise(need.kernels[0], need.kernels)
        template, holes = fill(SKELETONS, kernel)
        parameters = _parameters(kernel, holes)
        if inside:
            parameters.insert(0, _Parameter("int", "block", Argument("block")))
        facts = {
            "name": name,
            "header": [*describe(kernel, need.kernels, self.rows), *self._threads(key, kernel)],
            "threads": block_threads(kernel),
            "inside": inside,
            "parameters": [str(parameter) for parameter in parameters],
            "uses_rows": any(parameter.name == "rows_in" for parameter in parameters),
        }
        text = render("cuda", template, {"kernel": facts, **holes})
        passed = tuple(parameter.name for parameter in parameters)
        self.order.append(
            CudaFunction(
                name, text, passed, block_threads(kernel), tuple(need.kernels), not inside
            )
        )
        return _Function(name, kernel, block_threads(kernel), tuple(parameters))

    def _threads(self, key: Key, kernel: Kernel) -> list[str]:
        """How blocks and threads share the work, and who calls what is called."""
        need = self.needs[key]
        count = sum(block_count(part, self.rows) for part in need.side_by_side)
        blocks = f"{count} block{'s' if count > 1 else ''} of {block_threads(kernel)} threads"
        if len(need.side_by_side) > 1:
            blocks += " for all tensors together"
        callers = [
            self.names[other] for other, joined in self.needs.items() if key in joined.parts
        ]
        if need.role == "tail":
            return list_after(f"runs in {name_tail(kernel)} of the last block of", callers)
        lines = [f"{blocks}: {describe_threads(kernel)}"]
        return lines + list_after("runs in every block of", callers)

    def joined(
        self, keys: tuple[Key, ...], parameters: Sequence[_Parameter], calls: Sequence[_Call]
    ) -> str:
        """The __global__ function that calls these, with these parameters."""
        pattern = tuple(call.arguments for call in calls)
        key = (*keys, pattern)
        if key not in self.functions:
            need, main = self.needs[keys], self.functions[keys[0]]
            name = self.names[keys]
            if any(function.name == name for function in self.functions.values()):
                taken = Names({*self.names.values(), *(f.name for f in self.functions.values())})
                name = taken.claim(name)
            values = {
                "name": name,
                "calls": [{"name": call.name, "call": ", ".join(call.arguments)} for call in calls],
                "header": describe_joined(
                    [call.name for call in calls],
                    [self.functions[key].kernel for key in keys],
                    [self.needs[key].kernels[0] for key in keys],
                    need.kernels,
                ),
                "threads": main.threads,
                "parameters": [str(parameter) for parameter in parameters],
            }
            text = render("cuda", "joined.jinja", values)
            self.functions[key] = _Function(name, main.kernel, main.threads, tuple(parameters))
            names = tuple(parameter.name for parameter in parameters)
            served, called = tuple(need.kernels), tuple(call.name for call in calls)
            self.order.append(
                CudaFunction(name, text, names, main.threads, served, True, called)
            )
        return self.functions[key].name


# -- launches -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """A call inside a joined function, with the names that it passes."""

    name: str
    arguments: tuple[str, ...]


def _launch(writer: _Writer, kernels: Sequence[Kernel], launch: Launch) -> CudaLaunch:
    parts = [kernels[at] for at in launch.parts]
    main = writer.function(parts[0], inside=bool(launch.tails))
    blocks = [block_count(kernel, writer.rows) for kernel in parts]
    table = _table(parts, blocks)
    name = main.name
    passed = [_pass(parameter, parts[0], main) for parameter in main.parameters]
    if launch.tails:
        tails = [kernels[at] for at in launch.tails]
        name, passed = _join(writer, [parts[0], *tails])
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
        names = tuple(operand.value for operand in arguments(kernel))
        rows.append((names, table_numbers(kernel, first)))
        first += count
    return tuple(rows)


def _pass(parameter: _Parameter, kernel: Kernel, function: _Function) -> Argument:
    """What a launch passes for a parameter: the kernel's own tensor in the same position."""
    if parameter.argument.kind != "tensor":
        return parameter.argument
    mine = [item for item in arguments(function.kernel)]
    place = next(k for k, item in enumerate(mine) if item.label == parameter.argument.value)
    return Argument("tensor", arguments(kernel)[place].value)


def _join(writer: _Writer, kernels: Sequence[Kernel]) -> tuple[str, list[Argument]]:
    """A __global__ function that runs the main part and then the tails in the last block."""
    parameters: list[_Parameter] = []
    calls = []
    for at, kernel in enumerate(kernels):
        function = writer.function(kernel, inside=True)
        words = []
        for parameter in function.parameters:
            passed = _pass(parameter, kernel, function)
            if passed.kind == "block":
                words.append("0" if at else "blockIdx.x")
            else:
                words.append(_share(parameters, parameter, passed))
        calls.append(_Call(function.name, tuple(words)))
    parameters.append(_Parameter("unsigned*", "ticket", Argument("ticket")))
    keys = tuple(function_key(kernel, True) for kernel in kernels)
    name = writer.joined(keys, parameters, calls)
    return name, [parameter.argument for parameter in parameters]


def _share(parameters: list[_Parameter], parameter: _Parameter, passed: Argument) -> str:
    """The name under which the joined function has this argument."""
    for known in parameters:
        if known.argument == passed and known.kind == parameter.kind:
            return known.name
    taken = {known.name for known in parameters}
    name, count = parameter.name, 1
    while name in taken:
        count += 1
        name = f"{parameter.name}_{count}"
    parameters.append(_Parameter(parameter.kind, name, passed))
    return name


# -- parameters -----------------------------------------------------------------------------------


def _parameters(kernel: Kernel, holes: Mapping[str, object]) -> list[_Parameter]:
    """Tensors by type and name, or a table of them; then the rows where the text speaks of them."""
    if kernel.skeleton in TABLE:
        found = [
            _Parameter("const int64_t*", "table", Argument("table")),
            _Parameter("int", "parts", Argument("parts")),
        ]
    else:
        found = [_tensor(kernel, operand) for operand in arguments(kernel)]
    if _mentions_rows(holes):
        found.append(_Parameter("const int64_t*", "rows_in", Argument("rows")))
    return found


def _tensor(kernel: Kernel, operand: Operand) -> _Parameter:
    name = pointer_name(kernel, operand)
    return _Parameter(pointer_type(kernel, operand), name, Argument("tensor", operand.label))


def _mentions_rows(values: object) -> bool:
    if isinstance(values, str):
        return re.search(r"\brows\b", values) is not None
    if isinstance(values, Mapping):
        return any(_mentions_rows(value) for value in values.values())
    if isinstance(values, list | tuple):
        return any(_mentions_rows(value) for value in values)
    return False


__all__ = [
    "WARP",
    "Argument",
    "CudaFunction",
    "CudaLaunch",
    "CudaSource",
    "block_count",
    "generate",
    "pack_width",
]
