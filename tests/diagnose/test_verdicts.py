"""What a failed check of kernels says as errors, one for each thing that failed."""

from __future__ import annotations

from bpc.diagnose.kernels import Finding, KernelCheck
from bpc.diagnose.resources import Resources
from bpc.diagnose.session import Checked
from bpc.diagnose.verdicts import errors_json, kernel_errors
from bpc.errors import Span

FIRST, SECOND = Span("net.yaml", 4, 5, 6), Span("net.yaml", 7, 5, 4)


def test_findings_and_spills_are_errors_with_places() -> None:
    finding = Finding(
        "micro_step", "gemm", "source in-order", "it races", ("a", "b"), (FIRST, SECOND)
    )
    bad = KernelCheck("gemm", (FIRST, SECOND), findings=[finding])
    spilling = KernelCheck("adam", (SECOND,))
    taken = [make(name, spill) for name, spill in (("gemm", 0), ("adam", 8))]
    checked = Checked((bad, spilling), tuple(taken), (1,))
    assert not checked.ok
    race, spill = errors_json(kernel_errors(checked))["errors"]
    assert race["message"] == "gemm (micro_step, source in-order): it races"
    assert race["place"]["line"] == 4 and race["notes"][1]["place"]["line"] == 7
    assert "adam on sm_90: registers spill" in spill["message"] and spill["place"]["line"] == 7
    sound = Checked((spilling,), (make("adam", 0),), (1,))
    assert sound.ok and errors_json(kernel_errors(sound)) == {}


def make(function: str, spill: int) -> Resources:
    return Resources(function, "sm_90", 32, spill, 0, 0)
