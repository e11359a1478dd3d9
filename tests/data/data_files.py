"""Writers of small files of data, sound and faulty, that the tests of sources share."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np

IRIS = """\
length,width,kind
5.1,3.5,setosa
4.9,3.0,setosa
7.0,3.2,versicolor
6.4,3.2,versicolor
6.3,3.3,virginica
5.8,2.7,virginica
4.7,3.2,setosa
6.9,3.1,versicolor
7.1,3.0,virginica
5.0,3.6,setosa
"""


def npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def header_bytes(text: str, version: int = 1) -> bytes:
    """A .npy's beginning with a header of one's own."""
    raw = text.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw


def idx_bytes(array: np.ndarray) -> bytes:
    kinds = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
    code = kinds[array.dtype.str[1:]]
    extents = struct.pack(f">{array.ndim}I", *array.shape)
    numbers = array.astype(array.dtype.newbyteorder(">")).tobytes()
    return bytes([0, 0, code, array.ndim]) + extents + numbers


def write_faulty(folder: Path) -> None:
    """Every file that the specs of tests/errors/data name."""
    x = np.arange(20.0, dtype=np.float32).reshape(10, 2)
    y = np.arange(10) % 3

    def write(name: str, content: bytes | str) -> None:
        raw = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(raw)

    (folder / "folder.csv").mkdir()
    lines = IRIS.splitlines()
    write("iris.csv", IRIS)
    write("bare.csv", "\n".join(lines[1:]) + "\n")
    write("empty.csv", "")
    write("header.csv", lines[0] + "\n")
    write("word.csv", IRIS.replace("6.4,3.2", "6.4,3_2"))
    write("inf.csv", IRIS.replace("6.4,3.2", "6.4,inf").replace("7.1", "1e999"))
    write("gap.csv", IRIS.replace("6.4,3.2", "6.4,"))
    write("unnamed.csv", IRIS.replace("3.2,versicolor", "3.2,"))
    write("cells.csv", IRIS.replace("6.4,3.2,", "6.4,3.2,1.5,"))
    write("quote.csv", IRIS.replace("6.4", '"6.4'))
    write("latin.csv", IRIS.encode().replace(b"6.4", b"6\xe94"))
    write("twice.csv", IRIS.replace("width", "length"))
    write("rare.csv", IRIS.replace("5.0,3.6,setosa", "5.0,3.6,rara"))
    write("words.csv", "a,kind\nx,s\ny,t\nz,s\n")
    write("one.csv", "a,b\n1,k\n2,k\n3,k\n4,k\n5,k\n")
    write("other.csv", IRIS.replace("width", "breadth"))
    write("third.csv", "1,0.5\n2,1\n3,1.5\n4,-2\n5,2\n")
    write("cut.csv.gz", gzip.compress(IRIS.encode())[:-30])
    write("longline.csv", "1," * (8 << 20) + "1\n")
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    np.save(folder / "y9.npy", y[:9])
    np.save(folder / "x3.npy", x.reshape(5, 2, 2))
    np.save(folder / "objects.npy", np.array([{}, []], object), allow_pickle=True)
    np.save(folder / "text.npy", np.array(["a", "b"]))
    np.save(folder / "complex.npy", x.astype(complex))
    np.save(folder / "scalar.npy", np.float32(1))
    np.save(folder / "nan.npy", np.where(x == 7, np.nan, x))
    np.save(folder / "half.npy", np.arange(10) / 2)
    np.save(folder / "minus.npy", y - 1)
    np.save(folder / "huge.npy", y * 10**9)
    raw = (folder / "x.npy").read_bytes()
    write("cut.npy", raw[:-12])
    write("long.npy", raw + b"1234")
    write("magic.npy", b"\x92" + raw[1:])
    write("bomb.npy", header_bytes("{'descr':'<f4','fortran_order':False,'shape':(99999999999,9)}"))
    write("minus_shape.npy", header_bytes("{'descr':'<f4','fortran_order':False,'shape':(-4,2)}"))
    write("code.npy", header_bytes("__import__('os').getcwd()"))
    write("version.npy", raw[:6] + b"\x03\x00" + raw[8:])
    np.savez(folder / "xy.npz", pixels=x, labels=y)
    np.savez(folder / "nolabels.npz", pixels=x, kinds=y)
    np.savez(folder / "odd.npz", **{"my-pixels": x, "y": y})
    np.savez(folder / "only.npz", y=y)
    zeros = np.zeros((1000, 50), np.float32)
    np.savez_compressed(folder / "packed.npz", x=zeros, y=np.arange(1000) % 2)
    packed = (folder / "packed.npz").read_bytes()
    write("cut.npz", packed[: len(packed) // 2])
    write("claims.npz", _claim_more(packed))
    write("notzip.npz", "no archive at all")
    with zipfile.ZipFile(folder / "twice.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(x))
        archive.writestr("x", npy_bytes(x))
    write("images.idx", idx_bytes(np.arange(40, dtype=np.uint8).reshape(10, 2, 2)))
    write("labels.idx", idx_bytes((np.arange(10) % 3).astype(np.uint8)))
    write("cut.idx", idx_bytes(np.arange(40, dtype=np.uint8).reshape(10, 2, 2))[:-3])
    write("magic.idx", b"\x01\x00\x08\x01\x00\x00\x00\x0a" + bytes(10))
    bomb = b"\0\0\x08\x03" + struct.pack(">3I", 60000, 28, 28)
    write("bomb.idx.gz", gzip.compress(bomb))
    write("large.idx.gz", gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 4 << 20, 28, 28)))
    write("hello.txt", "hello world, " * 20)
    write("latin.txt", b"abc\nd\xe9f\n" * 20)
    write("tail.txt", "hello world, " * 20 + "zebra in a line\n" + "hello world, " * 2)
    write("same.txt", "a" * 100)


def _claim_more(packed: bytes) -> bytes:
    """An archive whose list says that a member has 1.5 GiB."""
    at = packed.rindex(b"PK\x01\x02", 0, packed.rindex(b"PK\x01\x02"))
    return packed[: at + 24] + struct.pack("<I", 3 << 29) + packed[at + 28 :]
