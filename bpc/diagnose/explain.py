"""`bpc explain`: forward and backward of a network as formulas, with its numbers where few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpc.data.describe import Description
from bpc.data.read import read
from bpc.diagnose.formulas import MEAN_LOSS, Formula, build_joint, write_formulas
from bpc.diagnose.notation import MOST_SHOWN, format_array, render_text, whole_divisor
from bpc.diagnose.symbols import LOSS, name_values
from bpc.errors import Span
from bpc.expr import FUNCTIONS, Call, Const, Expr, Var, walk
from bpc.ir import Graph
from bpc.lower import lower
from bpc.runtime.reference import run_graph
from bpc.spec.model import Spec
from bpc.train.control import initial_control
from bpc.train.initial import initial_values
from bpc.types import Shape, format_shape, shape_at

Array = NDArray[Any]

MOST_ROWS = 8
"""Rows of the largest batch whose numbers are shown."""

Term = tuple[str, tuple[Array, ...]]
"""How factors are multiplied (`mul`: each element, `matmul`: matrices), and the factors."""

Terms = tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One formula: symbol = expr.

    `terms` are the numbers of a sum of products, where the formula is one; `array` is the result.
    Both are None where numbers are not asked for.
    """

    phase: str
    symbol: str
    value: str
    expr: Expr
    shape: Shape
    span: Span
    note: str
    matrices: bool
    terms: Terms | None = None
    array: Array | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The formulas of a network on `rows` rows; `refused` says why numbers are missing."""

    name: str
    rows: int
    names: Mapping[str, str]
    given: tuple[tuple[str, Array], ...]
    lines: tuple[Line, ...]
    refused: str = ""


def explain(spec: Spec, description: Description, values: bool = False) -> Explanation:
    """Write a network's first step as formulas.

    Args:
        spec: a network that lowers without faults.
        description: of its data.
        values: work out the numbers too, on the first batch with the initial weights, in float64.
            A network with more than `MOST_ROWS` rows or `MOST_SHOWN` elements in a tensor is
            shown without.

    Raises:
        DataError: numbers are asked for and the data cannot be read.
    """
    forward = lower(spec, description, training=True)
    rows = min(spec.data.batch, description.train_rows)
    graph = build_joint(forward, spec)
    names = {**name_values(graph, rows), MEAN_LOSS: LOSS}
    formulas = write_formulas(graph, rows, names)
    refused = _why_too_large(graph, formulas, rows) if values else ""
    arrays = _run(graph, spec, rows) if values and not refused else None
    lines = [_make_line(graph, names, formula, rows, arrays) for formula in formulas]
    given = tuple((names[v.name], arrays[v.name]) for v in _given(graph)) if arrays else ()
    return Explanation(spec.name, rows, names, given, tuple(lines), refused)


def _given(graph: Graph) -> list[Any]:
    parameters = (state.value for state in graph.states if state.kind == "parameter")
    return [*graph.inputs, *parameters]


def _why_too_large(graph: Graph, formulas: Sequence[Formula], rows: int) -> str:
    if rows > MOST_ROWS:
        return f"numbers are shown for at most {MOST_ROWS} rows, the batch has {rows}"
    values = graph.values()
    shown = [*_given(graph), *(values[f.value] for f in formulas if f.value in values)]
    largest = max(shown, key=lambda value: prod(shape_at(value.shape, rows)))
    if prod(shape_at(largest.shape, rows)) > MOST_SHOWN:
        told = format_shape(largest.shape)
        return f"numbers are shown for at most {MOST_SHOWN} elements, {largest.name} is {told}"
    return ""


def _run(graph: Graph, spec: Spec, rows: int) -> dict[str, Array]:
    """Every value on the first rows, in float64."""
    source = (spec.data.source, spec.data.options)
    data = read(*source, spec.data.span, spec.seed, spec.data.spans, spec.ignored_class)
    control = {name: np.asarray(number) for name, number in initial_control(spec, 0).items()}
    parameters = [state for state in graph.states if state.kind == "parameter"]
    batch = {name: array[:rows] for name, array in data.train.items()}
    given = {**control, **initial_values(parameters, spec.seed), **batch}
    values = run_graph(graph, given, rows, exact=True)
    mean = values[graph.output("loss")] / values[graph.output("weight")]
    return {**values, MEAN_LOSS: np.asarray(mean)}


def _make_line(
    graph: Graph,
    names: Mapping[str, str],
    formula: Formula,
    rows: int,
    arrays: Mapping[str, Array] | None,
) -> Line:
    known, value = graph.values(), formula.value
    is_loss = value == MEAN_LOSS
    shape = () if is_loss else known[value].shape
    reads = [node.name for node in walk(formula.expr) if isinstance(node, Var)]
    sizes = [prod(shape_at(known[name].shape, rows)) for name in reads if name in known]
    return Line(
        phase="forward" if is_loss else formula.node.phase,
        symbol=names[value],
        value="loss / weight" if is_loss else value,
        expr=formula.expr,
        shape=shape,
        span=formula.node.span,
        note=formula.note,
        matrices=any(size > 1 for size in sizes),
        terms=find_terms(formula.expr, arrays) if arrays else None,
        array=arrays[value] if arrays else None,
    )


# -- numbers --------------------------------------------------------------------------------------


def find_terms(expr: Expr, arrays: Mapping[str, Array]) -> Terms | None:
    """The factors of each term in numbers, if the formula is a sum with a product in it."""
    found: list[Term] = []
    for term in _split(expr):
        sign, factors = _factors(term)
        numbers = [evaluate_tensor(factor, arrays) for factor in factors]
        known = tuple(array for array in numbers if array is not None)
        if len(known) < len(numbers):
            return None
        found.append((sign, known))
    return tuple(found) if any(len(factors) > 1 for _, factors in found) else None


def _factors(term: Expr) -> tuple[str, Sequence[Expr]]:
    if isinstance(term, Call) and term.function in ("mul", "masked_mul", "matmul"):
        sign = "matmul" if term.function == "matmul" else "mul"
        if not any(whole_divisor(item) for item in term.arguments):
            return sign, term.arguments
    return "mul", [term]


def _split(expr: Expr) -> list[Expr]:
    """The terms of a sum."""
    if isinstance(expr, Call) and expr.function == "add":
        return [part for item in expr.arguments for part in _split(item)]
    return [expr]


def evaluate_tensor(expr: Expr, arrays: Mapping[str, Array]) -> Array | None:
    """The value of a formula, or None where it holds what needs more than arrays."""
    done: dict[Expr, Array | None] = {}
    for node in walk(expr):
        done[node] = _evaluate_node(node, done, arrays)
    return done[expr]


def _evaluate_node(
    node: Expr, done: Mapping[Expr, Array | None], arrays: Mapping[str, Array]
) -> Array | None:
    if isinstance(node, Const):
        return np.asarray(node.value)
    if isinstance(node, Var):
        return arrays.get(node.name)
    assert isinstance(node, Call)
    parts = [done[item] for item in node.arguments]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if node.function in FUNCTIONS:
        return np.asarray(FUNCTIONS[node.function].evaluate(*known))
    if node.function == "transpose":
        return np.asarray(known[0].T)
    if node.function == "matmul":
        return np.asarray(np.matmul(known[0], known[1]))
    return None


# -- text -----------------------------------------------------------------------------------------

_WIDEST_FORMULA, _WIDEST_LINE = 44, 100


def format_text(made: Explanation) -> list[str]:
    """Lines of text: given numbers, then forward and backward in the order in which they run."""
    cells = [_cells(made, line) for line in made.lines]
    symbols = max(len(line.symbol) for line in made.lines)
    width = max((len(row[0]) for row in cells if len(row[0]) <= _WIDEST_FORMULA), default=0)
    blocks = [
        _lay_out(f"  {line.symbol:<{symbols}} = ", row, width)
        for line, row in zip(made.lines, cells, strict=True)
    ]
    edge = min(max(len(block[0]) for block in blocks), _WIDEST_LINE)
    out = [_format_given(made)] if made.given else []
    phase = ""
    for line, block in zip(made.lines, blocks, strict=True):
        if line.phase != phase:
            out.append(line.phase if phase else f"{line.phase:<{edge}}  spec")
            phase = line.phase
        note = f"   ({line.note})" if line.note else ""
        out.append(f"{block[0]:<{edge}}  :{line.span.line}{note}")
        out.extend(block[1:])
    return [*out, *_legend(made)]


def _lay_out(head: str, cells: Sequence[str], width: int) -> list[str]:
    """The cells behind the head in one line or, where they are too wide, below each other."""
    formula, *numbers = cells
    line = "  ".join([f"{head}{formula:<{width}}", " ".join(numbers)]).rstrip()
    if len(line) <= _WIDEST_LINE:
        return [line]
    indent = " " * (len(head) - 2)
    return [f"{head}{formula}", *(indent + text for text in numbers)]


def _cells(made: Explanation, line: Line) -> list[str]:
    """The formula, and its numbers or its shape."""
    formula = render_text(line.expr, made.names, not line.matrices)
    if line.array is None:
        return [formula, format_shape(line.shape)] if line.shape else [formula]
    middle = [f"= {format_terms(line.terms)}"] if line.terms else []
    return [formula, *middle, f"= {format_array(line.array)}"]


def format_terms(terms: Terms) -> str:
    """Numbers of a sum of products; matrices that are multiplied stand side by side."""
    texts = []
    for sign, factors in terms:
        matrices = sign == "matmul" and any(array.size > 1 for array in factors)
        texts.append((" " if matrices else " * ").join(format_array(array) for array in factors))
    return " + ".join(texts).replace("+ -", "- ")


def _format_given(made: Explanation) -> str:
    return "given  " + ", ".join(f"{name} = {format_array(array)}" for name, array in made.given)


def _legend(made: Explanation) -> list[str]:
    """What the letters mean, where a formula has any."""
    functions = {
        node.function for line in made.lines for node in walk(line.expr) if isinstance(node, Call)
    }
    notes = []
    if any(name.startswith(("sum_", "max_")) for name in functions):
        notes.append(
            "i is the first axis, j the second...: sum_i adds over i, i alone is the position on it"
        )
    if made.refused:
        notes.append(made.refused)
    return notes


def to_json(made: Explanation) -> dict[str, Any]:
    """The explanation as plain data."""
    return {
        "rows": made.rows,
        "given": {name: array.tolist() for name, array in made.given},
        "lines": [_line_json(made, line) for line in made.lines],
        "refused": made.refused or None,
    }


def _line_json(made: Explanation, line: Line) -> dict[str, Any]:
    array = line.array
    return {
        "phase": line.phase,
        "symbol": line.symbol,
        "value": line.value,
        "formula": render_text(line.expr, made.names, not line.matrices),
        "shape": [str(dim) if not isinstance(dim, int) else dim for dim in line.shape],
        "numbers": None if array is None else array.tolist(),
        "place": line.span.to_json(),
        "note": line.note or None,
    }
