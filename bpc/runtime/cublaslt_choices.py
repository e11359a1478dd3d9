"""Which products of a program cuBLASLt takes over: found, measured, stored in a file, bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bpc.codegen.cuda import CudaSource
from bpc.kernel import ACCUMULATOR, Kernel, Operand, Statement
from bpc.plan.program import ALIGNMENT, Entry, Program
from bpc.runtime.cublaslt import DATA_TYPES, Choice, Library, Prepared, Product
from bpc.runtime.cuda import Gpu, Memory, Stream
from bpc.runtime.cuda_device import CudaDevice
from bpc.runtime.cuda_errors import choices_unfit
from bpc.types import extent

WORKSPACE_BYTES = 8 << 20
REPEATS = 20
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Choices:
    """What was measured on one device with one version of the library, by product."""

    device: str
    version: int
    by_product: Mapping[str, Choice]


# -- which kernels --------------------------------------------------------------------------------


def find_products(program: Program, source: CudaSource) -> dict[tuple[str, int], Kernel]:
    """Kernels that the library could take over, by entry point and launch."""
    found = {}
    for name, launches in source.launches.items():
        for at, launch in enumerate(launches):
            kernel = program.entries[name].kernels[launch.kernels[0]]
            alone = len(launch.kernels) == 1 and not launch.tails
            if alone and describe_product(kernel, program.rows):
                found[name, at] = kernel
    return found


def describe_product(kernel: Kernel, rows: int) -> Product | None:
    """The product that a kernel is, or None if it is or does anything else."""
    if kernel.skeleton != "gemm" or len(kernel.stores) != 1:
        return None
    left, right = (kernel.operand(label) for label in kernel.sources)
    target = kernel.operand(kernel.stores[0].operand)
    bias = _find_bias(kernel)
    others = [item for item in kernel.reads if item.label not in kernel.sources]
    if others != ([bias] if bias else []) or not _is_only_bias(kernel, bias):
        return None
    same = left.dtype == right.dtype and left.dtype.name in DATA_TYPES
    results = (left.dtype.name, "f64" if left.dtype.name == "f64" else "f32")
    if not same or target.dtype.name not in results or not target.is_flat:
        return None
    if bias and bias.dtype.name != target.dtype.name:
        return None
    (a_rows, a_cols), _ = kernel.attr("shapes")
    transposed = bool(kernel.attr("ta")), bool(kernel.attr("tb"))
    m, n = (extent(dim, rows) for dim in kernel.space)
    k = extent(a_rows if transposed[0] else a_cols, rows)
    kinds = left.dtype.name, target.dtype.name, bias.dtype.name if bias else ""
    return Product(m, n, k, *transposed, *kinds)


def _find_bias(kernel: Kernel) -> Operand | None:
    """The one operand beside the factors, if it is a vector along the columns."""
    others = [item for item in kernel.reads if item.label not in kernel.sources]
    if len(others) == 1 and others[0].strides == (0, 1):
        return others[0]
    return None


def _is_only_bias(kernel: Kernel, bias: Operand | None) -> bool:
    """Whether the epilogue stores the accumulator, or its sum with the bias, and no more."""
    label = kernel.stores[0].label
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], Statement):
        return not kernel.body and label == ACCUMULATOR and bias is None
    statement = kernel.body[0]
    wanted = {f"{label} = {ACCUMULATOR}"}
    if bias:
        sums = (f"{ACCUMULATOR} + {bias.label}", f"{bias.label} + {ACCUMULATOR}")
        wanted = {f"{label} = {text}" for text in sums}
    return statement.label == label and statement.formula() in wanted


# -- files ----------------------------------------------------------------------------------------


def write_choices(path: Path, choices: Choices) -> None:
    """Store choices as JSON."""
    path.write_text(render_choices(choices), encoding="utf-8")


def render_choices(choices: Choices) -> str:
    """Choices as JSON."""
    by_product = {key: asdict(choice) for key, choice in sorted(choices.by_product.items())}
    content = {
        "format": FORMAT,
        "device": choices.device,
        "version": choices.version,
        "products": by_product,
    }
    return json.dumps(content, indent=2) + "\n"


def read_choices(path: Path) -> Choices:
    """Choices as `write_choices` left them.

    Raises:
        ToolError: the file is missing or is not of this form.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise choices_unfit(f"{path}: format {content['format']}, known is {FORMAT}")
        by_product = {key: Choice(**fields) for key, fields in content["products"].items()}
        for choice in by_product.values():
            bytes.fromhex(choice.algorithm)
        return Choices(str(content["device"]), int(content["version"]), by_product)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise choices_unfit(f"{path} holds no choices of products: {error!r}") from error


# -- products of a program ------------------------------------------------------------------------


class LibraryProducts:
    """The products of a program that a file of choices gives to the library."""

    def __init__(
        self,
        library: Library,
        workspace: Memory,
        prepared: Mapping[tuple[str, int], Prepared],
        kernels: Mapping[tuple[str, int], Kernel],
        text: str,
    ):
        self._library = library
        self._workspace = workspace
        self._prepared = dict(prepared)
        self._kernels = kernels
        self.text = text

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace, beside the arena."""
        return self._workspace.nbytes

    def __contains__(self, place: tuple[str, int]) -> bool:
        return place in self._prepared

    def issue(self, place: tuple[str, int], offsets: Program, arena: int, stream: Stream) -> None:
        """Put a product on the stream in place of a launch."""
        entry = offsets.entries[place[0]]
        addresses = find_addresses(self._kernels[place], entry, arena)
        self._library.issue(self._prepared[place], addresses, self._workspace, stream)

    def close(self) -> None:
        """Let go of the library and its workspace; nothing may be running."""
        for prepared in self._prepared.values():
            self._library.release(prepared)
        self._prepared.clear()
        self._library.close()
        self._workspace.free()


def find_addresses(kernel: Kernel, entry: Entry, arena: int) -> tuple[int, int, int, int]:
    """Where left factor, right factor, bias (0 without one) and result of a product lie."""
    left, right = (kernel.operand(label) for label in kernel.sources)
    target = kernel.operand(kernel.stores[0].operand)
    bias = _find_bias(kernel)
    places = [arena + entry.offset_of(item) for item in (left, right, target)]
    return places[0], places[1], arena + entry.offset_of(bias) if bias else 0, places[2]


def open_products(
    path: Path, program: Program, source: CudaSource, gpu: Gpu
) -> LibraryProducts | None:
    """The products that a file gives to the library; None if it gives it none of this program.

    Raises:
        ToolError: no library, or the file was measured on another device or version.
    """
    choices = read_choices(path)
    kernels = find_products(program, source)
    wanted = {
        place: product
        for place, kernel in kernels.items()
        if (product := describe_product(kernel, program.rows)) and product.key in choices.by_product
    }
    if not wanted:
        return None
    library = Library()
    if (choices.device, choices.version) != (gpu.name, library.version):
        here = f"{gpu.name} with cuBLASLt {library.version}"
        library.close()
        there = f"{choices.device} with cuBLASLt {choices.version}"
        raise choices_unfit(f"{path} was measured on {there}, this is {here}")
    prepared = {place: library.prepare(product) for place, product in wanted.items()}
    for item in prepared.values():
        library.choose(item, choices.by_product[item.product.key])
    most = max(choices.by_product[item.product.key].workspace_bytes for item in prepared.values())
    workspace = gpu.allocate("cuBLASLt's workspace", max(most, ALIGNMENT))
    return LibraryProducts(library, workspace, prepared, kernels, render_choices(choices))


# -- measuring ------------------------------------------------------------------------------------


def measure(device: CudaDevice, source: CudaSource) -> Choices:
    """The products that the library computes faster than the generated kernels, with how.

    Runs on whatever the arena holds, full batches, and overwrites results in it: measure on a
    device that is closed afterwards.

    Raises:
        ToolError: no library.
    """
    library = Library()
    gpu, program = device.gpu, device.program
    workspace = gpu.allocate("cuBLASLt's workspace", WORKSPACE_BYTES)
    chosen: dict[str, Choice] = {}
    for place, kernel in find_products(program, source).items():
        product = describe_product(kernel, program.rows)
        assert product is not None, place
        if product.key not in chosen:
            generated = device.time_launch(*place, REPEATS)
            prepared = library.prepare(product)
            addresses = find_addresses(kernel, program.entries[place[0]], device.arena_address)
            best = _measure_one(library, prepared, addresses, workspace, device)
            library.release(prepared)
            if best and best.seconds < generated:
                chosen[product.key] = replace(best, generated_seconds=generated)
    version = library.version
    library.close()
    workspace.free()
    return Choices(gpu.name, version, chosen)


def _measure_one(
    library: Library,
    prepared: Prepared,
    addresses: tuple[int, int, int, int],
    workspace: Memory,
    device: CudaDevice,
) -> Choice | None:
    """The fastest of the library's candidates for a product."""
    library.point_bias(prepared, addresses[2])
    timed: list[Choice] = []
    for choice in library.find_algorithms(prepared, workspace.nbytes):
        library.choose(prepared, choice)

        def issue() -> None:
            library.issue(prepared, addresses, workspace, device.stream)

        issue()
        timed.append(replace(choice, seconds=device.gpu.time(issue, REPEATS, device.stream)))
    return min(timed, key=lambda choice: choice.seconds, default=None)
