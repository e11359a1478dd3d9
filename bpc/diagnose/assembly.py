"""PTX and SASS of one kernel, with the lines of its source between the instructions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from bpc.errors import Note, ToolError
from bpc.runtime.sim.nvrtc import compile_nvrtc

NO_DISASSEMBLER = "BPC0631"
_TOOL = "nvdisasm"

ReadLine = Callable[[str, int], str | None]

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+\d+")
_SASS_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_SASS_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\w+)|^//-+ \.text\.(\w+)")


def show_ptx(text: str, name: str, kernel: str, arch: str, read_line: ReadLine) -> str:
    """The PTX of a kernel; each group of instructions follows the source line it came from.

    Args:
        text: the whole source, with its headers in it.
        name: what compilers call the source.
        kernel: an entry of the source.
        arch: such as sm_90.
        read_line: text of a line of a file, None where the file is not known.

    Raises:
        ToolError: NVRTC is missing or refuses the text.
    """
    ptx = compile_nvrtc(text, arch, ("-lineinfo",), name).ptx
    assert ptx is not None
    files = {found[1]: found[2] for line in ptx.splitlines() if (found := _FILE.match(line))}
    return "\n".join(_interleave_ptx(_entry(ptx, kernel), files, read_line)) + "\n"


def _entry(ptx: str, kernel: str) -> list[str]:
    """The lines from a kernel's head to its closing brace."""
    lines = ptx.splitlines()
    head = re.compile(rf"\.entry\s+{re.escape(kernel)}\s*\(")
    first = next(at for at, line in enumerate(lines) if head.search(line))
    last = next(at for at in range(first, len(lines)) if lines[at] == "}")
    return lines[first : last + 1]


def _interleave_ptx(
    lines: Iterable[str], files: dict[str, str], read_line: ReadLine
) -> Iterator[str]:
    shown = None
    for line in lines:
        found = _LOC.match(line)
        if found is None:
            if line.strip():
                yield line.rstrip()
            continue
        place = (files.get(found[1], "?"), int(found[2]))
        if place != shown and place[1]:
            shown = place
            yield _source_line(*place, read_line)


def _source_line(file: str, line: int, read_line: ReadLine) -> str:
    name = Path(file).name
    text = read_line(name, line)
    return f"// {name}:{line}" + (f"  {text.strip()}" if text else "")


def show_sass(text: str, name: str, kernel: str, arch: str, read_line: ReadLine) -> str:
    """The machine code of a kernel, likewise.

    Raises:
        ToolError: NVRTC or the disassembler is missing, or one of them fails.
    """
    tool = find_disassembler()
    cubin = compile_nvrtc(text, arch, ("-lineinfo",), name).cubin
    assert cubin is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "-c", "-g", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        notes = [Note(line) for line in done.stderr.splitlines()[:5]]
        raise ToolError.at(NO_DISASSEMBLER, f"{_TOOL} failed on {arch}", None, notes=notes)
    lines = _section(done.stdout.splitlines(), kernel)
    return "\n".join(_interleave_sass(lines, read_line)) + "\n"


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


def _interleave_sass(lines: Iterable[str], read_line: ReadLine) -> Iterator[str]:
    shown = None
    for line in lines:
        found = _SASS_LINE.match(line)
        if found is None:
            if line.strip() and not line.lstrip().startswith("."):
                yield line.rstrip()
            continue
        place = (found[1], int(found[2]))
        if place != shown:
            shown = place
            yield _source_line(*place, read_line)
