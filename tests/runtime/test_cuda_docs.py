"""Each assumption about a device in docs/cuda.md has a test in tests/gpu, and each test one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_assumptions_and_tests_are_the_same() -> None:
    text = (ROOT / "docs" / "cuda.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .+ \| `(test_\w+)` \|$", text, re.MULTILINE)
    found = [
        node.name
        for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert [name for _, name in rows] == found
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert all(name.startswith(f"test_{int(number):02}_") for number, name in rows)
