"""The CUDA text as a person and a compiler meet it: names, widths, order, `#line`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import bpc
from bpc.codegen.cuda import CudaSource, generate
from bpc.codegen.wrapping import WIDTH, mark_places, wrap_code
from bpc.errors import ToolError
from bpc.plan.naming import LONGEST, identifier
from bpc.resources import spec_root
from bpc.runtime.cpu.build import plan, write_source
from bpc.runtime.sim.nvrtc import candidates, compile_nvrtc
from bpc.runtime.sim_device import self_contained

ROOT = Path(__file__).resolve().parents[2]
SPECS = ("digits_mlp", "mnist_mlp", "small_conv", "synthetic_mlp12", "worked/three_layer")
needs_nvrtc = pytest.mark.skipif(
    not any(path.is_file() for path in candidates()), reason="NVRTC is not installed"
)


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@cache
def source_of(name: str, debug_lines: bool = False) -> CudaSource:
    net = bpc.compile(f"specs/{name}.yaml")
    return generate(net.spec.name, plan(net.entries).program, debug_lines)


@pytest.mark.parametrize("name", SPECS)
def test_names_are_short_unique_and_say_what_happens(name: str) -> None:
    functions = source_of(name).functions
    names = [function.name for function in functions]
    assert len(set(names)) == len(names)
    for word in names:
        assert re.fullmatch(r"[A-Za-z_]\w*", word) and len(word) <= LONGEST
        assert "_to_the_end" not in word
    assert {"norm_and_control", "norm_chunks", "update_control"} <= set(names) or name == (
        "worked/three_layer"
    )
    if name in ("digits_mlp", "mnist_mlp", "small_conv"):
        launched = [launch.function for launch in source_of(name).launches["update"]]
        assert launched == ["norm_and_control", "adam"]


@pytest.mark.parametrize("name", SPECS)
def test_functions_stand_in_launch_order_behind_what_they_call(name: str) -> None:
    source = source_of(name)
    first = list(dict.fromkeys(
        launch.function for launches in source.launches.values() for launch in launches
    ))
    order = [function.name for function in source.functions if function.is_global]
    assert order == first
    seen: set[str] = set()
    for function in source.functions:
        assert set(function.calls) <= seen
        seen.add(function.name)
        assert f" {function.name}(" in source.text


@pytest.mark.parametrize("name", SPECS)
def test_lines_fit_and_headers_tell(name: str) -> None:
    source = source_of(name)
    assert max(map(len, source.text.splitlines())) <= WIDTH
    for function in source.functions:
        head = function.text.partition(" void ")[0]
        assert f"// {function.name}\n" in head
        assert re.search(r"//   from \S+\.yaml:\d+", head)
        if not function.calls:
            for word in ("writes ", "nodes ", "space ", "FLOPs"):
                assert word in head, (function.name, word)
            assert re.search(r"blocks? of \d+ threads|of the last block of", head)


def test_a_function_for_many_tensors_speaks_of_none_of_them() -> None:
    source = source_of("mnist_mlp")
    text = source.function("adam").text
    code = text[text.index("__global__") :]
    assert "next_parameter" in code and "grad_parameter" in code
    without_comments = re.sub(r"//.*", "", code)
    assert "linear1" not in without_comments
    for tensor in ("linear1_weight", "linear3_bias"):
        assert f"adam_{tensor} [" in text.partition("__global__")[0].replace("\n//  ", "")


@pytest.mark.parametrize("name", ["digits_mlp", "small_conv"])
def test_softmax_and_cross_entropy_read_and_write_a_row_once(name: str) -> None:
    source = source_of(name)
    function = source.function("loss_cross_entropy_with_gradient_rows")
    logits = re.search(r"(\w+)_in,\n *const int64_t\* target_in", function.text)
    assert logits is not None
    code = re.sub(r"//[^\n]*", "", function.text)
    assert len(re.findall(rf"\b{logits[1]}_in\b", code)) == 2  # the parameter and one load
    assert len(re.findall(rf"bpc_store\(d_{logits[1]}_out", code)) == 1
    loads = [line for line in code.splitlines() if f"bpc_load({logits[1]}_in" in line]
    assert loads and "_held[k] = " in loads[0]


def lines_of(text: str, name: str) -> Iterator[tuple[str, int, str]]:
    """(file, line, text) as a compiler counts."""
    file, number = name, 1
    for line in text.splitlines():
        found = re.fullmatch(r'#line (\d+) "(.*)"', line)
        if found:
            file, number = found[2], int(found[1])
            continue
        yield file, number, line
        number += 1


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("name", ["digits_mlp", "small_conv"])
def test_debug_lines_name_the_spec_and_then_the_file_again(name: str, target: str) -> None:
    net = bpc.compile(f"specs/{name}.yaml")
    program = plan(net.entries).program
    cuda = target == "cuda"
    made = source_of(name, True).text if cuda else write_source(program, net.spec.name, True).text
    plain = source_of(name).text if cuda else write_source(program, net.spec.name).text
    assert "#line" not in plain
    assert not re.search(r"#line 0\b", made)
    file = f"{identifier(net.spec.name)}.{'cu' if cuda else 'cpp'}"
    physical, marked = made.splitlines(), 0
    spec = (ROOT / f"specs/{name}.yaml").read_text("utf-8").splitlines()
    for where, number, line in lines_of(made, file):
        if where == file:
            assert physical[number - 1] == line
            continue
        marked += 1
        assert line.endswith(f"{where}:{number}") and spec[number - 1].strip()
    assert marked > 30
    bare = [line for line in physical if not line.startswith("#line")]
    assert wrap_code("\n".join(bare) + "\n") == plain


@needs_nvrtc
def test_a_compilers_error_names_the_line_of_the_spec() -> None:
    source = source_of("digits_mlp", True)
    text = source.text.replace("const float linear1 = acc +", "const float linear1 = acc + oops +")
    assert text != source.text
    broken = self_contained(CudaSource(text, source.launches), "digits_mlp.cu")
    with pytest.raises(ToolError) as caught:
        compile_nvrtc(broken, "sm_90", name="digits_mlp.cu")
    first = caught.value.diagnostics[0]
    assert first.span is not None and "oops" in first.message
    assert (first.span.file, first.span.line) == ("specs/digits_mlp.yaml", 16)


@needs_nvrtc
def test_debug_lines_change_no_instruction() -> None:
    texts = [self_contained(source_of("digits_mlp", on), "digits_mlp.cu") for on in (False, True)]
    made = [compile_nvrtc(text, "compute_90").ptx for text in texts]
    assert made[0] and made[0] == made[1]


def test_wrapping_keeps_the_code() -> None:
    line = "    const float value = " + " + ".join(f"f(argument{i}, {i})" for i in range(12))
    text = wrap_code(f"{line};  // layer, net.yaml:3")
    assert max(map(len, text.splitlines())) <= WIDTH
    comment, *code = text.splitlines()
    assert comment == "    // layer, net.yaml:3"
    assert " ".join(part.strip() for part in code) == f"{line.strip()};"
    assert wrap_code("short;  // net.yaml:3") == "short;  // net.yaml:3"
    assert wrap_code("#define " + "x" * 200) == "#define " + "x" * 200


def test_a_place_is_marked_only_behind_a_statement() -> None:
    net = bpc.compile(spec_root() / "worked/neuron.yaml")
    kernels = plan(net.entries).program.entries["micro_step"].kernels
    file, line = kernels[0].spans[0].file, kernels[0].spans[0].line
    text = f"//   from {file}:{line}\n  x = 1;  // z, {file}:{line}\n  y = 2;"
    assert mark_places(text, kernels, "n.cu").splitlines() == [
        f"//   from {file}:{line}",
        f'#line {line} "{file}"',
        f"  x = 1;  // z, {file}:{line}",
        '#line 5 "n.cu"',
        "  y = 2;",
    ]
