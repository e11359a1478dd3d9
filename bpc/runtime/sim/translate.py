"""PTX to C++: each instruction by the table of forms, each kernel as one function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bpc.runtime.sim.emit import Names, Use, identifier, literal, unknown_form
from bpc.runtime.sim.forms import CPP_TYPES, find_form
from bpc.runtime.sim.nvrtc import DETAILS, compile_nvrtc
from bpc.runtime.sim.ptx import (
    Array,
    Chain,
    Instruction,
    Kernel,
    Label,
    ParameterDeclaration,
    PtxFile,
    Registers,
    Scope,
    Statement,
    read_ptx,
)
from bpc.runtime.sim.source import (
    KernelText,
    SharedArray,
    cell_shift,
    define_dynamic,
    strip_comments,
)
from bpc.runtime.sim.symbols import TRANSLATED, plain_name

FLAGS = ("-fwrapv",)  # PTX integers wrap around


FLAGS = ("-fwrapv",)  # PTX integers wrap around


def translate_cuda(text: str, arch: str, name: str) -> KernelText:
    """A .cu text through NVRTC to C++.

    Raises:
        ToolError: NVRTC is missing or refuses the text, or its PTX has an unknown form.
    """
    result = compile_nvrtc(text, arch, DETAILS, name)
    assert result.ptx is not None
    shift = cell_shift(strip_comments(text))
    return replace(translate_ptx(result.ptx, name), cell_shift=shift)


def translate_ptx(text: str, name: str = "kernels.cu") -> KernelText:
    """A PTX text to C++.

    Raises:
        ToolError: a form that the table does not have; names it and its line.
    """
    file = read_ptx(text, name.removesuffix(".cu") + ".ptx")
    lines: list[Chain] = [()]
    parts = ['#include "sim_ptx.h"', *_memory(file)]
    for kernel in file.kernels:
        parts.append(_Function(kernel, _names(file, kernel), lines).text())
    parts.append('#line 1 "sim_footer"')
    parts += [f"SIM_EXPORT({k.name}, {identifier(k.name)})" for k in file.kernels]
    shared = (*file.shared, *(array for kernel in file.kernels for array in kernel.shared))
    return KernelText(
        "\n".join(parts) + "\n",
        tuple(kernel.name for kernel in file.kernels),
        tuple(_shared_array(array) for array in shared),
        _shared_array(file.dynamic[0]) if file.dynamic else None,
        0,
        FLAGS,
        tuple(lines),
    )


# ---- memory ----------------------------------------------------------------------------------


def _array_bytes(array: Array) -> int:
    return array.count * int(re.sub(r"^\D+", "", array.element)) // 8


def _shared_array(array: Array) -> SharedArray:
    nbytes = _array_bytes(array) if array.count else None
    return SharedArray(identifier(array.name), plain_name(array.name), array.alignment, nbytes)


def _memory(file: PtxFile) -> Iterator[str]:
    for array in file.memory:
        values = ", ".join(_initial(value) for value in array.values.strip("{} \n").split(","))
        yield (
            f"alignas({array.alignment}) static {CPP_TYPES[array.element]} "
            f"{identifier(array.name)}[{array.count}] = {{{values if array.values else ''}}};"
        )
    shared = (*file.shared, *(array for kernel in file.kernels for array in kernel.shared))
    for array in shared:
        yield f"thread_local ptx_shared<{_array_bytes(array)}> {identifier(array.name)};"
    if file.dynamic:
        names = [identifier(array.name) for array in file.dynamic]
        yield define_dynamic(names)
        for name in names:
            yield f'extern "C" thread_local unsigned char {name}[];'


def _initial(value: str) -> str:
    text = value.strip()
    return literal(text) or text


# ---- kernels ---------------------------------------------------------------------------------


def _names(file: PtxFile, kernel: Kernel) -> Names:
    """What a name without a register's declaration may stand for in a kernel."""
    arrays = (*file.memory, *file.shared, *file.dynamic, *kernel.shared, *kernel.local)
    addresses = {array.name for array in arrays} | {p.name for p in kernel.parameters}
    registers = [s.names for s in kernel.body if isinstance(s, Registers)]
    return Names(frozenset(addresses), frozenset(name for group in registers for name in group))


def _parameter_type(parameter: ParameterDeclaration) -> str:
    if parameter.nbytes:
        return f"ptx_bytes<{parameter.nbytes}, {max(parameter.alignment, 1)}>"
    return CPP_TYPES[parameter.element]


@dataclass(frozen=True, slots=True)
class _Function:
    """One kernel. `lines` gets the source lines of each instruction, in order of emission."""

    kernel: Kernel
    names: Names
    lines: list[Chain]

    def text(self) -> str:
        """The whole function."""
        parameters = ", ".join(
            f"{_parameter_type(p)} {identifier(p.name)}" for p in self.kernel.parameters
        )
        body = [f"static void {identifier(self.kernel.name)}({parameters}) {{"]
        for array in self.kernel.local:
            name, nbytes = identifier(array.name), _array_bytes(array)
            body.append(f"alignas({array.alignment}) unsigned char {name}[{nbytes}];")
        body += [self._statement(statement) for statement in self.kernel.body]
        return "\n".join([*body, "}"])

    def _statement(self, statement: Statement) -> str:
        match statement:
            case Registers():
                names = ", ".join(identifier(name) for name in statement.names)
                return f"{CPP_TYPES[statement.element]} {names};"
            case Label():
                return f"{identifier(statement.name)}:;"
            case Scope():
                return statement.brace
            case Instruction():
                return self._instruction(statement)

    def _instruction(self, instruction: Instruction) -> str:
        found = find_form(instruction.opcode)
        if found is None:
            raise unknown_form(instruction)
        number = len(self.lines)
        self.lines.append(instruction.chain)
        code = Use(found, instruction, self.names, number).statement()
        if instruction.guard:
            negated = instruction.guard.startswith("!")
            condition = ("!" if negated else "") + identifier(instruction.guard.lstrip("!"))
            code = f"if ({condition}) {{ {code} }}"
        return f'#line {number} "{TRANSLATED}"\n{code}'
