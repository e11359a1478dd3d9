"""The GPU's host side against a stand-in for CuPy that runs everything as late as it may."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_stand_in import MADE, batch, feed, make, write_spec
from fake_cupy import TO_DEVICE, TO_HOST, WITHIN, WORLD, memory

import bpc
from bpc.codegen.cuda import Argument, generate
from bpc.entries import EVALUATE, MICRO_STEP, UPDATE
from bpc.errors import ToolError
from bpc.plan.program import Program
from bpc.runtime import cuda_build, select
from bpc.runtime.cpu.build import plan
from bpc.runtime.cuda import connect
from bpc.runtime.cuda_device import CudaDevice, CudaOptions
from bpc.runtime.cuda_host import CELLS, SmallWrites
from bpc.runtime.launching import block_bytes

# -- memory ---------------------------------------------------------------------------------------


def test_one_allocation_of_exactly_the_plan_and_one_beside_it(world: Any, built: Any) -> None:
    program, source = built
    device = make(built)
    sizes = [size for _, size in world.named("malloc")]
    assert sizes == [program.arena_bytes, device.facts["beside_bytes"]]
    assert device.arena_bytes == device.planned_peak_bytes == program.arena_bytes
    one = make(built, CudaOptions(slots=1))
    assert one.facts["beside_bytes"] == -(-block_bytes(source) // 64) * 64
    assert one.facts["beside_bytes"] * 2 < device.facts["beside_bytes"]
    assert "Fake GPU" in device.summary and "beside the arena" in device.summary
    assert device.facts["pinned_bytes"] == sum(
        size for _, size in world.named("hostAlloc")[: len(world.named("hostAlloc")) // 2]
    )


def test_the_arena_starts_as_zeros(world: Any, built: Any) -> None:
    device = make(built)
    for name in built[0].persistent:
        assert not np.any(device.read_state(name)), name


def test_running_allocates_nothing(world: Any, built: Any) -> None:
    device = make(built)
    before = len(world.named("malloc", "hostAlloc"))
    for step in range(3):
        device.run(MICRO_STEP, feed(device, batch(built[0], step, 8)))
        device.run(UPDATE, 8)
        device.read_scalar("control.found_inf")
    assert len(world.named("malloc", "hostAlloc")) == before


def test_closing_waits_and_gives_everything_back(world: Any, built: Any) -> None:
    device = make(built)
    device.run(MICRO_STEP, feed(device, batch(built[0], 1, 8)))
    feed(device, batch(built[0], 2, 8))  # still on its way
    device.close()
    gc.collect()
    assert world.device == {} and world.pinned == {}
    frees = [at for at, entry in enumerate(world.log) if entry[0] == "free"]
    waits = [at for at, entry in enumerate(world.log) if entry[0] == "synchronize"]
    assert max(waits) < frees[-1] and all(not stream.queue for stream in world.streams.values())
    device.close()  # a second time does nothing


def test_states_of_any_size_pass_through_a_small_buffer(
    world: Any, built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpc.runtime.cuda_device.MOST_BOUNCED", 64)
    device = make(built)
    sent = np.arange(30, dtype=np.float64).reshape(5, 6)
    before = len(world.named("copy"))
    device.write_state("fc1.weight", sent)
    assert [entry[4] for entry in world.named("copy")[before:]] == [64, 56]
    np.testing.assert_array_equal(device.read_state("fc1.weight"), sent)


def test_16_bit_states_come_out_as_float32(world: Any, tmp_path: Path) -> None:
    path = write_spec(tmp_path, **{"train: {": "train: {precision: bf16, "})
    program = plan(bpc.compile(path, device="reference").entries).program
    device = make((program, generate("small", program)))
    device.write_state("fc1.bias", np.asarray([1.0, 1.00390625, 3.0, 4.0, 5.0, 1e30]))
    found = device.read_state("fc1.bias")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [1.0, 1.0, 3.0, 4.0, 5.0, 1e30], rtol=1e-2)


# -- launches -------------------------------------------------------------------------------------


def test_kernels_are_launched_as_the_launch_list_says(world: Any, built: Any) -> None:
    program, source = built
    device = make(built, CudaOptions(slots=1, graphs=False))
    rows = feed(device, batch(program, 0, 8))
    for entry in source.launches:
        before = len(world.named("kernel"))
        device.run(entry, rows)
        done = world.named("kernel")[before:]
        wanted = [(x.function, (x.grid,), (x.threads,)) for x in source.launches[entry]]
        assert [call[1:4] for call in done] == wanted
        for call, launch in zip(done, source.launches[entry], strict=True):
            _check_arguments(device, call[4], launch, program, entry)


def _check_arguments(
    device: CudaDevice, passed: Any, launch: Any, program: Program, entry: str
) -> None:
    placed = program.entries[entry]
    for value, argument in zip(passed, launch.arguments, strict=True):
        if argument.kind == "tensor":
            storage = placed.storage[argument.value]
            offset = int(value) - device.arena_address
            assert offset == placed.offsets[storage]
            assert 0 <= offset <= offset + placed.sizes[storage] <= program.arena_bytes
        elif argument.kind == "parts":
            assert type(value) is np.int32 and value == len(launch.table)
        else:
            assert WORLD.holds(WORLD.device, int(value), 8)
            assert not 0 <= int(value) - device.arena_address < program.arena_bytes


def test_tables_hold_addresses_in_the_arena(world: Any, built: Any) -> None:
    program, source = built
    device = make(built, CudaOptions(slots=1))
    (update,) = [x for x in source.launches[UPDATE] if x.table and not x.tails]
    at = device._packed[0].launches[UPDATE][source.launches[UPDATE].index(update)].arguments[0]
    cells = memory(at, 8 * len(update.table) * (len(update.table[0][0]) + 3)).view(np.int64)
    names, numbers = update.table[0]
    placed = program.entries[UPDATE]
    wanted = [device.arena_address + placed.offsets[placed.storage[name]] for name in names]
    assert list(cells[: len(wanted) + 3]) == [*wanted, *numbers]


def test_all_kernels_are_loaded_before_the_first_capture(world: Any, built: Any) -> None:
    device = make(built)
    names = {launch.function for listed in built[1].launches.values() for launch in listed}
    assert {name for _, name in world.named("load")} == names
    assert device.facts["kernels"].keys() == names
    assert not world.named("begin_capture")


def test_nvrtc_is_told_the_conventions_and_the_headers(world: Any, built: Any) -> None:
    make(built)
    ((_, options),) = world.named("module")
    assert {"--fmad=false", "--ftz=true", "-std=c++17"} <= set(options)
    folders = [Path(option[2:]) for option in options if option.startswith("-I")]
    assert any((folder / "bpc_cuda.h").exists() for folder in folders)
    assert any((folder / "bpc_storage.h").exists() for folder in folders)
    assert any(option.startswith("-DBPC_HEADERS=0x") for option in options)


# -- graphs ---------------------------------------------------------------------------------------


def test_an_entry_point_is_captured_once_and_replayed(world: Any, built: Any) -> None:
    device = make(built, CudaOptions(slots=1))
    for step in range(5):
        device.run(MICRO_STEP, feed(device, batch(built[0], step, 8)))
        device.run(UPDATE, 8)
    names = [entry[0] for entry in world.named("begin_capture", "end_capture", "graph")]
    assert names.count("begin_capture") == names.count("end_capture") == 2
    assert names.count("graph") == 10
    issued = sum(len(built[1].launches[entry]) for entry in (MICRO_STEP, UPDATE))
    assert len(world.named("kernel")) == issued
    counts = {entry[2] for entry in world.named("graph")}
    assert counts == {len(built[1].launches[entry]) for entry in (MICRO_STEP, UPDATE)}


def test_two_slots_take_two_graphs_where_inputs_are_read(world: Any, built: Any) -> None:
    device = make(built)
    for step in range(6):
        device.run(MICRO_STEP, feed(device, batch(built[0], step, 8)))
        device.run(UPDATE, 8)
    assert len(world.named("begin_capture")) == 3  # micro_step twice, update once


@pytest.mark.parametrize("slots", [1, 2])
def test_short_batches_replay_the_same_graph(world: Any, built: Any, slots: int) -> None:
    seen: list[int] = []
    device = make(built, CudaOptions(slots=slots))
    launches = built[1].launches[EVALUATE]
    which = launches[0].arguments.index(Argument("rows"))

    def execute(module: Any, name: str, grid: int, threads: int, args: Any) -> None:
        if name == launches[0].function:
            seen.append(int(memory(int(args[which]), 8).view(np.int64)[0]))

    world.execute = execute
    given = (8, 8, 3, 8, 8, 3, 3, 1, 8)
    for rows in given:
        device.run(EVALUATE, feed(device, batch(built[0], rows, rows)))
    device.read_output(EVALUATE, "loss", 1)
    assert seen == list(given)
    assert len(world.named("begin_capture")) == slots


def test_a_capture_that_fails_leaves_no_stream_in_capture(world: Any, built: Any) -> None:
    device = make(built)
    rows = feed(device, batch(built[0], 0, 8))
    world.kernel_error = 700
    with pytest.raises(ToolError, match="CUDA failed while launching a kernel") as caught:
        device.run(MICRO_STEP, rows)
    assert all(stream.captured is None for stream in world.streams.values())
    assert "BPC_CUDA_GRAPH=0" in str(caught.value.diagnostics[0].help)
    world.kernel_error, world.capture_error = None, 700
    with pytest.raises(ToolError, match="capturing a graph"):
        device.run(MICRO_STEP, rows)


def test_the_environment_switches_graphs_and_slots(
    world: Any, net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BPC_CUDA_GRAPH", "0")
    monkeypatch.setenv("BPC_CUDA_SLOTS", "1")
    device = cuda_build.make_cuda(net.entries)
    MADE.append(device)
    device.run(UPDATE, 8)
    assert not world.named("begin_capture", "graph") and len(world.named("kernel")) > 0
    assert "single launches" in device.summary and len(device._packed) == 1


def test_one_by_one_waits_behind_every_launch(world: Any, built: Any) -> None:
    device = make(built)
    rows = feed(device, batch(built[0], 0, 8))
    before = len(world.log)
    steps = list(device.run_one_by_one(MICRO_STEP, rows))
    assert steps == list(range(len(built[1].launches[MICRO_STEP])))
    names = [x[0] for x in world.log[before:] if x[0] in ("kernel", "synchronize")]
    assert names == ["kernel", "synchronize"] * len(steps)
    assert not world.named("begin_capture")


# -- batches --------------------------------------------------------------------------------------


def reader(device: CudaDevice, names: tuple[str, ...] = ("x", "target")) -> list[tuple[Any, ...]]:
    """What the first launch of each graph finds in the slot that it was packed for."""
    seen: list[tuple[Any, ...]] = []
    first = device.program.entries[MICRO_STEP]
    places = {
        slot: {name: device.arena_address + moved.offsets[name] for name in names}
        for slot, moved in enumerate(device._programs)
    }
    kernel = device._packed[0].launches[MICRO_STEP][0]
    which = kernel.arguments.index(device.arena_address + first.offsets["x"])

    def execute(module: Any, name: str, grid: int, threads: int, args: Any) -> None:
        if name == kernel.function:
            slot = next(s for s, at in places.items() if at["x"] == int(args[which]))
            x = memory(places[slot]["x"], 8 * 5 * 4).view(np.float32).reshape(8, 5).copy()
            target = memory(places[slot]["target"], 8 * 8).view(np.int64).copy()
            seen.append((slot, x, target))

    WORLD.execute = execute
    return seen


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_every_run_reads_its_own_batch(world: Any, built: Any, slots: int) -> None:
    device = make(built, CudaOptions(slots=slots))
    seen = reader(device)
    given = [batch(built[0], seed, 8) for seed in range(7)]
    for item in given:
        device.run(MICRO_STEP, feed(device, item))
    device.read_scalar("control.loss")
    assert [slot for slot, _, _ in seen] == [at % slots for at in range(1, 8)]
    for (_, x, target), item in zip(seen, given, strict=True):
        np.testing.assert_array_equal(x, item["x"])
        np.testing.assert_array_equal(target, item["target"])


def test_a_batch_that_is_not_written_again_is_read_again(world: Any, built: Any) -> None:
    device = make(built)
    seen = reader(device)
    first, second = batch(built[0], 1, 8), batch(built[0], 2, 8)
    device.run(MICRO_STEP, feed(device, first))
    device.run(MICRO_STEP, 8)
    device.write_input("x", second["x"])  # the target stays
    device.run(MICRO_STEP, 8)
    device.read_scalar("control.loss")
    for (_, x, target), wanted in zip(seen, (first, first, second), strict=True):
        np.testing.assert_array_equal(x, wanted["x"])
        np.testing.assert_array_equal(target, first["target"])
    assert len({slot for slot, _, _ in seen}) == 2
    assert len([entry for entry in world.named("copy") if entry[1] == WITHIN]) == 1


def test_an_input_written_twice_before_a_run_keeps_the_last(world: Any, built: Any) -> None:
    device = make(built)
    seen = reader(device)
    feed(device, batch(built[0], 1, 8))
    last = batch(built[0], 2, 8)
    device.run(MICRO_STEP, feed(device, last))
    device.read_scalar("control.loss")
    np.testing.assert_array_equal(seen[0][1], last["x"])


def test_rows_are_gathered_and_converted_on_the_way(world: Any, built: Any) -> None:
    device = make(built)
    seen = reader(device)
    data = np.arange(100.0).reshape(20, 5)
    rows = np.asarray([3, 19, 0, 7, 7, 1, 2, 4])
    device.write_rows("x", data, rows)
    device.write_rows("target", np.arange(20) % 3, rows)
    device.run(MICRO_STEP, 8)
    device.write_rows("x", data.astype(np.float32), rows[::-1])
    device.write_rows("target", (np.arange(20) % 3).astype(np.int32), rows)
    device.run(MICRO_STEP, 8)
    device.read_scalar("control.loss")
    np.testing.assert_array_equal(seen[0][1], data[rows])
    np.testing.assert_array_equal(seen[1][1], data[rows[::-1]])
    np.testing.assert_array_equal(seen[1][2], rows % 3)


def test_only_written_rows_are_copied_from_pinned_memory(world: Any, built: Any) -> None:
    device = make(built)
    before = len(world.log)
    device.run(MICRO_STEP, feed(device, batch(built[0], 0, 3)))
    copies = [x for x in world.log[before:] if x[0] == "copy" and x[4] > 8]
    assert [(kind, size) for _, kind, _, _, size, _ in copies] == [
        (TO_DEVICE, 3 * 5 * 4),
        (TO_DEVICE, 3 * 8),
    ]
    compute = device.stream.ptr
    assert all(stream != compute for *_, stream in copies)
    order = [x[0] for x in world.log[before:] if x[0] in ("wait", "record", "graph")]
    assert order == ["record", "wait", "graph", "record"]


def test_the_host_does_not_wait_between_batches(world: Any, built: Any) -> None:
    device = make(built)
    device.run(MICRO_STEP, feed(device, batch(built[0], 0, 8)))
    before = len(world.log)
    device.run(MICRO_STEP, feed(device, batch(built[0], 1, 8)))
    assert not [x for x in world.log[before:] if x[0] in ("synchronize", "wait for event")]


# -- small values ---------------------------------------------------------------------------------


def test_control_values_land_in_order(world: Any, built: Any) -> None:
    device = make(built, CudaOptions(graphs=False))
    at = device.arena_address + built[0].offsets["control.first_row"]
    seen: list[int] = []
    world.execute = lambda *_: seen.append(int(memory(at, 8).view(np.int64)[0]))
    for value in range(3 * CELLS):
        device.write_scalar("control.first_row", value)
        device.run(UPDATE, 8)
    assert device.read_scalar("control.first_row") == 3 * CELLS - 1
    assert seen == [v for v in range(3 * CELLS) for _ in built[1].launches[UPDATE]]
    assert isinstance(device.read_scalar("control.first_row"), int)


def test_a_cell_is_not_used_again_before_its_copy(world: Any) -> None:
    gpu = connect()
    stream, target = gpu.make_stream(), gpu.allocate("values", 8 * 5 * CELLS)
    small = SmallWrites(gpu, stream)
    for at in range(5 * CELLS):
        small.send(target.address + 8 * at, np.asarray(at, np.int64))
    stream.synchronize()
    found = memory(target.address, target.nbytes).view(np.int64)
    np.testing.assert_array_equal(found, np.arange(5 * CELLS))


def test_metrics_come_in_one_copy_and_late(world: Any, built: Any) -> None:
    device = make(built)
    device.run(MICRO_STEP, feed(device, batch(built[0], 0, 8)))
    device.run(UPDATE, 8)
    before = len(world.log)
    for name in ("control.found_inf", "control.loss", "control.weight", "norm.fc1.weight"):
        device.read_scalar(name)
    calls = [x[0] for x in world.log[before:]]
    assert calls == ["copy", "record", "wait for event"]
    assert world.log[before][1] == TO_HOST
    device.write_scalar("control.loss", 2.5)
    assert device.read_scalar("control.loss") == 2.5
    device.run(UPDATE, 8)
    device.read_scalar("control.loss")
    assert len([x for x in world.log[before:] if x[0] == "copy" and x[1] == TO_HOST]) == 3


# -- what goes wrong ------------------------------------------------------------------------------


def test_too_little_memory_says_planned_and_free(world: Any, built: Any) -> None:
    world.total = built[0].arena_bytes + 100
    with pytest.raises(ToolError, match=r"memory beside the arena needs .* 100 B of the GPU's"):
        make(built)
    gc.collect()
    world.total = 1000
    with pytest.raises(ToolError, match=r"the planned arena needs .* 1000 B of the GPU's 1000 B"):
        make(built)


def test_a_refused_text_shows_the_log(world: Any, built: Any) -> None:
    world.compile_log = "kern.cu(3): warning: x\nkern.cu(7): error: expected a ';'\n1 error\n"
    with pytest.raises(ToolError, match="NVRTC failed") as caught:
        make(built)
    notes = [note.text for note in caught.value.diagnostics[0].notes]
    assert notes[0] == "kern.cu(7): error: expected a ';'"


def test_a_missing_nvrtc_says_what_to_install(world: Any, built: Any) -> None:
    world.nvrtc_missing = "CuPy failed to load libnvrtc.so.13: OSError"
    with pytest.raises(ToolError, match="CuPy cannot compile here") as caught:
        make(built)
    assert "bpc[cuda13]" in str(caught.value.diagnostics[0].help)


@pytest.mark.parametrize(("devices", "error"), [(0, None), (1, 35), (1, 100)])
def test_no_device(world: Any, net: Any, devices: int, error: int | None) -> None:
    world.devices, world.count_error = devices, error
    with pytest.raises(ToolError, match="no GPU can be used"):
        select.choose("cuda", net.entries)


def test_no_cupy(world: Any, net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ToolError, match="CuPy cannot be imported") as caught:
        select.choose("cuda", net.entries)
    assert 'pip install "bpc[cuda13]"' in str(caught.value.diagnostics[0].help)


def test_auto_passes_over_a_gpu_and_says_why(
    world: Any, net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = {name: select.MAKERS[name] for name in ("cuda", "reference")}
    monkeypatch.setattr(select, "MAKERS", makers)
    chosen = select.choose("auto", net.entries).device
    assert chosen.name == "cuda"
    chosen.close()
    world.devices = 0
    choice = select.choose("auto", net.entries)
    assert (choice.device.name, choice.reason) == (
        "reference",
        "on reference, because cuda: no GPU can be used",
    )
    monkeypatch.setattr(cuda_build, "has_driver", lambda: False)
    monkeypatch.setitem(sys.modules, "cupy", None)  # must not even be asked for
    assert select.choose("auto", net.entries).reason == ""
    with pytest.raises(ToolError, match="no NVIDIA driver was found"):
        select.choose("cuda", net.entries)


def test_a_fault_at_a_wait_is_a_message(world: Any, built: Any) -> None:
    device = make(built)
    fake = sys.modules["cupy"]

    def fail(*_: object) -> None:
        raise fake.cuda.runtime.CUDARuntimeError(700)  # type: ignore[attr-defined]

    world.execute = fail
    device.run(UPDATE, 8)
    with pytest.raises(ToolError, match="CUDA failed while waiting for metrics") as caught:
        device.read_scalar("control.loss")
    assert "illegal memory access" in caught.value.diagnostics[0].notes[0].text
    for stream in world.streams.values():
        stream.queue.clear()
