"""Products by cuBLASLt, through stand-ins for CuPy and nvmath."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_stand_in import make, simulated, write_spec
from fake_cublaslt import FakeLt, make_cublaslt

import bpc
from bpc.codegen.cuda import generate
from bpc.entries import MICRO_STEP
from bpc.errors import ToolError
from bpc.runtime.cpu.build import plan
from bpc.runtime.cublaslt import Choice, Product
from bpc.runtime.cublaslt_choices import (
    Choices,
    describe_product,
    find_products,
    measure,
    open_products,
    read_choices,
    write_choices,
)
from bpc.runtime.cuda import Gpu, connect


@pytest.fixture
def library(world: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLt]:
    module, fake = make_cublaslt()
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", module)
    yield fake
    assert fake.live == {}, "handles were left behind"


def choices_for(built: Any, version: int = 130200) -> Choices:
    program, source = built
    keys = {
        describe_product(kernel, program.rows).key  # type: ignore[union-attr]
        for kernel in find_products(program, source).values()
    }
    chosen = {
        key: Choice(np.full(8, 7, np.uint64).tobytes().hex(), 512, 1e-6, 2e-6) for key in keys
    }
    return Choices("Fake GPU", version, chosen)


def test_plain_products_are_found(built: Any) -> None:
    program, source = built
    found = {place: describe_product(k, 8) for place, k in find_products(program, source).items()}
    names = {source.launches[entry][at].function for entry, at in found if entry == MICRO_STEP}
    gradients = {"fc1_linear_weight_gradient", "fc2_linear_weight_gradient"}
    assert names == {"fc2_linear", *gradients}
    assert Product(6, 3, 8, True, False, "f32", "f32", "") in found.values()
    assert Product(8, 3, 6, False, False, "f32", "f32", "f32") in found.values()
    assert {p.key for p in found.values() if p} >= {"6x3x8 tn f32->f32", "8x3x6 nn f32+f32->f32"}


def test_choices_survive_a_file(tmp_path: Path, built: Any) -> None:
    path = tmp_path / "cublaslt.json"
    write_choices(path, choices_for(built))
    assert read_choices(path) == choices_for(built)
    for broken in ("{", '{"format": 2}', '{"format": 1, "products": {"k": {"algorithm": "zz"}}}'):
        path.write_text(broken)
        with pytest.raises(ToolError):
            read_choices(path)


def test_a_full_batch_goes_through_the_library(
    world: Any, library: FakeLt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same losses as the simulator, to rounding; a short batch takes the generated kernels."""
    path = write_spec(tmp_path, **{"rows: 40": "rows: 37"})
    wanted = bpc.compile(path, device="sim")
    told = wanted.train(run_dir=tmp_path / "sim")
    program = plan(wanted.entries).program
    write_choices(tmp_path / "choices.json", choices_for((program, generate("small", program))))
    monkeypatch.setenv("BPC_CUBLASLT", str(tmp_path / "choices.json"))
    world.execute = simulated()
    found = bpc.compile(path, device="cuda")
    result = found.train(run_dir=tmp_path / "cuda")
    assert len(world.named("matmul")) >= 3 and "cuBLASLt" in result["device_summary"]
    for key in ("train_loss", "test_loss"):
        assert result["final"][key] == pytest.approx(told["final"][key], rel=1e-5)
    for name, weights in wanted.parameters().items():
        np.testing.assert_allclose(found.parameters()[name], weights, rtol=1e-4, atol=1e-6)
    kept = tmp_path / "cuda" / "cublaslt.json"
    assert read_choices(kept) == read_choices(tmp_path / "choices.json")
    monkeypatch.delenv("BPC_CUBLASLT")
    again = bpc.compile(path, device="cuda", products=kept)
    again.train(run_dir=tmp_path / "again")
    for name, weights in found.parameters().items():
        assert np.array_equal(again.parameters()[name], weights), name
    again.close()
    found.close()
    wanted.close()


def test_choices_of_another_machine_are_refused(
    world: Any, library: FakeLt, built: Any, tmp_path: Path
) -> None:
    path = tmp_path / "choices.json"
    write_choices(path, choices_for(built, version=120000))
    with pytest.raises(ToolError, match="was measured on Fake GPU with cuBLASLt 120000"):
        open_products(path, *built, connect())
    assert open_products(_empty(tmp_path), *built, connect()) is None


def _empty(folder: Path) -> Path:
    path = folder / "empty.json"
    write_choices(path, Choices("Fake GPU", 130200, {}))
    return path


def test_measuring_chooses_what_is_faster(
    world: Any, library: FakeLt, built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make(built)
    times = iter(range(1000))
    real = Gpu.time

    def time(gpu: Gpu, issue: Any, repeats: int, stream: Any) -> float:
        real(gpu, issue, repeats, stream)
        return 3.0 if next(times) % 3 == 0 else 1.0  # generated, then two candidates

    monkeypatch.setattr(Gpu, "time", time)
    chosen = measure(device, built[1])
    assert chosen.by_product.keys() == choices_for(built).by_product.keys()
    assert all(c.seconds == 1.0 and c.generated_seconds == 3.0 for c in chosen.by_product.values())
    device.close()


def test_a_missing_library_is_a_message(
    world: Any, built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", None)
    write_choices(tmp_path / "choices.json", choices_for(built))
    with pytest.raises(ToolError, match="cuBLASLt cannot be used"):
        open_products(tmp_path / "choices.json", *built, connect())


def test_one_file_speaks_to_cupy() -> None:
    package = Path(bpc.__file__).parent
    speaks = re.compile(r"^\s*(import|from) cupy|import_module\([\"']cupy", re.MULTILINE)
    files = [path for path in package.rglob("*.py") if speaks.search(path.read_text())]
    assert files == [package / "runtime" / "cuda.py"]
