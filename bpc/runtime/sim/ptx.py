"""Reads PTX as NVRTC writes it: kernels, their parameters, memory, registers and instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bpc.errors import Span, ToolError
from bpc.runtime.sim.reports import Place

UNKNOWN_FORM = "BPC0626"

Chain = tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Memory with a name: shared, constant, global or local. `values` initialise it."""

    name: str
    element: str  # a PTX type, without its dot
    count: int
    alignment: int
    values: str = ""


@dataclass(frozen=True, slots=True)
class ParameterDeclaration:
    """A kernel's parameter; `nbytes` of a struct, 0 of a number."""

    name: str
    element: str
    nbytes: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, with the source lines that it came from, innermost first."""

    opcode: str
    operands: tuple[str, ...]
    guard: str  # "", "%p1" or "!%p1"
    span: Span  # in the PTX text
    chain: Chain


@dataclass(frozen=True, slots=True)
class Label:
    """A place to branch to."""

    name: str


@dataclass(frozen=True, slots=True)
class Scope:
    """A brace: `{` or `}`."""

    brace: str


@dataclass(frozen=True, slots=True)
class Registers:
    """Registers of one type."""

    element: str
    names: tuple[str, ...]


Statement = Instruction | Label | Scope | Registers


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry."""

    name: str
    parameters: tuple[ParameterDeclaration, ...]
    body: tuple[Statement, ...]
    shared: tuple[Array, ...]
    local: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class PtxFile:
    """A whole text."""

    kernels: tuple[Kernel, ...]
    memory: tuple[Array, ...]  # global and constant
    shared: tuple[Array, ...]
    dynamic: tuple[Array, ...]  # extern shared; of no count


_PART = re.compile(
    r"\s*(?:(?P<location>\.loc\s[^\n]*)|(?P<brace>[{}])|(?P<label>[\w$]+):(?!:)|(?P<text>[^;]+);)"
)
_ARRAY = re.compile(
    r"^(?:\.visible\s+|\.extern\s+|\.weak\s+)*\.(?P<space>global|const|shared|local)"
    r"\s+(?:\.align\s+(?P<alignment>\d+)\s+)?\.(?P<element>\w+)\s+(?P<name>[\w$]+)"
    r"(?P<extent>\[\d*\])?(?:\s*=\s*(?P<values>.*))?$",
    re.S,
)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<before>\d+)\s+)?\.(?P<element>\w+)(?:\s+\.ptr)?"
    r"(?:\s+\.(?:global|const|shared|local))?(?:\s+\.align\s+\d+)?\s+(?P<name>[\w$]+)"
    r"(?:\[(?P<nbytes>\d+)\])?"
)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)[^{]*\{")
_REGISTERS = re.compile(r"^\.reg\s+\.(\w+)\s+(.*)$", re.S)
_RANGE = re.compile(r"^(%?[\w$]+)<(\d+)>$")
_INSTRUCTION = re.compile(r"^(?:@(!?%?[\w$]+)\s+)?([a-zA-Z][\w.:]*)\s*(.*)$", re.S)
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(slots=True)
class Lines:
    """Follows `.loc`: which source lines the next instruction has.

    `.loc` names one level of inlining; the place inlined into may itself have been named before.
    """

    files: dict[str, str]
    current: Chain = ()
    parents: dict[tuple[str, ...], Chain] = field(default_factory=dict)

    def move(self, directive: str) -> None:
        """Read one `.loc`."""
        words = directive.replace(",", " ").split()[1:]
        file, line, column = words[:3]
        if line == "0":  # the compiler does not know; the last line is the best guess
            return
        parent: Chain = ()
        if "inlined_at" in words:
            at = words.index("inlined_at") + 1
            key = tuple(words[at : at + 3])
            parent = (self._place(key[0], key[1]), *self.parents.get(key, ()))
        self.parents[file, line, column] = parent
        self.current = (self._place(file, line), *parent)

    def _place(self, file: str, line: str) -> Place:
        return Place(self.files.get(file, "?"), int(line))


def read_ptx(text: str, name: str) -> PtxFile:
    """Parse a PTX text.

    Args:
        text: what NVRTC made, with `-lineinfo`.
        name: what spans call the text.

    Raises:
        ToolError: something that no kernel of ours contains, with its line.
    """
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M))
    bare = re.sub(r"//[^\n]*", "", text)
    bodies = list(_find_bodies(bare))
    if re.search(r"^\s*(?:\.visible\s+|\.weak\s+)?\.func\b", bare, re.M):
        at = bare[: bare.index(".func")].count("\n") + 1
        raise ToolError.at(
            UNKNOWN_FORM,
            "PTX form '.func' is not supported: a device function was not inlined",
            Span(name, at, 1),
            help="declare it __forceinline__",
        )
    outside = _blank(bare, [(start, end) for _, start, end in bodies])
    arrays = list(_outer_arrays(outside))
    return PtxFile(
        tuple(
            _read_kernel(entry, bare, start, end, name, Lines(files))
            for entry, start, end in bodies
        ),
        tuple(array for space, array in arrays if space in ("global", "const")),
        tuple(array for space, array in arrays if space == "shared" and array.count),
        tuple(array for space, array in arrays if space == "shared" and not array.count),
    )


def _find_bodies(text: str) -> Iterator[tuple[re.Match[str], int, int]]:
    """Each kernel's head, and where its body begins and ends."""
    for entry in _ENTRY.finditer(text):
        depth, at = 1, entry.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield entry, entry.end(), at - 1


def _blank(text: str, ranges: list[tuple[int, int]]) -> str:
    for start, end in ranges:
        text = text[:start] + " " * (end - start) + text[end:]
    return text


def _outer_arrays(outside: str) -> Iterator[tuple[str, Array]]:
    pattern = r"^\s*((?:\.\w+\s+)*\.(?:global|const|shared)\s[^;]*);"
    for declaration in re.findall(pattern, outside, re.M):
        match = _ARRAY.match(declaration.strip())
        if match:
            yield match["space"], _array(match)


def _array(match: re.Match[str]) -> Array:
    extent = match["extent"]
    count = 1 if extent is None else int(extent[1:-1] or 0)
    width = _BYTES[re.sub(r"^\D+", "", match["element"])]
    alignment = int(match["alignment"] or width)
    return Array(match["name"], match["element"], count, alignment, match["values"] or "")


def _read_kernel(
    entry: re.Match[str], text: str, start: int, end: int, file: str, lines: Lines
) -> Kernel:
    arrays: list[tuple[str, Array]] = []
    body: list[Statement] = []
    line, counted = 1, 0
    for part in _PART.finditer(text, start, end):
        if part["location"]:
            lines.move(part["location"])
        elif part["brace"]:
            body.append(Scope(part["brace"]))
        elif part["label"]:
            body.append(Label(part["label"]))
        else:
            line += text.count("\n", counted, part.start("text"))
            counted = part.start("text")
            statement = part["text"].strip()
            array = _ARRAY.match(statement)
            if array:
                arrays.append((array["space"], _array(array)))
            elif not statement.startswith(".pragma"):
                body.append(_read_statement(statement, Span(file, line, 1), lines.current))
    return Kernel(
        entry[1],
        tuple(_parameter(match) for match in _PARAMETER.finditer(entry[2])),
        tuple(body),
        tuple(array for space, array in arrays if space == "shared"),
        tuple(array for space, array in arrays if space == "local"),
    )


def _parameter(match: re.Match[str]) -> ParameterDeclaration:
    return ParameterDeclaration(
        match["name"], match["element"], int(match["nbytes"] or 0), int(match["before"] or 0)
    )


def _read_statement(text: str, span: Span, chain: Chain) -> Statement:
    registers = _REGISTERS.match(text)
    if registers:
        return Registers(registers[1], tuple(_register_names(registers[2])))
    match = _INSTRUCTION.match(text)
    if not match:
        raise ToolError.at(UNKNOWN_FORM, f"PTX form '{text.split()[0]}' is not supported", span)
    return Instruction(match[2], split_operands(match[3]), match[1] or "", span, chain)


def _register_names(text: str) -> Iterator[str]:
    for item in text.split(","):
        several = _RANGE.match(item.strip())
        if several:
            yield from (f"{several[1]}{index}" for index in range(int(several[2])))
        else:
            yield item.strip()


def split_operands(text: str) -> tuple[str, ...]:
    """Operands, parted at commas outside of braces and brackets."""
    found = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+", text)
    return tuple(item.strip() for item in found if item.strip())
