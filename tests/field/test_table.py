"""`docs/field_cases.md`: each case has its test, or the name of what it waits for."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from field_cases import CASES

from bpc.ops.layers import layer_schemas

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "field_cases.md"
HEAD = """\
# Field cases

Reports about other training tools, each reduced to a small case with the value that is right. bpc
must get every one of them right on every device. A case that holds has a test of its name in
`tests/field`, on `reference` and `cpu` where it computes anything, and under smaller memory budgets
where it keeps anything. The others wait for an operator that bpc does not have yet.

This page is written from the tests:
`python -m pytest tests/field/test_table.py --update-golden`.

"""


def find_tests() -> dict[str, str]:
    """Every test function of this folder, and its file."""
    found = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = path.name
    return found


def name_of(case: str) -> str:
    """The name of a case's test."""
    return "test_" + case.replace("-", "_")


def write_page() -> str:
    """The page: a table of all cases in their order."""
    tests = find_tests()
    waiting = sum("waits" in case for case in CASES.values())
    lines = [
        f"{len(CASES) - waiting} of {len(CASES)} cases hold, {waiting} wait.",
        "",
        "| case | area | from | |",
        "| --- | --- | --- | --- |",
    ]
    for name, case in CASES.items():
        waits = case.get("waits")
        state = f"waits for {waits}" if waits else f"holds, `{tests[name_of(name)]}`"
        lines.append(f"| `{name}` | {case['area']} | {case['source']} | {state} |")
    return HEAD + "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_a_test_or_waits(name: str) -> None:
    case = CASES[name]
    assert ("waits" in case) != (name_of(name) in find_tests())
    assert "waits" in case or {"setup", "expect"} <= case.keys()


def test_what_is_waited_for_is_not_there() -> None:
    """A new operator takes its cases from the list."""
    kinds = {
        "attention": "attention",
        "batchnorm": "batchnorm",
        "embedding": "embedding",
        "pooling": "max_pool2d",
        "transpose": "transpose",
    }
    schemas = layer_schemas()
    for case in CASES.values():
        if case.get("waits") == "grouped convolution":
            assert "groups" not in {option.name for option in schemas["conv2d"].options}
        elif "waits" in case:
            assert kinds[case["waits"]] not in schemas


def test_the_page_is_that_of_the_tests(golden: Callable[[Path, str], None]) -> None:
    golden(PAGE, write_page())
