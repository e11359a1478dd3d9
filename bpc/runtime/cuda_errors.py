"""What can be missing or go wrong with a GPU, as messages that say what to do."""

from __future__ import annotations

from importlib.util import find_spec

from bpc.errors import Note, ToolError
from bpc.types import format_bytes

NO_DRIVER = "BPC0640"
NO_CUPY = "BPC0641"
NO_GPU = "BPC0642"
OUT_OF_MEMORY = "BPC0643"
TEXT_REFUSED = "BPC0644"
CALL_FAILED = "BPC0645"
CHOICES_UNFIT = "BPC0646"

INSTALL = 'pip install "bpc[cuda13]", or "bpc[cuda12]" for drivers older than 580'
ELSEWHERE = "`--device cpu` or `--device sim` runs the same program without a GPU"
_MOST_LINES = 5


def _tool_error(code: str, message: str, help: str, notes: tuple[str, ...] = ()) -> ToolError:
    error = ToolError.at(code, message, None, [Note(text) for text in notes], help)
    assert isinstance(error, ToolError)
    return error


def no_driver() -> ToolError:
    """The machine has no NVIDIA driver."""
    notes = () if find_spec("cupy") else (f"CuPy is not installed either: {INSTALL}",)
    help = f"install the driver; {ELSEWHERE}"
    return _tool_error(NO_DRIVER, "no NVIDIA driver was found", help, notes)


def no_cupy(cause: str) -> ToolError:
    """CuPy is not installed, or cannot be imported."""
    return _tool_error(NO_CUPY, "CuPy cannot be imported", INSTALL, (cause,))


def no_gpu(cause: str) -> ToolError:
    """There is a driver, but no device that CuPy can use."""
    help = f"see what nvidia-smi says; CUDA_VISIBLE_DEVICES chooses among devices; {ELSEWHERE}"
    return _tool_error(NO_GPU, "no GPU can be used", help, (cause,))


def out_of_memory(what: str, wanted: int, free: int, total: int) -> ToolError:
    """The device has no room for an allocation of `wanted` bytes."""
    message = (
        f"{what} needs {format_bytes(wanted)}, "
        f"{format_bytes(free)} of the GPU's {format_bytes(total)} are free"
    )
    help = "a budget below that, such as --memory, plans a smaller arena; or free the GPU"
    return _tool_error(OUT_OF_MEMORY, message, help)


def text_refused(log: str) -> ToolError:
    """NVRTC does not compile the generated text."""
    lines = [line for line in log.splitlines() if "error" in line] or log.splitlines()
    help = "please report the spec; `--device cpu` does not need this text"
    return _tool_error(
        TEXT_REFUSED, "NVRTC failed on generated code", help, tuple(lines[:_MOST_LINES])
    )


def no_compiler(cause: str) -> ToolError:
    """CuPy cannot use NVRTC here."""
    help = "install NVRTC of the major version that CuPy was built for: bpc[cuda13] or bpc[cuda12]"
    return _tool_error(TEXT_REFUSED, "CuPy cannot compile here", help, (cause,))


def call_failed(what: str, cause: str) -> ToolError:
    """A call into CUDA failed; the work of earlier launches may be what failed."""
    help = (
        "BPC_CUDA_GRAPH=0 launches kernels one by one; `bpc check SPEC --kernels` looks for "
        "faults in them on the CPU"
    )
    return _tool_error(CALL_FAILED, f"CUDA failed while {what}", help, (cause,))


def choices_unfit(what: str) -> ToolError:
    """Stored choices of products do not fit this machine or program."""
    help = "measure again on this machine, or leave BPC_CUBLASLT unset for generated products"
    return _tool_error(CHOICES_UNFIT, what, help)
