"""Short names for the values of a graph, as a person writes them: `w1`, `dL/dz`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from bpc.ir import Graph, Node, State, Value
from bpc.types import shape_at

LOSS = "L"
_LETTERS = {"weight": "w", "bias": "b"}
_NUMBER = re.compile(r"\d+$")
_COPY = re.compile(r"\.\d+$")

# What an op gives beside its result; other results are called by their position.
_RESULTS = {
    ("cross_entropy", 2): "m",
    ("cross_entropy", 3): "l",
    ("layernorm", 1): "mean",
    ("layernorm", 2): "r",
}


def name_values(graph: Graph, rows: int) -> dict[str, str]:
    """A symbol for every value of a joint graph; no two values share one.

    Inputs and layers keep their names. A parameter is called by the letter of its role (a capital
    for a matrix) with the number in its layer's name, or by that name where numbers do not tell
    layers apart. The gradient of v is dL/dv; where several parts are added, the sum is.
    """
    symbols: dict[str, str] = {}
    taken: set[str] = {LOSS}
    layers = [node.output.name for node in graph.nodes if node.output.name == node.scope]
    inputs = [value.name for value in graph.inputs]
    for name in (*inputs, *layers):
        free = name == "target" and "y" not in (*inputs, *layers)
        _take(symbols, taken, name, ["y"] if free else [])
    parameters = [state for state in graph.states if state.kind == "parameter"]
    for state in parameters:
        _take(symbols, taken, state.name, _parameter_names(state, parameters, rows))
    for node in graph.nodes:
        for value in node.outputs:
            _take(symbols, taken, value.name, _result_names(node, value.name))
    symbols.update(_name_gradients(graph, symbols))
    return symbols


def _take(symbols: dict[str, str], taken: set[str], name: str, wanted: Iterable[str]) -> None:
    """Give a value the first symbol that is free; its own name is the last resort."""
    if name in symbols:
        return
    symbol = next((each for each in (*wanted, name) if each not in taken), f"{name}'")
    taken.add(symbol)
    symbols[name] = symbol


def _parameter_names(state: State, others: Sequence[State], rows: int) -> list[str]:
    """What a parameter may be called, the shortest first."""
    layer, _, role = state.name.rpartition(".")
    if not layer:
        return []
    letter = _letter(state.value, role, rows)
    same = [other for other in others if other.name.rpartition(".")[2] == role]
    numbers = [_number(other.name.rpartition(".")[0]) for other in same]
    if len(same) == 1:
        return [letter]
    number = _number(layer)
    told_apart = number and "" not in numbers and len(set(numbers)) == len(numbers)
    return [f"{letter}{number}"] if told_apart else [f"{letter}_{layer}"]


def _letter(value: Value, role: str, rows: int) -> str:
    letter = _LETTERS.get(role, role)
    shape = shape_at(value.shape, rows)
    return letter.upper() if letter == "w" and any(extent > 1 for extent in shape) else letter


def _result_names(node: Node, name: str) -> list[str]:
    """What a further result of an op may be called, also where the op is written out."""
    _, _, position = name.rpartition("#")
    told = _RESULTS.get((node.role or node.op, int(position) if position.isdigit() else 0))
    if told is None:
        return []
    return [told] if node.scope == "loss" else [f"{told}_{node.scope}"]


def _number(name: str) -> str:
    found = _NUMBER.search(name)
    return found.group() if found else ""


def gradients_of(graph: Graph) -> dict[str, list[str]]:
    """For each differentiated value its gradients in order: parts first, the whole last."""
    known = {value.name for value in (*graph.inputs, *(state.value for state in graph.states))}
    known |= {v.name for node in graph.nodes if node.phase == "forward" for v in node.outputs}
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        name = node.output.name
        if node.phase != "backward" or not name.startswith("d_"):
            continue
        whole = name.removeprefix("d_")
        of = whole if whole in known else _COPY.sub("", whole)
        if of in known:
            found.setdefault(of, []).append(name)
    return found


def _name_gradients(graph: Graph, symbols: Mapping[str, str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for of, gradients in gradients_of(graph).items():
        *parts, total = gradients
        symbol = f"d{LOSS}/d{symbols[of]}"
        named[total] = symbol
        named.update((part, f"{symbol}[{k}]") for k, part in enumerate(parts, 1))
    return named
