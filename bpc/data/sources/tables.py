"""What a spec may say of each source whose data lies in files."""

from __future__ import annotations

from collections.abc import Mapping

from bpc.types import Option

_SPLIT = Option("split", "split", help="what is held out: a share, every n-th row, or ranges")
_ON_BAD = Option(
    "on_bad",
    "choice",
    default="stop",
    choices=("stop", "skip"),
    help="a row that cannot be used ends the run, or is left out and counted",
)
_TASK = Option(
    "task",
    "choice",
    choices=("classes", "values"),
    help="what the target is, where it is not clear",
)
_CLASSES = Option("classes", "classes", help="how many there are, or their names in order")
_NORMALISE = Option(
    "normalise", "normalise", help="shift and scale inputs, by the rows that are trained on"
)
_STATISTICS = Option(
    "statistics",
    "choice",
    default="element",
    choices=("element", "channel", "all"),
    help="what shares a mean: nothing, the first axis of a row, or all of an input",
)
_SHAPE = Option("shape", "shape", help="extents of a row of x, such as [1, 28, 28]")
_BEHIND = (_TASK, _CLASSES, _SPLIT, _NORMALISE, _STATISTICS, _ON_BAD)

FILE_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "csv": (
        Option("file", "path", required=True, help="rows of cells; may be packed with gzip"),
        Option("test", "path", help="another file, held out"),
        Option("target", "words", required=True, help="column to learn, by name or number from 0"),
        Option("inputs", "words", help="columns of x, or name: columns; all others without it"),
        Option("leave_out", "words", help="columns that are not read"),
        Option("header", "bool", help="whether the first row names columns; found without it"),
        Option("delimiter", "text", help="what separates cells; found without it"),
        Option("missing", "fill", help="number for an empty cell, or mean: of those trained on"),
        _SHAPE,
        *_BEHIND,
    ),
    "npz": (
        Option("file", "path", required=True, help="arrays by name, their first axis counts rows"),
        Option("test", "path", help="another file, held out"),
        Option("inputs", "words", help="arrays, or name: array; all but the target without it"),
        Option("target", "text", help="array to learn; without it target, y or labels"),
        _SHAPE,
        *_BEHIND,
    ),
    "npy": (
        Option("inputs", "paths", required=True, help="the file of x, or name: file"),
        Option("target", "path", required=True, help="the file to learn"),
        Option("test_inputs", "paths", help="other files, held out"),
        Option("test_target", "path", help="the file of their target"),
        _SHAPE,
        *_BEHIND,
    ),
    "idx": (
        Option("images", "path", required=True, help="file of the input x; may be packed"),
        Option("labels", "path", required=True, help="file of the target"),
        Option("test_images", "path", help="other images, held out"),
        Option("test_labels", "path", help="the file of their target"),
        _SHAPE,
        *_BEHIND,
    ),
    "text": (
        Option("file", "path", required=True, help="UTF-8, or any bytes; may be packed with gzip"),
        Option("test", "path", help="another file, held out"),
        Option(
            "unit",
            "choice",
            default="characters",
            choices=("characters", "bytes"),
            help="what a symbol is",
        ),
        Option("context", "int", required=True, minimum=1, help="symbols of x"),
        Option("stride", "int", default=1, minimum=1, help="symbols from one window to the next"),
        Option(
            "predict",
            "choice",
            default="next",
            choices=("next", "each"),
            help="the symbol behind the window, or the one behind each of its symbols",
        ),
        Option("vocabulary", "text", help="all symbols in order; found without it"),
        _SPLIT,
        _ON_BAD,
    ),
}
"""Options of each source. `path` and `paths` are relative to the file in which they stand."""
