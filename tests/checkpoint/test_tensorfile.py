"""The container of tensors: what others write and read, and everything that it must refuse."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from nets import compile_small, write_spec

from bpc.train.faults import CheckpointError
from bpc.train.files import Files, write_new
from bpc.train.tensorfile import TensorType, encode_tensors, read_tensors

EXPECTED = {"w": TensorType("F32", (2, 3)), "b": TensorType("F32", (3,))}
GOOD: dict[str, Any] = {
    "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F32", "shape": [3], "data_offsets": [24, 36]},
}
BODY = np.arange(9, dtype="<f4").tobytes()


def write(path: Path, header: bytes | dict[str, Any], body: bytes = BODY, length: int = -1) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length < 0 else length
    path.write_bytes(size.to_bytes(8, "little") + text + body)
    return path


def changed(name: str, **values: Any) -> dict[str, Any]:
    return {**GOOD, name: {**GOOD[name], **values}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    arrays = {
        "a": np.array([1.5, -0.0, np.nan, np.inf], np.float32),
        "b": np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::-1],
        "c": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.float32),
    }
    write_new(Files(), tmp_path / "t", encode_tensors(arrays))
    types = {name: TensorType.of(array) for name, array in arrays.items()}
    found = read_tensors(tmp_path / "t", types)
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
    assert (tmp_path / "t").read_bytes()[8] == ord("{")


def test_the_format_is_that_of_safetensors(tmp_path: Path) -> None:
    """Against the package that the format comes from."""
    arrays = {"w": np.ones((2, 3), np.float32), "v": np.arange(4, dtype=np.float64)}
    write_new(Files(), tmp_path / "ours", encode_tensors(arrays))
    theirs = safetensors.numpy.load_file(tmp_path / "ours")
    assert all((theirs[name] == array).all() for name, array in arrays.items())
    safetensors.numpy.save_file(arrays, tmp_path / "theirs", metadata={"format": "np"})
    found = read_tensors(tmp_path / "theirs")
    assert all((found[name] == array).all() for name, array in arrays.items())


MANY = {f"a{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(100_000)}
MALFORMED: dict[str, tuple[Any, bytes, int, str]] = {
    "shape beyond its offsets": (
        changed("w", shape=[1000, 1000], data_offsets=[0, 4]), BODY, -1, "takes 4000000 bytes"
    ),
    "offsets beyond the file": (
        {"w": {"dtype": "F32", "shape": [1000, 1000], "data_offsets": [0, 4_000_000]}},
        b"1234", -1, "end at byte 4,000,000 of the body, which has 4",
    ),
    "header of 2^63 bytes": (GOOD, BODY, 2**63, "a header of 9,223,372,036,854,775,808 bytes"),
    "header beyond the file": (GOOD, BODY, 10_000, "a header of 10,000 bytes in a file"),
    "offsets backwards": (changed("w", data_offsets=[8, 4]), BODY, -1, "not a beginning"),
    "negative offsets": (changed("w", data_offsets=[-8, 16]), BODY, -1, "data_offsets"),
    "fractional offsets": (changed("w", data_offsets=[0.0, 24.0]), BODY, -1, "data_offsets"),
    "offsets that are truth values": (changed("w", data_offsets=[False, 24]), BODY, -1, "offsets"),
    "three offsets": (changed("w", data_offsets=[0, 24, 24]), BODY, -1, "data_offsets"),
    "unknown dtype": (changed("w", dtype="F31"), BODY, -1, 'dtype "F31" is unknown'),
    "dtype of another kind": (changed("w", dtype=["F32"]), BODY, -1, "is unknown"),
    "overflowing shape": (changed("w", shape=[2**32, 2**32]), BODY, -1, "takes"),
    "negative extent": (changed("w", shape=[-2, -3]), BODY, -1, "no list of extents"),
    "many axes": (changed("w", shape=[1] * 100), BODY, -1, "no list of extents"),
    "a key too many": (changed("w", extra=1), BODY, -1, "and nothing else"),
    "a tensor that is none": ({**GOOD, "w": 7}, BODY, -1, "needs dtype, shape and data_offsets"),
    "duplicate names": (
        json.dumps(GOOD).replace('"b"', '"w"').encode(), BODY, -1, "'w' stands there twice"
    ),
    "trailing bytes": (GOOD, BODY + b"x", -1, "end at byte 36 of the body, which has 37"),
    "a hole": (
        changed("b", data_offsets=[28, 40]), BODY + b"1234", -1, "'b' leaves a hole before it"
    ),
    "an overlap": (changed("b", data_offsets=[20, 32]), BODY, -1, "'b' overlaps"),
    "100,000 tensors of size 0": (MANY, b"", -1, "the network needs at most"),
    "not UTF-8": (b'{"w\xff": 1}', BODY, -1, "is not UTF-8"),
    "not an object": (b"[1, 2, 3]", BODY, -1, "is not a JSON object"),
    "NaN": (b'{"w": NaN}', BODY, -1, "NaN is not a JSON number"),
    "half of it": (b'{"w": {"dtype"', BODY, -1, "is not JSON"),
    "nested deeply": (b'{"w":' + b"[" * 50_000, BODY, -1, "is nested too deeply"),
    "a number of 10,000 digits": (
        json.dumps(GOOD).replace("36]", "3" * 10_000 + "]").encode(), BODY, -1, "is not JSON"
    ),
    "metadata that is no text": ({**GOOD, "__metadata__": {"a": 1}}, BODY, -1, "__metadata__"),
    "a name of half a character": (
        b'{"\\ud800": 1}', BODY, -1, r"needs dtype, shape and data_offsets"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused(tmp_path: Path, name: str) -> None:
    header, body, length, reason = MALFORMED[name]
    path = write(tmp_path / "t", header, body, length)
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        read_tensors(path, EXPECTED)
    seconds = time.perf_counter() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason in str(caught.value)
    assert str(caught.value).encode()  # printable, whatever the names
    assert seconds < 1 and peak < 64 << 20


@pytest.mark.parametrize("size", [0, 7, 8])
def test_files_too_short_for_a_header(tmp_path: Path, size: int) -> None:
    (tmp_path / "t").write_bytes(b"\2" + bytes(size - 1) if size else b"")
    with pytest.raises(CheckpointError):
        read_tensors(tmp_path / "t", EXPECTED)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nothing", Path("/dev/zero")):
        with pytest.raises(CheckpointError, match=r"not a file|no such file"):
            read_tensors(path, EXPECTED)


def test_every_tensor_that_differs_is_listed_and_nothing_is_loaded(tmp_path: Path) -> None:
    """A shape that would broadcast, a transposed one, a scalar, another type, a key too many."""
    text = "[{linear: {name: fc1, out: 8}}, {linear: {name: fc2, out: 3}}, {linear: {name: fc3}}]"
    text = text.replace("{name: fc3}", "{name: fc3, out: 1}")
    spec = write_spec(tmp_path)
    sets = {"model": text, "data": "{source: synthetic, shape: [5], target_shape: [1], batch: 4}"}
    net = compile_small(spec, {**sets, "loss": "mse"})
    good = net.parameters()
    bad = {
        "fc1.weight": np.zeros((1, 8), np.float32),
        "fc1.bias": np.zeros((8,), np.float64),
        "fc2.weight": np.zeros((3, 8), np.float32),
        "fc2.bias": good["fc2.bias"],
        "fc3.bias": np.zeros((), np.float32),
        "other": np.zeros((2,), np.float32),
    }
    write_new(Files(), tmp_path / "t", encode_tensors(bad))
    with pytest.raises(CheckpointError) as caught:
        net.load(tmp_path / "t")
    (diagnostic,) = caught.value.diagnostics
    assert "6 tensors" in diagnostic.message
    assert [note.text for note in diagnostic.notes] == [
        "fc1.weight: the file has F32 [1, 8], the network F32 [5, 8]",
        "fc1.bias: the file has F64 [8], the network F32 [8]",
        "fc2.weight: the file has F32 [3, 8], the network F32 [8, 3]",
        "fc3.weight: the file has nothing, the network F32 [3, 1]",
        "fc3.bias: the file has F32 [], the network F32 [1]",
        "'other': the file has F32 [2], the network nothing of this name",
    ]
    for name, value in net.parameters().items():
        assert (value == good[name]).all()


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_weights_are_saved_in_full_precision_and_loaded_to_the_last_bit(
    tmp_path: Path, precision: str
) -> None:
    spec = write_spec(tmp_path)
    net = compile_small(spec, {"train.precision": precision, "seed": 3})
    net.save(tmp_path / "net.safetensors")
    again = compile_small(spec, {"train.precision": precision})
    again.load(tmp_path / "net.safetensors")
    for state in net.entries.states:
        if state.kind in ("parameter", "master"):
            here, there = (n.device.read_state(state.name) for n in (net, again))
            assert here.tobytes() == there.tobytes(), state.name
    kinds = {TensorType.of(a).dtype for a in read_tensors(tmp_path / "net.safetensors").values()}
    assert kinds == {"F64" if precision == "fp64" else "F32"}
