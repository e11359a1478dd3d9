"""Finds a C++ compiler, compiles a generated file, and keeps the result in a cache on disk."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bpc.errors import BpcError, Note, ToolError
from bpc.resources import cache_root, template_root

NO_COMPILER = "BPC0610"
COMPILE_FAILED = "BPC0611"
_SEAL = hashlib.sha256().digest_size

FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fPIC",
    "-shared",
    "-pthread",
)
"""No contraction: a fused multiply-add happens where the text says so and nowhere else."""

GCC_FLAGS = ("-fno-thread-jumps", "-mprefer-vector-width=512")
"""For speed alone: GCC 12 else turns chained selects into branches and halves its vectors."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler, what it calls itself, and the instruction sets of this machine."""

    command: str
    version: str
    machine: str
    features: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """All options of a compilation."""
        gcc = "g++" in Path(self.command).name and platform.machine() in ("x86_64", "AMD64")
        return (*FLAGS, *(GCC_FLAGS if gcc else ()), self.machine)


@cache
def find_toolchain(instead: str = "; `--device reference` needs none") -> Toolchain:
    """The compiler that CXX names, else g++, clang++ or c++.

    Args:
        instead: what help says could be done without a compiler.

    Raises:
        ToolError: none of them is installed.
    """
    wanted = os.environ.get("CXX")
    names = [wanted] if wanted else ["g++", "clang++", "c++"]
    for name in names:
        path = shutil.which(name)
        if path:
            machine = os.environ.get("BPC_MARCH", "native")
            return Toolchain(path, _version(path), f"-march={machine}", features())
    raise ToolError.at(
        NO_COMPILER,
        f"no C++ compiler: {', '.join(names)} not found",
        None,
        help=f"install g++ or clang++, or name one in CXX{instead}",
    )


def _version(path: str) -> str:
    """What identifies the compiler, without running it each time: its file and when it changed."""
    real = os.path.realpath(path)
    state = os.stat(real)
    return f"{real} {state.st_size} {state.st_mtime_ns}"


@cache
def features() -> tuple[str, ...]:
    """The processor's instruction set extensions as the kernel lists them; empty if unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return tuple(sorted(line.partition(":")[2].split()))


def vector_name() -> str:
    """The widest vector extension that generated code uses here, for people."""
    known = features()
    for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sse2", "SSE2")):
        if flag in known:
            return name
    return "scalar"


def include_folder() -> Path:
    """Where the headers of generated files lie."""
    return template_root() / "cpu" / "include"


@cache
def headers_digest() -> str:
    """A digest of all headers."""
    digest = hashlib.sha256()
    for path in sorted(include_folder().glob("*.h")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _code_of(source: str) -> str:
    """The text without what compilers skip: comments tell where a spec lies, which may move."""
    return re.sub(r"//[^\n]*", "", source)


def build_library(source: str, options: tuple[str, ...] = ()) -> Path:
    """The shared library of a generated file, from the cache or compiled now.

    Safe for several processes at once: a library appears under its name whole or not at all.

    Raises:
        ToolError: no compiler, or it refuses the text.
    """
    toolchain = find_toolchain()
    flags = (*toolchain.flags, *options)
    facts = [_code_of(source), headers_digest(), toolchain.version, flags, toolchain.features]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    folder = _cache_folder()
    library = folder / f"{key}.so"
    if _is_whole(library):
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        text = Path(scratch) / "program.cpp"
        text.write_text(source, encoding="utf-8")
        made = Path(scratch) / "program.so"
        _compile(toolchain, flags, text, made)
        _seal(made)
        os.replace(text, folder / f"{key}.cpp")
        os.replace(made, library)
    return library


def _seal(library: Path) -> None:
    """Append a digest of the content; loaders ignore what follows the last section."""
    content = library.read_bytes()
    library.write_bytes(content + hashlib.sha256(content).digest())


def _is_whole(library: Path) -> bool:
    """Whether the file is there as it was sealed: loading a damaged one can end the process."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_SEAL]).digest() == content[-_SEAL:]


def _cache_folder() -> Path:
    folder = cache_root() / "cpu"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="bpc-"))


def _compile(toolchain: Toolchain, flags: tuple[str, ...], text: Path, made: Path) -> None:
    command = [toolchain.command, *flags, f"-I{include_folder()}", str(text), "-o", str(made)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise _failed(toolchain, str(error.strerror or error), []) from None
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if "error" in line][:5]
        raise _failed(toolchain, f"exit {done.returncode}", errors or lines[-5:])


def _failed(toolchain: Toolchain, why: str, lines: list[str]) -> BpcError:
    return ToolError.at(
        COMPILE_FAILED,
        f"{Path(toolchain.command).name} failed on generated code ({why})",
        None,
        notes=[Note(line) for line in lines],
        help="`--device reference` runs without a compiler; please report the spec",
    )
