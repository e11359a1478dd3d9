"""Compares what a reader said about a .cu file with the manifest that was written beside it.

    python docs/check_readability.py FOLDER ANSWERS.json

FOLDER is what `bpc compile SPEC --target cuda --out FOLDER` wrote. The questions, and the form of
the answers, are in docs/cuda_readability.md. Prints the score and every wrong answer; exits with 1
if there is one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPERATIONS = {
    "gemm": "matrix product",
    "conv2d": "convolution",
    "conv2d_input": "convolution",
    "conv2d_weight": "convolution",
    "rows": "per row",
    "columns": "column sums",
    "chunks": "sums of chunks",
    "flat": "element-wise",
    "scalar": "single numbers",
}
QUESTIONS = (
    *("operation", "terms", "reads", "writes", "tensors"),
    *("lines", "nodes", "entries", "last_block"),
)

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that is not the manifest's."""

    kernel: str
    question: str
    expected: object
    found: object


def expected_answers(manifest: Mapping[str, Any]) -> dict[str, Answer]:
    """The right answer for each launched function, in the form that readers give."""
    functions = {item["name"]: item for item in manifest["cuda"]["functions"]}
    return {
        name: _expect(item, [functions[part] for part in item["calls"]] or [item])
        for name, item in functions.items()
        if item["launched"]
    }


def _expect(item: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Answer:
    main, *tails = parts
    served = [kernel for part in parts for kernel in part["kernels"]]
    made = {tensor["tensor"] for kernel in served for tensor in kernel["writes"]}
    kernels = [part["kernels"][0] for part in parts]  # of many tensors, the first
    terms = re.search(r"sum over k < (\w+)", main["formulas"][0])
    return {
        "operation": OPERATIONS[main["skeleton"]],
        "terms": terms[1] if terms else None,
        "reads": _shapes(kernels, "reads", made),
        "writes": _shapes(kernels, "writes", set()),
        "tensors": [kernel["space"] for kernel in main["kernels"]],
        "lines": sorted({span["line"] for span in item["spans"]}),
        "nodes": [node for kernel in kernels for node in kernel["nodes"]],
        "entries": sorted({use["entry"] for use in item["launches"]}),
        "last_block": [tail["name"] for tail in tails],
    }


def _shapes(kernels: Sequence[Mapping[str, Any]], side: str, without: set[str]) -> dict[str, str]:
    return {
        tensor["tensor"]: tensor["type"]
        for kernel in kernels
        for tensor in kernel[side]
        if tensor["tensor"] not in without
    }


def compare(expected: Mapping[str, Answer], given: Mapping[str, Answer]) -> Iterator[Wrong]:
    """Every answer that is missing or differs."""
    for kernel, answers in expected.items():
        for question in QUESTIONS:
            found = given.get(kernel, {}).get(question)
            if question in ("reads", "writes"):
                found = _by_name(found)
            if _plain(answers[question]) != _plain(found):
                yield Wrong(kernel, question, answers[question], found)
    for kernel in given.keys() - expected.keys():
        yield Wrong(kernel, "kernel", None, kernel)


def _by_name(value: object) -> object:
    """Tensors as an object of types by name, if they came as a list of `name type`."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {name: kind for name, _, kind in (item.partition(" ") for item in value)}
    return value


def _plain(value: object) -> object:
    """Without order in lists, spaces in shapes, and a difference between 784 and "784"."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted(str(_plain(item)) for item in value)
    return None if value is None else str(value).replace(" ", "")


def main(folder: str, answers: str) -> int:
    """Print the score and what is wrong; the value is the exit code."""
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    expected = expected_answers(manifest)
    given = json.loads(Path(answers).read_text(encoding="utf-8"))
    wrong = list(compare(expected, given))
    asked = len(expected) * len(QUESTIONS)
    for item in wrong:
        print(f"{item.kernel}, {item.question}: expected {item.expected}, found {item.found}")
    print(f"{asked - len(wrong)} of {asked} answers about {len(expected)} kernels are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
