"""One PTX instruction as a C++ statement, once its form is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bpc.errors import Diagnostic, Note, ToolError
from bpc.runtime.sim.forms import BOOLEAN, CPP_TYPES, Match, widened
from bpc.runtime.sim.ptx import UNKNOWN_FORM, Instruction

_SPECIAL = {
    "%tid": "sim_here.thread",
    "%ntid": "sim_here.block_size",
    "%ctaid": "sim_here.block",
    "%nctaid": "sim_here.grid_size",
}
_LANES = {
    "%laneid": "sim_here.lane",
    "%lanemask_eq": "(1u << sim_here.lane)",
    "%lanemask_lt": "((1u << sim_here.lane) - 1)",
    "%lanemask_le": "((2u << sim_here.lane) - 1)",
    "%lanemask_gt": "~((2u << sim_here.lane) - 1)",
    "%lanemask_ge": "~((1u << sim_here.lane) - 1)",
    "WARP_SZ": "32u",
}
_NUMBER = re.compile(r"^-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_FLOAT = re.compile(r"^0[fF]([0-9a-fA-F]{8})$")
_DOUBLE = re.compile(r"^0[dD]([0-9a-fA-F]{16})$")
_ADDRESS = re.compile(r"^\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]$")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a kernel: what stands for an address, and its registers."""

    addresses: frozenset[str]
    registers: frozenset[str]


def identifier(name: str) -> str:
    """A C++ name that no header has."""
    return "v_" + re.sub(r"\W", "_", name.removeprefix("%"))


def literal(text: str) -> str | None:
    """A floating-point or integer constant in C++; None if it is none."""
    single, double = _FLOAT.match(text), _DOUBLE.match(text)
    if single:
        return f"sim_bits<float>(0x{single[1]}u)"
    if double:
        return f"sim_bits<double>(uint64_t(0x{double[1]}ull))"
    if _NUMBER.match(text):
        return text.rstrip("U") + ("ll" if text.startswith("-") else "ull")
    return None


def unknown_form(instruction: Instruction, part: str = "") -> ToolError:
    """The error of an instruction that the table has no form for."""
    what = (
        f"'{part}' in PTX form '{instruction.opcode}'"
        if part
        else f"PTX form '{instruction.opcode}'"
    )
    notes = tuple(Note(f"comes from {place}") for place in instruction.chain)
    message = f"{what} is not supported by the simulator"
    return ToolError([Diagnostic(UNKNOWN_FORM, message, instruction.span, notes)])


@dataclass(frozen=True, slots=True)
class Use:
    """An instruction with the form that fits it. `site` numbers it within the file."""

    found: Match
    instruction: Instruction
    names: Names
    site: int

    @property
    def type(self) -> str:
        """The form's type."""
        return self.found.names["T"]

    @property
    def operands(self) -> tuple[str, ...]:
        """The operands as written."""
        return self.instruction.operands

    @property
    def choice(self) -> str:
        """What the form's `op` stands for."""
        name = self.found.names["op"]
        return self.found.form.choices.get(name, name)

    def has(self, part: str) -> bool:
        """Whether the opcode has this part."""
        return part in self.instruction.opcode.split(".")

    def statement(self) -> str:
        """The instruction in C++, without its guard."""
        code = self.found.form.code
        return SHAPES[code[1:]](self) if code.startswith("@") else self._assign()

    def read(self, operand: str, element: str) -> str:
        """A value as a PTX type: a register, a constant, or the address of a name."""
        wanted = CPP_TYPES[element]
        if operand.startswith("!"):
            return f"!{identifier(operand[1:])}"
        constant = literal(operand)
        if constant:
            keeps_bits = operand[:2] in ("0f", "0F", "0d", "0D") and element[0] != "f"
            return f"ptx_as<{wanted}>({constant})" if keeps_bits else f"{wanted}({constant})"
        return f"ptx_as<{wanted}>({self._place(operand)})"

    def _place(self, operand: str) -> str:
        if operand in self.names.registers:
            return identifier(operand)
        register, _, axis = operand.partition(".")
        if register in _SPECIAL and axis in ("x", "y", "z"):
            return f"{_SPECIAL[register]}.{axis}"
        if operand in _LANES:
            return _LANES[operand]
        base, _, offset = operand.partition("+")
        if base in self.names.addresses:
            return f"(uint64_t(&{identifier(base)}) + ({offset or 0}))"
        raise unknown_form(self.instruction, operand)

    def set(self, place: str, element: str, value: str) -> str:
        """A statement that gives a register a value of a PTX type."""
        if place == "_":
            return f"(void)({value});"
        return f"ptx_set<{CPP_TYPES[element]}>({identifier(place)}, {value});"

    def address(self, operand: str) -> str:
        """`[%rd1+8]` as a 64-bit address."""
        found = _ADDRESS.match(operand)
        if not found:
            raise unknown_form(self.instruction, operand)
        text = f"{self.read(found[1], 'u64')} + ({found[2] or 0})"
        return f"ptx_shared_address({text})" if self.has("shared") else f"({text})"

    def _assign(self) -> str:
        kinds = [self._kind(kind) for kind in self.found.form.operands.split()]
        if len(kinds) != len(self.operands):
            raise unknown_form(self.instruction, ", ".join(self.operands))
        values = {
            letter: operand if kind == "-" else self.read(operand, kind)
            for letter, kind, operand in zip("abcd", kinds[1:], self.operands[1:], strict=False)
        }
        value = self.found.form.code.format(**values, **self._open_names())
        return self.set(self.operands[0], kinds[0], value) if kinds else f"{value};"

    def _kind(self, spelled: str) -> str:
        names = self.found.names
        if spelled == "T":
            return names["T"]
        if spelled == "W":
            return widened(names["T"])
        return {"S": names.get("source", ""), "{to}": names.get("to", "")}.get(spelled, spelled)

    def _open_names(self) -> dict[str, str]:
        names = dict(self.found.names)
        if "op" in names:
            names["op"] = self.choice
        if "T" in names:
            names["W"] = CPP_TYPES.get(widened(names["T"]), "") if names["T"] != "pred" else ""
            names["T"] = CPP_TYPES[names["T"]]
        return names


# ---- shapes: forms whose operands are not plain values -----------------------------------------


def _items(group: str) -> tuple[str, ...]:
    """The registers of `{%r1, %r2}`, or the one that stands alone."""
    return tuple(item.strip() for item in group.strip("{}").split(","))


def _move(use: Use) -> str:
    target, source = use.operands
    if target.startswith("{"):
        return _unpack(use, _items(target), source)
    if source.startswith("{"):
        items = _items(source)
        part = int(use.type[1:]) // len(items)
        joined = " | ".join(
            f"(uint64_t({use.read(item, f'b{part}')}) << {index * part})"
            for index, item in enumerate(items)
        )
        return use.set(target, use.type, f"{CPP_TYPES[use.type]}({joined})")
    return use.set(target, use.type, use.read(source, use.type))


def _unpack(use: Use, items: Sequence[str], source: str) -> str:
    part = int(use.type[1:]) // len(items)
    code = [f"const uint64_t whole = {use.read(source, use.type)};"]
    for index, item in enumerate(items):
        code.append(use.set(item, f"b{part}", f"uint{part}_t(whole >> {index * part})"))
    return "{ " + " ".join(code) + " }"


def _convert_address(use: Use) -> str:
    """All spaces share the host's addresses; a shared one may have lost its high half."""
    value = use.read(use.operands[1], use.type)
    if use.has("shared") and not use.has("to"):
        value = f"ptx_shared_address({value})"
    return use.set(use.operands[0], use.type, value)


def _compare_as(condition: str) -> Callable[[Use], str]:
    """Comparisons; the condition is over a, b and the choice `op`."""

    def shape(use: Use) -> str:
        first, *rest = use.operands
        values = {name: use.read(text, use.type) for name, text in zip("ab", rest, strict=False)}
        op = use.choice if "op" in use.found.names else ""
        code = condition.format(op=op, **values)
        join = next((sign for name, sign in BOOLEAN.items() if use.has(name)), None)
        if join:
            code = f"({code}) {join} {use.read(rest[2], 'pred')}"
        target, _, complement = first.partition("|")
        second = use.set(complement, "pred", f"!{identifier(target)}") if complement else ""
        return use.set(target, "pred", f"bool({code})") + second

    return shape


def _count(use: Use) -> int:
    return 4 if use.has("v4") else 2 if use.has("v2") else 1


def _is_strong(use: Use) -> bool:
    return use.has("volatile") or use.has("relaxed") or use.has("acquire") or use.has("release")


def _load_with(function: str, is_checked: bool) -> Callable[[Use], str]:
    def shape(use: Use) -> str:
        targets = _items(use.operands[0])
        kind = "SIM_VOLATILE_READ" if _is_strong(use) else "SIM_READ"
        given = f"{use.address(use.operands[1])}{f', {kind}' if is_checked else ''}"
        code = [f"const auto v = {function}<{CPP_TYPES[use.type]}, {_count(use)}>({given});"]
        code += [use.set(name, use.type, f"v.item[{i}]") for i, name in enumerate(targets)]
        return "{ " + " ".join(code) + " }"

    return shape


def _load(use: Use) -> str:
    checked = not use.has("local")
    return _load_with("ptx_load" if checked else "ptx_load_unchecked", checked)(use)


def _store(use: Use) -> str:
    values = ", ".join(use.read(item, use.type) for item in _items(use.operands[1]))
    vector = f"ptx_vector<{CPP_TYPES[use.type]}, {_count(use)}>{{{{{values}}}}}"
    kind = "SIM_VOLATILE_WRITE" if _is_strong(use) else "SIM_WRITE"
    address = use.address(use.operands[0])
    if use.has("local"):
        return f"ptx_store_unchecked({address}, {vector});"
    return f"ptx_store({address}, {vector}, {kind});"


def _atomic(use: Use) -> str:
    return use.set(use.operands[0], use.type, _atomic_call(use, use.operands[1:]))


def _atomic_call(use: Use, operands: Sequence[str]) -> str:
    values = ", ".join(use.read(operand, use.type) for operand in operands[1:])
    return f"atomic{use.choice}(({CPP_TYPES[use.type]}*){use.address(operands[0])}, {values})"


def _one_barrier(use: Use, operands: Sequence[str]) -> None:
    """Barrier 0 of all threads is what `__syncthreads` is; others are not supported."""
    if tuple(operands) != ("0",):
        raise unknown_form(use.instruction, ", ".join(operands))


def _barrier(use: Use) -> str:
    _one_barrier(use, use.operands)
    return f"sim_barrier(SIM_PLAIN, 0, {use.site});"


def _barrier_result(use: Use) -> str:
    target, *which, predicate = use.operands
    _one_barrier(use, which)
    vote, element = ("SIM_COUNT", "u32") if use.has("popc") else (use.choice, "pred")
    value = f"sim_barrier({vote}, {use.read(predicate, 'pred')}, {use.site})"
    return use.set(target, element, f"{CPP_TYPES[element]}({value})")


def _shuffle(use: Use) -> str:
    target, value, by, clamp, mask = use.operands
    target, _, in_range = target.partition("|")
    given = [use.read(text, "u32") for text in (value, by, clamp, mask)]
    code = use.set(target, "b32", f"ptx_shuffle({use.choice}, {', '.join(given)})")
    if in_range:  # first, while the operands still hold
        code = (
            use.set(in_range, "pred", f"ptx_shuffle_in_range({use.choice}, {given[1]}, {given[2]})")
            + code
        )
    return code


SHAPES: dict[str, Callable[[Use], str]] = {
    "move": _move,
    "address": _convert_address,
    "compare": _compare_as("{a} {op} {b}"),
    "compare_unequal": _compare_as("{a} < {b} || {a} > {b}"),
    "compare_or_nan": _compare_as("ptx_unordered({a}, {b}) || {a} {op} {b}"),
    "compare_nan": _compare_as("ptx_unordered({a}, {b})"),
    "compare_numbers": _compare_as("!ptx_unordered({a}, {b})"),
    "load": _load,
    "load_parameter": _load_with("ptx_load_unchecked", False),
    "store": _store,
    "atomic": _atomic,
    "reduce": lambda use: _atomic_call(use, use.operands) + ";",
    "barrier": _barrier,
    "barrier_count": _barrier_result,
    "barrier_vote": _barrier_result,
    "syncwarp": lambda use: (
        f"sim_warp(SIM_SYNCWARP, {use.read(use.operands[0], 'u32')}, 0, 0, 32);"
    ),
    "shuffle": _shuffle,
    "branch": lambda use: f"goto {identifier(use.operands[0])};",
    "return": lambda use: "return;",
}
