"""Files that were cut, changed or made up: a fault that a person can act on, or sound data."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import IRIS, header_bytes, idx_bytes, npy_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from bpc.data.describe import describe
from bpc.data.read import read
from bpc.errors import BpcError, DataError, Span

SPAN = Span("net.yaml", 3, 1)
X = np.arange(60.0, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 3
MIB = 1 << 20


def npz_bytes(packed: bool) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(stream, x=X, y=Y)
    return stream.getvalue()


TEXT = ("words and words\n" * 8).encode()
SOUND: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "csv": (IRIS.encode(), "csv", {"file": "f", "target": "kind"}),
    "csv.gz": (gzip.compress(IRIS.encode()), "csv", {"file": "f", "target": -1, "missing": "mean"}),
    "npy": (npy_bytes(X), "npy", {"inputs": "f", "target": "y.npy"}),
    "npy target": (npy_bytes(Y), "npy", {"inputs": "x.npy", "target": "f"}),
    "npz": (npz_bytes(False), "npz", {"file": "f"}),
    "npz packed": (npz_bytes(True), "npz", {"file": "f", "normalise": "standard"}),
    "idx": (idx_bytes(X), "idx", {"images": "f", "labels": "y.idx"}),
    "idx.gz": (gzip.compress(idx_bytes(X)), "idx", {"images": "f", "labels": "y.idx"}),
    "text": (TEXT, "text", {"file": "f", "context": 4}),
    "text.gz": (gzip.compress(TEXT), "text", {"file": "f", "context": 4, "unit": "bytes"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    (folder / "y.idx").write_bytes(idx_bytes(Y.astype(np.uint8)))
    return folder


def try_to_read(folder: Path, raw: bytes, source: str, options: dict[str, Any]) -> bool:
    """Whether it was read; only a fault of the data may come out."""
    (folder / "f").write_bytes(raw)
    files = ("file", "inputs", "target", "images", "labels")
    is_file = {k for k in files if not (source == "csv" and k == "target")}
    paths = {k: str(folder / v) if k in is_file else v for k, v in options.items()}
    try:
        found = read(source, paths, SPAN, 0)
    except DataError as error:
        assert error.diagnostics[0].span == SPAN and "Traceback" not in str(error)
        return False
    for part in (found.train, found.test):
        assert np.isfinite(np.asarray(part["x"])).all()
        assert len(part["x"]) == len(part["target"]) > 0
    return True


@pytest.mark.parametrize("kind", SOUND)
def test_sound_files_are_read(folder: Path, kind: str) -> None:
    assert try_to_read(folder, *SOUND[kind])


edits = st.lists(
    st.tuples(
        st.sampled_from(("flip", "cut", "insert", "drop", "repeat")),
        st.integers(0, 1 << 16),
        st.integers(0, 255),
        st.integers(1, 64),
    ),
    min_size=1,
    max_size=4,
)


def change(raw: bytes, edit: tuple[str, int, int, int]) -> bytes:
    how, place, value, length = edit
    at = place % (len(raw) + 1)
    if how == "cut":
        return raw[:at]
    if how == "flip":
        return raw[:at] + bytes([value]) + raw[at + 1 :]
    if how == "insert":
        return raw[:at] + bytes([value]) * length + raw[at:]
    if how == "drop":
        return raw[:at] + raw[at + length :]
    return raw[: at + length] + raw[at:]


@pytest.mark.parametrize("kind", SOUND)
@settings(max_examples=120, deadline=None)
@given(edits=edits)
def test_changed_files_are_read_or_refused(
    folder: Path, kind: str, edits: list[tuple[str, int, int, int]]
) -> None:
    raw, source, options = SOUND[kind]
    for edit in edits:
        raw = change(raw, edit)
    try_to_read(folder, raw, source, options)


@pytest.mark.parametrize("kind", SOUND)
def test_files_cut_anywhere_are_read_or_refused(folder: Path, kind: str) -> None:
    raw, source, options = SOUND[kind]
    for length in range(0, len(raw), max(1, len(raw) // 97)):
        read_all = try_to_read(folder, raw[:length], source, options)
        assert not read_all or source in ("csv", "text")


class Touch:
    """Pickled, it makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["npy", "npz", "raw", "inner"])
def test_nothing_is_ever_unpickled(tmp_path: Path, name: str) -> None:
    sentinel = tmp_path / "ran"
    objects = np.array([Touch(sentinel)] * 20, dtype=object)
    np.save(tmp_path / "y.npy", Y)
    raw = npy_bytes(objects)
    source, options = "npy", {"inputs": str(tmp_path / "f"), "target": str(tmp_path / "y.npy")}
    if name == "npz":
        stream = io.BytesIO()
        np.savez(stream, x=objects, y=Y, allow_pickle=True)
        raw = stream.getvalue()
    elif name == "raw":
        raw = pickle.dumps(Touch(sentinel))
    elif name == "inner":
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("x.npy", pickle.dumps(Touch(sentinel)))
            archive.writestr("y.npy", npy_bytes(Y))
        raw = stream.getvalue()
    if name in ("npz", "inner"):
        source, options = "npz", {"file": str(tmp_path / "f")}
    (tmp_path / "f").write_bytes(raw)
    with pytest.raises(DataError):
        read(source, options, SPAN, 0)
    assert not sentinel.exists()
    pickle.loads(pickle.dumps(Touch(sentinel)))
    assert sentinel.exists(), "it would have shown"


SHAPED = "{'descr':'<f4','fortran_order':False,'shape':(%s)}"


def make_zip_bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", header_bytes(SHAPED % "8,2") + bytes(256 * MIB))
        archive.writestr("y.npy", npy_bytes(Y))
    return stream.getvalue()


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "shape": (lambda: header_bytes(SHAPED % "4611686018427387904,4"), "npy"),
    "many axes": (lambda: header_bytes(SHAPED % ("9999999," * 300)), "npy"),
    "nested": (lambda: header_bytes("(" * 5000 + ")" * 5000), "npy"),
    "long header": (lambda: b"\x93NUMPY\2\0" + struct.pack("<I", 0xFFFFFFF0) + b"{", "npy"),
    "zip": (make_zip_bomb, "npz"),
    "extents": (lambda: b"\0\0\x0e\x04" + struct.pack(">4I", *[2**32 - 1] * 4), "idx"),
    "packed extents": (
        lambda: gzip.compress(idx_bytes(np.zeros((10, 4), np.uint8)) + bytes(256 * MIB), 1),
        "idx.gz",
    ),
    "line": (lambda: gzip.compress(bytes(256 * MIB), 1), "csv.gz"),
    "cell": (lambda: b'a,kind\n"' + b"x" * (2 * MIB) + b'",1\n', "csv"),
}
"""Small files that claim, or hold, much, and the sound file in whose place they stand."""


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_take_memory(folder: Path, name: str) -> None:
    make, kind = BOMBS[name]
    raw = make()
    _, source, options = SOUND[kind]
    tracemalloc.start()
    assert not try_to_read(folder, raw, source, options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * MIB + 2 * len(raw)


def test_bad_text_of_any_kind_is_no_crash(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        raw = rng.integers(0, 256, rng.integers(0, 400)).astype(np.uint8).tobytes()
        for source, options in (("csv", {"file": "f", "target": 0}), ("text", SOUND["text"][2])):
            try_to_read(folder, raw, source, options)


def test_describing_refuses_what_reading_refuses(folder: Path) -> None:
    (folder / "f").write_bytes(npy_bytes(X)[:-1])
    options = {"inputs": str(folder / "f"), "target": str(folder / "y.npy")}
    for look in (lambda: describe("npy", options, SPAN), lambda: read("npy", options, SPAN, 0)):
        with pytest.raises(BpcError):
            look()
