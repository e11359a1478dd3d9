"""The power of the checks: each planted defect is seen, in both modes, by the expected kind."""

from __future__ import annotations

import pytest
from sim_defects import DEFECTS, Defect, find

from bpc.runtime.sim.module import Mode


@pytest.mark.parametrize("mode", ["source", "ptx"])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.replace(" ", "-"))
def test_planted_defect_is_found(defect: Defect, mode: Mode) -> None:
    found = find(defect, mode)
    print(f"{defect.name:50} {mode:7} {', '.join(found)}")
    assert defect.seen & found.keys(), f"expected {set(defect.seen)}, found {found or 'nothing'}"


def test_there_are_enough_defects() -> None:
    assert len(DEFECTS) >= 27
    assert len({defect.text() for defect in DEFECTS}) == len(DEFECTS)
