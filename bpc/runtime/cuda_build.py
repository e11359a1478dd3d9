"""From entry points to a GPU: plan, text, CuPy."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from functools import cache
from pathlib import Path

from bpc.entries import Entries
from bpc.resources import template_root
from bpc.runtime.cuda_device import CudaDevice, CudaOptions, Products
from bpc.runtime.cuda_errors import no_driver

FLAGS = ("-std=c++17", "--fmad=false", "--ftz=true")
"""No contraction, subnormals flushed: numbers are those of every other target."""


def make_cuda(
    entries: Entries,
    memory_bytes: int | None = None,
    options: CudaOptions | None = None,
    products: Path | None = None,
) -> CudaDevice:
    """A GPU that runs the program.

    `products` says which products a library computes; without it BPC_CUBLASLT may name the file.

    Raises:
        ToolError: no driver, no CuPy, no device, no room, or NVRTC refuses the text.
        BudgetError: no plan fits.
    """
    if not has_driver():  # without one, CuPy need not be imported to know
        raise no_driver()
    from bpc.runtime.cuda import connect

    gpu = connect()
    from bpc.codegen.cuda import generate
    from bpc.runtime.cpu.build import plan

    program = plan(entries, memory_bytes).program
    source = generate("network", program)
    chosen = options or options_from_environment()
    opened: Products | None = None
    choices = products or os.environ.get("BPC_CUBLASLT")
    if choices:
        from bpc.runtime.cublaslt_choices import open_products

        opened = open_products(Path(choices), program, source, gpu)
    return CudaDevice(program, source, gpu, compile_options(), chosen, opened)


def options_from_environment() -> CudaOptions:
    """BPC_CUDA_GRAPH=0 launches kernels one by one; BPC_CUDA_SLOTS=1 keeps a single input slot;
    BPC_CUDA_AHEAD=0 reads the values of each step before the next one."""
    graphs, ahead = (os.environ.get(f"BPC_CUDA_{name}") != "0" for name in ("GRAPH", "AHEAD"))
    return CudaOptions(1 if os.environ.get("BPC_CUDA_SLOTS") == "1" else 2, graphs, ahead)


def has_driver() -> bool:
    """Whether the library of an NVIDIA driver can be loaded; costs well under a millisecond."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def compile_options() -> tuple[str, ...]:
    """What NVRTC is told beside what CuPy adds.

    CuPy's cache on disk knows the text and the options, not the headers that lie in folders:
    their digest is one of the options, so that a changed header is never missed.
    """
    folders = tuple(f"-I{folder}" for folder in include_folders())
    return (*FLAGS, *folders, f"-DBPC_HEADERS=0x{headers_digest()}")


def include_folders() -> tuple[Path, Path]:
    """Where the headers of generated CUDA lie; those of the CPU have the shared numbers."""
    root = template_root()
    return root / "cuda" / "include", root / "cpu" / "include"


@cache
def headers_digest() -> str:
    """A digest of all headers."""
    digest = hashlib.sha256()
    for folder in include_folders():
        for path in sorted(folder.glob("*.h")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
