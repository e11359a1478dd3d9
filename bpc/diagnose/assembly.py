"""PTX and SASS of one kernel, and which line of its source each instruction came from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bpc.errors import Note, ToolError
from bpc.runtime.sim.nvrtc import DETAILS, compile_nvrtc

NO_DISASSEMBLER = "BPC0631"
_TOOL = "nvdisasm"

ReadLine = Callable[[str, int], str | None]
Place = tuple[str, int]
"""A source's name without its folder, and a line."""

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_SASS_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_SASS_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\w+)|^//-+ \.text\.(\w+)")
_LABEL = re.compile(r"^\s*[\w$.]+:\s*$")


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of assembly from one place: the line itself, then those it was inlined into."""

    places: tuple[Place, ...]
    lines: tuple[str, ...]

    def instructions(self) -> Iterator[str]:
        """What the processor does: no labels, declarations or comments."""
        for line in self.lines:
            text = re.sub(r"^/\*[0-9a-f]+\*/\s*", "", line.strip()).rstrip("; ")
            if text and not text.startswith(("//", ".", "{", "}", ")")) and not _LABEL.match(text):
                yield " ".join(text.split())


def read_ptx(text: str, name: str, kernel: str, arch: str) -> list[Piece]:
    """The PTX of a kernel.

    Args:
        text: the whole source, with its headers in it.
        name: what compilers call the source.
        kernel: an entry of the source.
        arch: such as sm_90.

    Raises:
        ToolError: NVRTC is missing or refuses the text.
    """
    ptx = compile_nvrtc(text, arch, DETAILS, name).ptx
    assert ptx is not None
    files = {found[1]: found[2] for line in ptx.splitlines() if (found := _FILE.match(line))}
    return list(_split_ptx(_entry(ptx, kernel), files))


def _entry(ptx: str, kernel: str) -> list[str]:
    """The lines from a kernel's head to its closing brace."""
    lines = ptx.splitlines()
    head = re.compile(rf"\.entry\s+{re.escape(kernel)}\s*\(")
    first = next(at for at, line in enumerate(lines) if head.search(line))
    last = next(at for at in range(first, len(lines)) if lines[at] == "}")
    return lines[first : last + 1]


def _split_ptx(lines: Iterable[str], files: dict[str, str]) -> Iterator[Piece]:
    """A `.loc` names the place and where that was inlined; longer chains are put together here."""
    callers: dict[tuple[str, ...], tuple[str, ...]] = {}
    places: tuple[Place, ...] = ()
    held: list[str] = []
    for line in lines:
        found = _LOC.match(line)
        if found is None:
            held += [line.rstrip()] if line.strip() else []
            continue
        if found[2] == "0":  # code of no line
            continue
        if held:
            yield Piece(places, tuple(held))
        held = []
        own, caller = found.groups()[:3], found.groups()[3:]
        if caller[0] is None:
            callers.pop(own, None)
        else:
            callers[own] = caller
        places = _chain(own, callers, files)
    yield Piece(places, tuple(held))


def _chain(
    own: tuple[str, ...], callers: dict[tuple[str, ...], tuple[str, ...]], files: dict[str, str]
) -> tuple[Place, ...]:
    found: dict[tuple[str, ...], None] = {}
    step: tuple[str, ...] | None = own
    while step is not None and step not in found:
        found[step] = None
        step = callers.get(step)
    return tuple((Path(files.get(file, "?")).name, int(line)) for file, line, _ in found)


def read_sass(text: str, name: str, kernel: str, arch: str) -> list[Piece]:
    """The machine code of a kernel, likewise.

    Raises:
        ToolError: NVRTC or the disassembler is missing, or one of them fails.
    """
    tool = find_disassembler()
    cubin = compile_nvrtc(text, arch, DETAILS, name).cubin
    assert cubin is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "-c", "-gi", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        notes = [Note(line) for line in done.stderr.splitlines()[:5]]
        raise ToolError.at(NO_DISASSEMBLER, f"{_TOOL} failed on {arch}", None, notes=notes)
    return list(_split_sass(_section(done.stdout.splitlines(), kernel)))


def _split_sass(lines: Iterable[str]) -> Iterator[Piece]:
    """Lines that name a place stand one below the other, the innermost first."""
    places: list[Place] = []
    held: list[str] = []
    for line in lines:
        found = _SASS_LINE.match(line)
        if found is not None:
            if held:
                yield Piece(tuple(places), tuple(held))
                places, held = [], []
            places.append((Path(found[1]).name, int(found[2])))
        elif line.strip() and not line.lstrip().startswith("."):
            held.append(line.rstrip())
    yield Piece(tuple(places), tuple(held))


def interleave(pieces: Iterable[Piece], read_line: ReadLine) -> str:
    """The assembly with a comment before each piece: the source line that it came from.

    Args:
        pieces: in order.
        read_line: text of a line of a file, None where the file is not known.
    """
    lines: list[str] = []
    shown = None
    for piece in pieces:
        if piece.places and piece.places[0] != shown:
            shown = piece.places[0]
            lines.append(_source_line(*shown, read_line))
        lines += piece.lines
    return "\n".join(lines) + "\n"


def instructions_of(pieces: Iterable[Piece], name: str, lines: range) -> list[str]:
    """The instructions that came from lines of a source, with those inlined into these lines.

    Code of a function that is called there counts; that of a body which is handed over to it (a
    product's epilogue) belongs to its own lines.
    """
    found: list[str] = []
    for piece in pieces:
        line = next((line for file, line in piece.places if file == name), None)
        if line is not None and line in lines:
            found += piece.instructions()
    return found


def _source_line(file: str, line: int, read_line: ReadLine) -> str:
    text = read_line(file, line)
    return f"// {file}:{line}" + (f"  {text.strip()}" if text else "")


def find_disassembler() -> Path:
    """`nvdisasm` of the wheel, of an installed toolkit, or from PATH.

    Raises:
        ToolError: there is none; says what to install.
    """
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise ToolError.at(
        NO_DISASSEMBLER,
        f"{_TOOL}, which shows machine code, is not installed",
        None,
        help='pip install "bpc[sass]", or put the nvdisasm of a CUDA toolkit into PATH',
    )


def _candidates() -> Iterator[Path]:
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(root).glob(f"*/bin/{_TOOL}"), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin" / _TOOL
    found = shutil.which(_TOOL)
    if found:
        yield Path(found)


def _section(lines: Iterable[str], kernel: str) -> Iterator[str]:
    """The lines of a kernel's section."""
    inside = False
    for line in lines:
        found = _SASS_SECTION.match(line)
        if found:
            inside = kernel in found.groups()
        elif line.startswith("//-----") or re.match(r"\s*\.section\s", line):
            inside = False
        elif inside:
            yield line

