"""Numbers, shapes, sizes, layer options and the machine that a program is made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `bits` is the width in memory; `bit` tensors pack eight to a byte."""

    name: str
    bits: int
    kind: str  # "float" | "int" | "bool"

    def __str__(self) -> str:
        return self.name


F64 = DType("f64", 64, "float")
F32 = DType("f32", 32, "float")
BF16 = DType("bf16", 16, "float")
F16 = DType("f16", 16, "float")
I64 = DType("i64", 64, "int")
I32 = DType("i32", 32, "int")
BIT = DType("bit", 1, "bool")
DTYPES: dict[str, DType] = {t.name: t for t in (F64, F32, BF16, F16, I64, I32, BIT)}
PRECISIONS: dict[str, DType] = {"fp64": F64, "fp32": F32, "bf16": BF16, "fp16": F16}


def compute_type(*types: DType) -> DType:
    """The type that arithmetic on these storage types runs in: f64 if any is f64, else f32."""
    return F64 if F64 in types else F32


@dataclass(frozen=True, slots=True)
class Rows:
    """An extent that grows with the batch: `factor` times the number of rows B."""

    factor: int = 1

    def __str__(self) -> str:
        return "batch" if self.factor == 1 else f"{self.factor}*batch"


Dim = int | Rows
Shape = tuple[Dim, ...]


def extent(dim: Dim, rows: int) -> int:
    """The extent of one axis for `rows` rows in the batch."""
    return dim.factor * rows if isinstance(dim, Rows) else dim


def shape_at(shape: Shape, rows: int) -> tuple[int, ...]:
    """The concrete shape for `rows` rows in the batch."""
    return tuple(extent(dim, rows) for dim in shape)


def multiply(dims: Sequence[Dim]) -> Dim:
    """The product of extents; at most one of them may grow with the batch."""
    factor = prod(dim.factor if isinstance(dim, Rows) else dim for dim in dims)
    batched = sum(isinstance(dim, Rows) for dim in dims)
    assert batched <= 1, f"two batch axes in {format_shape(tuple(dims))}"
    return Rows(factor) if batched else factor


def elements(shape: Shape, rows: int) -> int:
    """The number of elements for `rows` rows in the batch."""
    return prod(shape_at(shape, rows))


def nbytes(dtype: DType, shape: Shape, rows: int) -> int:
    """Bytes of a dense tensor; each line of a `bit` tensor begins with a byte of its own."""
    if dtype == BIT and shape:
        return elements(shape[:-1], rows) * ((extent(shape[-1], rows) + 7) // 8)
    return (elements(shape, rows) * dtype.bits + 7) // 8


def format_shape(shape: Shape) -> str:
    """`[batch, 128]`, as messages and headers print it."""
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(count: int) -> str:
    """`11.42 MiB`; exact below 1 KiB."""
    value = float(count)
    for unit in _BINARY:
        if value < 1024 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"


def count_of(number: int, noun: str) -> str:
    """`1 step`, `1,024 steps`; the noun is given in the singular and takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a layer, loss or optimizer: what a spec may write and what it means.

    `kind` is one of int, float, bool, text, choice, ints (an int or a list of ints), shape (a
    list of extents without the batch), init (an initialiser), formula, name. `below` is a bound
    that the value itself must stay under.
    """

    name: str
    kind: str
    default: object = None
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None
    help: str = ""


@dataclass(frozen=True, slots=True)
class LayerSchema:
    """What a spec may say of one kind of layer: its options and how many inputs it takes.

    `shorthand` names the option that a bare value sets (`- dropout: 0.1`). `least_inputs` and
    `most_inputs` bound `from:`; most_inputs None is unbounded. `integers`: it reads whole numbers,
    such as those of symbols; every other layer computes with floats.
    """

    name: str
    options: tuple[Option, ...] = ()
    least_inputs: int = 1
    most_inputs: int | None = 1
    shorthand: str | None = None
    help: str = ""
    integers: bool = False


@dataclass(frozen=True, slots=True)
class TargetProfile:
    """The machine a program is rendered for: an explicit input, recorded in every output."""

    target: str  # "cpu" | "cuda" | "reference"
    lanes: int = 16
    features: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The profile as plain data."""
        return {"target": self.target, "lanes": self.lanes, "features": list(self.features)}


PORTABLE = TargetProfile("cpu", 16, ())
