"""A sample of the planted defects: one of each operator in each template; mutate.py plants all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mutate import Mutant, Outcome, list_mutants, try_mutant
from mutation_operators import find_mutations
from mutation_places import HEADER_NAME, Places
from mutation_report import explain, read_reasons
from mutation_subjects import FIRST_RUNS, Subject, read_subjects

NETWORKS = ("images", "lines", "tails")
HEADER_SAMPLES = 2
"""Defects of each operator in the header, which every skeleton shares."""


@pytest.fixture(scope="module")
def subjects() -> Sequence[Subject]:
    return read_subjects(NETWORKS, checked=False)


@pytest.fixture(scope="module")
def outcomes(subjects: Sequence[Subject]) -> list[Outcome]:
    tried = (try_mutant(subjects, item, 2, FIRST_RUNS) for item in sample(subjects))
    return [item for item in tried if item.status != "invalid"]


def sample(subjects: Sequence[Subject]) -> list[Mutant]:
    """The middle one of each template and operator; of the header a few."""
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for item in list_mutants(subjects, Places()):
        groups.setdefault((item.template, item.operator), []).append(item)
    found = []
    for (template, _), group in groups.items():
        count = min(len(group), HEADER_SAMPLES if template == HEADER_NAME else 1)
        found += [group[len(group) * (2 * at + 1) // (2 * count)] for at in range(count)]
    return found


def test_what_is_not_found_has_a_reason(outcomes: list[Outcome]) -> None:
    assert [item.name for item in explain(outcomes, read_reasons())] == []


def test_every_operator_and_template_has_a_defect_that_is_found(outcomes: list[Outcome]) -> None:
    found = [item for item in outcomes if item.status == "found"]
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
        ("e < n ", " true "),
        (" e + k < m", " true "),
        ("e += 3", "e += 3 + 1"),
        ("e * s + r", "(e * s + r) + 1"),
        ("e * s + r", "e + r * s"),
        ("e * s + r", "e + r"),
        ("+= a", "= a"),
    ):
        assert line.replace(old, new) in changed, new
    assert any("__syncthreads" not in item.apply(text) for item in find_mutations(text))
