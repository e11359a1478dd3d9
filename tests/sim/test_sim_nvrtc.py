"""NVRTC: machine code for three architectures, messages with lines, and its absence."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_cases import CASES, read_kernel

from bpc.errors import ToolError
from bpc.runtime.sim import nvrtc
from bpc.runtime.sim.nvrtc import ARCHITECTURES, candidates, compile_nvrtc, find_library


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", CASES)
def test_kernels_compile_to_machine_code(name: str, arch: str) -> None:
    result = compile_nvrtc(read_kernel(name), arch)
    assert result.cubin is not None and result.cubin[:4] == b"\x7fELF"
    assert result.ptx is not None and f".target {arch}" in result.ptx


def test_a_virtual_architecture_gives_ptx_alone() -> None:
    result = compile_nvrtc(read_kernel("gemm"), "compute_90")
    assert result.cubin is None and result.ptx is not None
    assert "fma.rn.ftz.f32" in result.ptx, "the flags ask for flushed subnormals"


def test_products_are_not_contracted() -> None:
    text = 'extern "C" __global__ void k(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    ptx = compile_nvrtc(text, "compute_90").ptx
    assert ptx is not None and "fma" not in ptx


def test_results_are_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" __global__ void kept(float* x) { x[0] = 1; }'
    first = compile_nvrtc(text, "sm_90")

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "_compile", refuse)
    assert compile_nvrtc(text, "sm_90") == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_nvrtc(text, "sm_90", ("--maxrregcount=32",))


def test_each_message_has_its_line() -> None:
    text = 'extern "C" __global__ void k(float* x) {\n  y = 1;\n  x[0] = z;\n}\n'
    with pytest.raises(ToolError) as error:
        compile_nvrtc(text, name="net.cu")
    places = [str(d.span) for d in error.value.diagnostics]
    assert places == ["net.cu:2:1", "net.cu:3:1"]
    assert '"y" is undefined' in error.value.diagnostics[0].message


def test_a_line_directive_moves_messages_to_the_spec() -> None:
    text = '#line 7 "specs/mlp.yaml"\nextern "C" __global__ void k(float* x) { x[0] = z; }'
    with pytest.raises(ToolError) as error:
        compile_nvrtc(text)
    assert str(error.value.diagnostics[0].span) == "specs/mlp.yaml:7:1"


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter(()))
    with pytest.raises(ToolError) as error:
        find_library()
    assert error.value.diagnostics[0].code == "BPC0623"
    assert error.value.diagnostics[0].help == 'pip install "bpc[sim]"'


def test_a_toolkit_serves_where_the_wheel_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "lib64" / "libnvrtc.so.13"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(nvrtc, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert next(candidates()) == library
