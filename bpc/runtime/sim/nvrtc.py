"""CUDA C++ to PTX and machine code through NVRTC, which needs neither a driver nor a device."""

from __future__ import annotations

import ctypes as c
import ctypes.util
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from bpc.errors import Diagnostic, Note, Span, ToolError
from bpc.runtime.sim.build import cache_folder

NOT_FOUND = "BPC0623"
COMPILE_FAILED = "BPC0624"

FLAGS = ("--std=c++17", "--fmad=false", "--ftz=true")
"""No contraction, and subnormals of f32 flush to zero, as everywhere in bpc."""

ARCHITECTURES = ("sm_75", "sm_90", "sm_100")

DETAILS = ("-lineinfo", "--ptxas-options=-v")
"""Lines of the source in PTX and machine code, and what kernels take in the log: one compilation
serves all who read any of these."""

_MESSAGE = re.compile(
    r"^(?P<file>.*?)\((?P<line>\d+)\): (?P<severity>error|warning)[^:]*: (?P<text>.*)$"
)


@dataclass(frozen=True, slots=True)
class NvrtcResult:
    """What NVRTC made: machine code for `sm_XX`, PTX alone for `compute_XX`."""

    cubin: bytes | None
    ptx: str | None
    log: str


def compile_nvrtc(
    text: str, arch: str = "sm_90", options: Sequence[str] = (), name: str = "kernels.cu"
) -> NvrtcResult:
    """Compile a .cu text; results are kept on disk.

    Args:
        text: the unchanged source.
        arch: `sm_90` for machine code (and its PTX), `compute_90` for PTX.
        options: more of NVRTC's options, after `FLAGS`.
        name: what messages and line tables call the source.

    Raises:
        ToolError: NVRTC is not installed, or it refuses the text; a diagnostic for each message
            with the line of the source.
    """
    flags = (f"--gpu-architecture={arch}", *FLAGS, *options)
    place = cache_folder() / f"nvrtc-{_key(text, flags, name)}"
    kept = _read(place)
    if kept is None:
        kept = _compile(text, flags, name)
        _write(place, kept)
    return kept


def find_library() -> Path:
    """NVRTC's shared library: of the wheel, else of an installed toolkit.

    Raises:
        ToolError: there is none; says what to install.
    """
    for path in candidates():
        if path.is_file():
            return path
    raise ToolError.at(
        NOT_FOUND,
        "NVRTC, the compiler of CUDA C++, is not installed",
        None,
        help='pip install "bpc[sim]"',
    )


def candidates() -> Iterator[Path]:
    """Where NVRTC may lie, in order of preference."""
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from _newest(Path(root), "*/lib/libnvrtc.so.*")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield from _newest(Path(os.environ[variable]), "lib64/libnvrtc.so.*")
    yield from _newest(Path("/usr/local"), "cuda*/lib64/libnvrtc.so.*")


def _newest(root: Path, pattern: str) -> Iterator[Path]:
    yield from sorted(root.glob(pattern), key=lambda path: path.name, reverse=True)


@cache
def _library(path: Path) -> c.CDLL:
    # The built-in headers are a library of their own, which the loader would not find by itself.
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
        c.CDLL(str(builtins), mode=c.RTLD_GLOBAL)
    return c.CDLL(str(path))


def _key(text: str, flags: Sequence[str], name: str) -> str:
    library = os.path.realpath(find_library())
    facts = [text, list(flags), name, library, os.stat(library).st_size]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _read(place: Path) -> NvrtcResult | None:
    log = place.with_suffix(".log")
    if not log.exists():  # written last
        return None
    cubin, ptx = place.with_suffix(".cubin"), place.with_suffix(".ptx")
    return NvrtcResult(
        cubin.read_bytes() if cubin.exists() else None,
        ptx.read_text(encoding="utf-8") if ptx.exists() else None,
        log.read_text(encoding="utf-8"),
    )


def _write(place: Path, result: NvrtcResult) -> None:
    ptx = result.ptx.encode() if result.ptx is not None else None
    for suffix, data in ((".cubin", result.cubin), (".ptx", ptx), (".log", result.log.encode())):
        if data is not None:
            handle, scratch = tempfile.mkstemp(dir=place.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(scratch, place.with_suffix(suffix))


def _compile(text: str, flags: Sequence[str], name: str) -> NvrtcResult:
    library = _library(find_library())
    program = c.c_void_p()
    _expect(
        library.nvrtcCreateProgram(c.byref(program), text.encode(), name.encode(), 0, None, None)
    )
    try:
        encoded = [flag.encode() for flag in flags]
        failed = library.nvrtcCompileProgram(
            program, len(encoded), (c.c_char_p * len(encoded))(*encoded)
        )
        log = _fetch(library, program, "ProgramLog").decode(errors="replace").rstrip("\0")
        if failed:
            raise _refused(log, name)
        real = any(flag.startswith("--gpu-architecture=sm_") for flag in flags)
        cubin = _fetch(library, program, "CUBIN") if real else None
        # NVRTC makes the names of files absolute; reports and the cache want them as given.
        ptx = _fetch(library, program, "PTX").decode().rstrip("\0")
        ptx = ptx.replace(f'"{os.getcwd()}/', '"')
        return NvrtcResult(cubin, ptx or None, log)
    finally:
        library.nvrtcDestroyProgram(c.byref(program))


def _expect(status: int) -> None:
    assert status == 0, f"NVRTC returned {status}"


def _fetch(library: c.CDLL, program: c.c_void_p, what: str) -> bytes:
    """One of NVRTC's results: its size first, then its bytes."""
    size = c.c_size_t()
    _expect(getattr(library, f"nvrtcGet{what}Size")(program, c.byref(size)))
    data = c.create_string_buffer(max(size.value, 1))
    _expect(getattr(library, f"nvrtcGet{what}")(program, data))
    return data.raw[: size.value]


def _refused(log: str, name: str) -> ToolError:
    found = []
    for line in log.splitlines():
        message = _MESSAGE.match(line)
        if message and message["severity"] == "error":
            span = Span(message["file"], int(message["line"]), 1)
            found.append(Diagnostic(COMPILE_FAILED, f"NVRTC: {message['text']}", span))
    if not found:
        notes = tuple(Note(line) for line in log.splitlines()[:8])
        found.append(Diagnostic(COMPILE_FAILED, f"NVRTC refused {name}", None, notes))
    return ToolError(found)
