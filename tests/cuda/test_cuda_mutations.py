"""Planted defects: each survivor has a reason, and a sample of the others is found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mutate import Mutant, Outcome, list_mutants, read_outcomes, try_mutant
from mutation_operators import find_mutations
from mutation_places import HEADER_NAME, Places
from mutation_report import explain, page, read_reasons
from mutation_subjects import FOLDER, ROOT, Subject, read_subjects

NETWORKS = ("edges", "lines", "tails", "ties", "zero")
HEADER_SAMPLES = 2
"""Defects of each operator in the header, which every skeleton shares."""

LISTED, OUTCOMES = read_outcomes(FOLDER / "outcomes.json")


@pytest.fixture(scope="module")
def subjects() -> Sequence[Subject]:
    return read_subjects(NETWORKS, checked=False)


@pytest.fixture(scope="module")
def tried(subjects: Sequence[Subject]) -> list[Outcome]:
    return [try_mutant(subjects, item, 1, ()) for item in sample(subjects)]


def sample(subjects: Sequence[Subject]) -> list[Mutant]:
    """For each template and operator one that was found, in the kernel that showed it."""
    known = {item.name: item for item in OUTCOMES}
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for item in list_mutants(subjects, Places()):
        groups.setdefault((item.template, item.operator), []).append(item)
    chosen = []
    for (template, _), group in groups.items():
        wanted = [m for item in group for m in where_found(subjects, item, known.get(item.name))]
        count = min(len(wanted), HEADER_SAMPLES if template == HEADER_NAME else 1)
        chosen += [wanted[len(wanted) * (2 * at + 1) // (2 * count)] for at in range(count)]
    return chosen


def where_found(subjects: Sequence[Subject], item: Mutant, outcome: Outcome | None) -> list[Mutant]:
    """The defect in the one kernel in which it was found, if the first ways of running do."""
    if outcome is None or outcome.status != "found":
        return []
    places = [
        place
        for place in item.places
        if outcome.where == f"{subjects[place.subject].name} {place.launched}"
    ]
    return [replace(item, places=tuple(places[:1]))] if places else []


def test_each_survivor_has_a_reason_and_each_reason_a_survivor() -> None:
    reasons = read_reasons()
    assert [item.name for item in explain(OUTCOMES, reasons)] == []
    assert [item.text for item in reasons if not item.survivors] == []


def test_the_page_shows_the_outcomes() -> None:
    reasons = read_reasons()
    left = explain(OUTCOMES, reasons)
    text = Path(ROOT / "docs" / "cuda_mutations.md").read_text(encoding="utf-8")
    assert text == page(LISTED, OUTCOMES, reasons, left)


def test_what_was_found_is_found_again(tried: list[Outcome]) -> None:
    assert [item.name for item in tried if item.status != "found"] == []


def test_every_operator_and_template_has_such_a_defect(tried: list[Outcome]) -> None:
    found = [item for item in tried if item.status == "found"]
    operators = {"barrier", "fence", "shuffle", "comparison", "guard", "choice", "sum", "start"}
    operators |= {"step", "index", "term", "stride", "constant"}
    assert operators <= {item.operator for item in found}
    templates = {"flat", "rows", "columns", "gemm", "conv2d", "chunks", "joined", "scalar"}
    assert {f"{name}.jinja" for name in templates} <= {item.template for item in found}
    assert all(item.report for item in found)


def test_operators_change_what_they_say() -> None:
    text = "  for (int e = t; e < n && e + k < m; e += 3) x[e * s + r] += a;\n  __syncthreads();\n"
    changed = {item.apply(text).strip().split("\n")[0] for item in find_mutations(text)}
    line = "for (int e = t; e < n && e + k < m; e += 3) x[e * s + r] += a;"
    for old, new in (
        ("e < n", "e <= n"),
        ("e < n", "e < -1 + n"),
        (" e < n ", " true "),
        (" e + k < m", " true "),
        ("e += 3", "e += 3 + 1"),
        ("e * s + r", "(e * s + r) + 1"),
        ("e * s + r", "e + r * s"),
        ("e * s + r", "e + r"),
        ("+= a", "= a"),
    ):
        assert line.replace(old, new) in changed, new
    assert any("__syncthreads" not in item.apply(text) for item in find_mutations(text))
