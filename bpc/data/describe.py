"""What a data source holds (names, shapes, classes, rows), found by reading as little as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from bpc.data.sources.faults import Where, suggest
from bpc.data.sources.tables import FILE_OPTIONS
from bpc.errors import DataError, Note, Span
from bpc.types import F32, F64, DType, Option, count_of

HOLD_OUT = 5
"""Row i of a stored source is held out for testing when i % HOLD_OUT == HOLD_OUT - 1."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input: its extents without the batch, and the type that the source delivers.

    Float inputs are converted to the spec's precision by whoever feeds a program.
    """

    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What is to be learnt: a class index in [0, classes), or values of `shape` (no batch).

    `names` are those of the classes where the source gives them.
    `ignored` is a class index that the loss leaves out; it may lie outside [0, classes).
    """

    kind: str  # "class" | "value"
    shape: tuple[int, ...]
    classes: int | None
    names: tuple[str, ...] = ()
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A data source as the compiler needs to know it.

    With `on_bad: skip`, rows of mapped arrays that turn out not to be finite still count.
    """

    inputs: Mapping[str, TensorInfo]
    target: TargetInfo
    train_rows: int
    test_rows: int


_SHAPE = Option("shape", "shape", help="extents of x without the batch, such as [1, 28, 28]")
SOURCES: Mapping[str, tuple[Option, ...]] = {
    "digits": (_SHAPE,),
    "mnist5k": (_SHAPE,),
    "synthetic": (
        Option("shape", "shape", help="extents of the input x without the batch"),
        Option("inputs", "shapes", help="name: extents, for several inputs"),
        Option("classes", "int", minimum=2, help="number of classes; without it, values"),
        Option("target_shape", "shape", default=(1,), help="extents of a value target"),
        Option("rows", "int", default=1024, minimum=1, help="rows to train on"),
        Option("test_rows", "int", default=256, minimum=1, help="rows held out"),
    ),
    "inline": (
        Option("x", "numbers", help="one entry a row, nested lists of numbers"),
        Option("inputs", "numbers", help="name: rows, for several inputs"),
        Option("y", "numbers", required=True, help="one target a row"),
        Option("classes", "int", minimum=2, help="number of classes; y then holds their indices"),
    ),
    **FILE_OPTIONS,
}
"""What each source may be told, beside what every source takes (`source`, `batch`, `shuffle`)."""

_COMMON = ("source", "batch", "shuffle")
_STORED = {"digits": (64, 1797), "mnist5k": (784, 5000)}
NO_PLACES: Mapping[str, Span] = MappingProxyType({})


def describe(
    source: str,
    options: Mapping[str, object],
    span: Span,
    places: Mapping[str, Span] = NO_PLACES,
    ignored: int | None = None,
) -> Description:
    """Describe a source from its options, and from its files where it has any.

    Args:
        source: a name of SOURCES.
        options: the `data:` section as plain numbers, lists and mappings.
        span: where the section stands; errors point there, or to an option in `places`.
        places: where options stand; `inputs.1` is an entry of one.
        ignored: a class target that the loss leaves out, whether it is a class or not.

    Raises:
        DataError: no such source, option or file, or one that makes no sense.
    """
    options = written(options)
    _check_names(source, options, span)
    found = _describe(source, options, Where(span, places), ignored)
    return replace(found, target=replace(found.target, ignored=ignored))


def _describe(
    source: str, options: Mapping[str, object], where: Where, ignored: int | None
) -> Description:
    span = where.span
    if source in FILE_OPTIONS:
        return _describe_files(source, options, where, ignored)
    if source in _STORED:
        return _describe_stored(source, options, span)
    if source == "synthetic":
        return _describe_synthetic(options, span)
    return _describe_inline(options, span)


def written(options: Mapping[str, object]) -> dict[str, object]:
    """The options without those that are None, which is how a spec says "not written"."""
    return {name: value for name, value in options.items() if value is not None}


def split_rows(rows: int) -> tuple[int, int]:
    """Numbers of training and held-out rows of a stored source with `rows` rows."""
    return rows - rows // HOLD_OUT, rows // HOLD_OUT


def _check_names(source: str, options: Mapping[str, object], span: Span) -> None:
    if source not in SOURCES:
        raise DataError.at(
            "BPC0401",
            f"there is no data source '{source}'",
            span,
            help=suggest(source, SOURCES),
        )
    known = (*_COMMON, *(option.name for option in SOURCES[source]))
    for name in options:
        if name not in known:
            raise DataError.at(
                "BPC0402",
                f"data source '{source}' has no option '{name}'",
                span,
                help=suggest(name, known),
            )
    if source in FILE_OPTIONS:
        _check_required(source, options, span)


def _check_required(source: str, options: Mapping[str, object], span: Span) -> None:
    for option in FILE_OPTIONS[source]:
        if option.required and option.name not in options:
            message = f"data source '{source}' needs {option.name}"
            raise DataError.at("BPC0404", message, span, help=f"{option.name}: {option.help}")


def _describe_files(
    source: str, options: Mapping[str, object], where: Where, ignored: int | None
) -> Description:
    # Reaching for files needs NumPy, which checking a spec alone does not.
    from bpc.data.sources.prepare import prepare

    found = prepare(source, options, where, ignored)
    columns = dict(found.train.columns)
    target, classes = columns.pop("target"), found.classes
    return Description(
        {name: TensorInfo(column.shape, column.dtype) for name, column in columns.items()},
        TargetInfo(
            "value" if classes is None else "class",
            target.shape,
            None if classes is None else len(classes),
            classes or (),
        ),
        len(found.train.rows),
        len(found.test.rows),
    )


def _describe_stored(source: str, options: Mapping[str, object], span: Span) -> Description:
    features, rows = _STORED[source]
    shape = _shape(options.get("shape", [features]), "shape", span)
    if prod(shape) != features:
        raise DataError.at(
            "BPC0403",
            f"shape {list(shape)} has {prod(shape)} elements, an image of '{source}' {features}",
            span,
            help=f"extents whose product is {features}, such as {_example(features)}",
        )
    train_rows, test_rows = split_rows(rows)
    return Description(
        {"x": TensorInfo(shape, F32)}, TargetInfo("class", (), 10), train_rows, test_rows
    )


def _example(features: int) -> str:
    side = round(features**0.5)
    return f"[1, {side}, {side}]"


def _describe_synthetic(options: Mapping[str, object], span: Span) -> Description:
    shapes = _synthetic_shapes(options, span)
    if "classes" in options and "target_shape" in options:
        raise DataError.at("BPC0404", "synthetic has classes or a target_shape, not both", span)
    if "classes" in options:
        target = TargetInfo("class", (), _count(options, "classes", 0, 2, span))
    else:
        target = TargetInfo("value", _shape(options.get("target_shape", [1]), "y", span), None)
    return Description(
        {name: TensorInfo(shape, F32) for name, shape in shapes.items()},
        target,
        _count(options, "rows", 1024, 1, span),
        _count(options, "test_rows", 256, 1, span),
    )


def _synthetic_shapes(options: Mapping[str, object], span: Span) -> Mapping[str, tuple[int, ...]]:
    given = options.get("inputs")
    if ("shape" in options) == (given is not None):
        raise DataError.at(
            "BPC0404",
            "synthetic needs either shape or inputs",
            span,
            help="shape: [64] for one input x, or inputs: {x: [64], mask: [64]}",
        )
    if given is None:
        return {"x": _shape(options["shape"], "shape", span)}
    named = _named(given, span)
    return {name: _shape(value, f"inputs.{name}", span) for name, value in named.items()}


def _describe_inline(options: Mapping[str, object], span: Span) -> Description:
    sources = inline_inputs(options, span)
    if "y" not in options:
        raise DataError.at("BPC0404", "inline needs y, one target a row", span)
    rows = _rows(options["y"], "y", span)
    inputs = {name: _inline_tensor(value, name, rows, span) for name, value in sources.items()}
    return Description(inputs, _inline_target(options, span), rows, rows)


def inline_inputs(options: Mapping[str, object], span: Span) -> Mapping[str, object]:
    """The nested lists of an inline source by input name."""
    given = options.get("inputs")
    if ("x" in options) == (given is not None):
        raise DataError.at(
            "BPC0404",
            "inline needs either x or inputs",
            span,
            help="x: [[1, 2], [3, 4]] for one input, or inputs: {a: [[1]], b: [[2]]}",
        )
    return {"x": options["x"]} if given is None else _named(given, span)


def _inline_tensor(value: object, name: str, rows: int, span: Span) -> TensorInfo:
    found = _rows(value, name, span)
    if found != rows:
        raise DataError.at("BPC0405", f"{name} has {count_of(found, 'row')}, y has {rows}", span)
    return TensorInfo(measure(value, name, span)[1:], F64)


def _inline_target(options: Mapping[str, object], span: Span) -> TargetInfo:
    """Flat integers with `classes` are classes; everything else is values."""
    shape = measure(options["y"], "y", span)
    if "classes" not in options:
        return TargetInfo("value", shape[1:], None)
    if len(shape) != 1:
        raise DataError.at(
            "BPC0405", "with classes, y is a flat list of one class index a row", span
        )
    return TargetInfo("class", (), _count(options, "classes", 0, 2, span))


def measure(value: object, name: str, span: Span) -> tuple[int, ...]:
    """The extents of nested lists of numbers.

    Raises:
        DataError: a row differs from the first one in shape, or holds what is not a number.
    """
    rows = _rows(value, name, span)
    assert isinstance(value, Sequence)
    first = _measure_entry(value[0])
    for row, entry in enumerate(value):
        found = _measure_entry(entry)
        if found is None or found != first:
            raise DataError.at("BPC0406", f"{name}, row {row}: {_fault(found, first)}", span)
    assert first is not None
    return (rows, *first)


def _measure_entry(entry: object) -> tuple[int, ...] | None:
    """Extents of one entry, or None if it is ragged, empty or holds what is not a number."""
    if _is_list(entry):
        assert isinstance(entry, Sequence)
        inner = {_measure_entry(item) for item in entry}
        shape = inner.pop() if len(inner) == 1 else None
        return None if shape is None else (len(entry), *shape)
    return () if isinstance(entry, int | float) and not isinstance(entry, bool) else None


def _fault(found: tuple[int, ...] | None, first: tuple[int, ...] | None) -> str:
    if found is None:
        return "expected numbers in lists of equal length"
    return f"shape {list(found)} differs from row 0, {list(first or ())}"


def _rows(value: object, name: str, span: Span) -> int:
    if not _is_list(value) or not value:
        raise DataError.at("BPC0406", f"{name} is not a list with at least one row", span)
    assert isinstance(value, Sequence)
    return len(value)


def _named(value: object, span: Span) -> Mapping[str, object]:
    names = value if isinstance(value, Mapping) else {}
    reserved = [name for name in names if not str(name).isidentifier() or name == "target"]
    if not names or reserved:
        raise DataError.at(
            "BPC0407",
            "inputs maps a name to each input; names are words, and 'target' is taken",
            span,
            notes=[Note(f"not usable: {name}") for name in reserved],
            help="inputs: {x: [64]}",
        )
    return names


def _shape(value: object, name: str, span: Span) -> tuple[int, ...]:
    items = [value] if isinstance(value, int) else value
    if not _is_list(items) or not all(_is_count(item, 1) for item in items):  # type: ignore[attr-defined]
        raise DataError.at(
            "BPC0403", f"{name}: expected extents of at least 1, found {value!r}", span
        )
    return tuple(items)  # type: ignore[arg-type]


def _count(options: Mapping[str, object], name: str, default: int, least: int, span: Span) -> int:
    value = options.get(name, default)
    if not _is_count(value, least):
        raise DataError.at(
            "BPC0403", f"{name}: expected a whole number from {least}, found {value!r}", span
        )
    assert isinstance(value, int)
    return value


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
