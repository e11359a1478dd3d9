"""Compiles the simulator's runtime and kernels with g++, each once, into the cache on disk."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from bpc.errors import Diagnostic, Note, ToolError
from bpc.resources import cache_root, template_root
from bpc.runtime.cpu.toolchain import Toolchain, find_toolchain

UNSUPPORTED = "BPC0620"
COMPILE_FAILED = "BPC0621"

RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fno-strict-aliasing")

KERNEL_FLAGS = (
    "-std=c++17",
    "-O2",
    "-g1",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    # Dynamic shared memory is an extern thread_local array; it has no initialiser to call.
    "-fno-extern-tls-init",
    # Arrays get the alignment that the ABI asks for, not more.
    "-malign-data=abi",
    # The runtime, already loaded, provides what is left undefined.
    "-Wl,--unresolved-symbols=ignore-all",
)

CHECKED = ("-DSIM_CHECKED=1",)

INSTRUMENTED = (
    "-fsanitize=thread,alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
    "-fno-tree-vectorize",
    # Two barriers of the text stay two calls.
    "-fno-crossjumping",
    "-fno-tree-tail-merge",
    # A local variable that is read before it is written holds the same odd value in each run.
    "-ftrivial-auto-var-init=pattern",
    # No sanitizer library: the runtime answers the calls.
    "-nostdlib",
    "-lm",
)


def find_gcc() -> Toolchain:
    """The compiler of kernels.

    Raises:
        ToolError: not an x86-64 Linux machine, or the compiler is not g++.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise ToolError.at(
            UNSUPPORTED,
            f"the simulator runs on x86-64 Linux, not on {platform.system()} {platform.machine()}",
            None,
            help="use `--device cpu`, which runs everywhere",
        )
    toolchain = find_toolchain(instead="")
    if "++" not in Path(toolchain.command).name or "clang" in toolchain.version:
        raise ToolError.at(
            UNSUPPORTED,
            f"the simulator needs g++, not {toolchain.command}",
            None,
            help="install g++ 11 or newer, or name it in CXX",
        )
    return toolchain


def source_folder() -> Path:
    """Where the runtime and the headers lie, in a checkout and in an installed wheel."""
    return template_root() / "sim"


@cache
def sources_digest() -> str:
    """A digest of the runtime and all headers."""
    digest = hashlib.sha256()
    for path in sorted(source_folder().rglob("*")):
        if path.suffix in (".h", ".cpp"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def cache_folder() -> Path:
    """A folder to keep results in; a temporary one where the cache cannot be written."""
    folder = cache_root() / "sim"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="bpc-sim-"))


@cache
def runtime_library() -> Path:
    """The runtime as a shared library.

    Raises:
        ToolError: no g++, or it refuses the text.
    """
    text = (source_folder() / "runtime" / "runtime.cpp").read_text(encoding="utf-8")
    return _build("runtime", text, RUNTIME_FLAGS)


def kernel_library(
    text: str, checked: bool, flags: tuple[str, ...] = (), instrumented: bool = False
) -> Path:
    """A kernel file, already completed for g++, as a shared library.

    Args:
        text: the C++.
        checked: whether functions of the headers announce what they do.
        flags: further options.
        instrumented: whether the compiler announces each memory access of the text.

    Raises:
        ToolError: no g++, or it refuses the text; with the compiler's messages.
    """
    more = (CHECKED if checked else ()) + (INSTRUMENTED if instrumented else ())
    return _build("kernels", text, KERNEL_FLAGS + flags + more)


def _build(name: str, text: str, flags: tuple[str, ...]) -> Path:
    """Safe for two processes at once: a library appears under its name whole or not at all."""
    gcc = find_gcc()
    facts = [text, sources_digest(), gcc.version, flags, gcc.machine, gcc.features]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    folder = cache_folder()
    library = folder / f"{name}-{key}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, made = Path(scratch) / f"{name}.cpp", Path(scratch) / f"{name}.so"
        source.write_text(text, encoding="utf-8")
        includes = [f"-I{source_folder() / part}" for part in ("include", "runtime")]
        # Libraries come last, behind the object that needs them.
        # Line tables name the .cu file as the caller did, whatever the folder.
        renamed = f"-fdebug-prefix-map={os.getcwd()}=."
        command = [gcc.command, gcc.machine, renamed, *includes, str(source), "-o", str(made)]
        command += flags
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise _refused(name, done.stderr)
        os.replace(made, library)
    return library


def _refused(name: str, log: str) -> ToolError:
    lines = [line for line in log.splitlines() if "error" in line][:8] or log.splitlines()[-8:]
    return ToolError(
        [
            Diagnostic(
                COMPILE_FAILED,
                f"g++ refused the simulator's {name}",
                None,
                tuple(Note(line) for line in lines),
                help="the notes carry the lines of the .cu file",
            )
        ]
    )
