"""5,000 mutated checkpoints: refused with a reason, or the same as before."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nets import compile_small, states_of, stop_at, write_spec

from bpc import api
from bpc.train.checkpoint import load_checkpoint, open_checkpoint
from bpc.train.faults import CheckpointError

STATE = "state.json"
COUNT, PARTS = 5000, 4
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**63, 2**70, 1e308, "", "x" * 300, "0x7ff0000000000000", "\ud800"),
    *([], {}, [[[]]], {"a": 1}, "../../etc/passwd", "\x00", [2**40, 2**40], "step-000009"),
)

Mutation = Callable[[random.Random, Path], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[api.Net, Path]:
    folder = tmp_path_factory.mktemp("mutated")
    net = compile_small(write_spec(folder))
    stop_at(net, folder / "run", 9)
    load_checkpoint(
        open_checkpoint(folder / "run/checkpoints/step-000009"), net.entries, net.device
    )
    return net, folder / "run/checkpoints/step-000009"


def pick(draw: random.Random, folder: Path) -> Path:
    return draw.choice(sorted(folder.iterdir()))


def flip_bits(draw: random.Random, folder: Path) -> None:
    path = pick(draw, folder)
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 1, 4, 50))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut(draw: random.Random, folder: Path) -> None:
    path = pick(draw, folder)
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def lengthen(draw: random.Random, folder: Path) -> None:
    path = pick(draw, folder)
    more = draw.choice((b"\0", b" ", b"\n", b"{}", bytes(5000), b"[" * 100_000, b"[]," * 300_000))
    data = path.read_bytes()
    path.write_bytes(data + more if draw.random() < 0.7 else more + data)


def exchange(draw: random.Random, folder: Path) -> None:
    first, second = pick(draw, folder), pick(draw, folder)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def remove(draw: random.Random, folder: Path) -> None:
    path = pick(draw, folder)
    path.unlink()
    if draw.random() < 0.3:
        path.mkdir()


def shuffle_blocks(draw: random.Random, folder: Path) -> None:
    path = pick(draw, folder)
    data = path.read_bytes()
    blocks = [data[i : i + 64] for i in range(0, len(data), 64)]
    draw.shuffle(blocks)
    path.write_bytes(b"".join(blocks))


def change_header(draw: random.Random, folder: Path) -> None:
    """The header says something else, and all digests agree with it."""
    path = folder / draw.choice(("model.safetensors", "optimizer.safetensors"))
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    put_junk(draw, header)
    text = json.dumps(header).encode() + b" " * draw.choice((0, 1, 100))
    length = draw.choice((len(text), len(text), len(text), size, 0, 2**64 - 1))
    path.write_bytes(length.to_bytes(8, "little") + text + data[8 + size :])
    sign(folder)


def change_body(draw: random.Random, folder: Path) -> None:
    """Bytes of tensors are missing, or there are more, and all digests agree with it."""
    path = folder / draw.choice(("model.safetensors", "optimizer.safetensors"))
    data = path.read_bytes()
    path.write_bytes(data[: -draw.randint(1, 40)] if draw.random() < 0.5 else data + bytes(9))
    sign(folder)


def change_state(draw: random.Random, folder: Path) -> None:
    """Values of the state are others, and its digest agrees with them."""
    state = json.loads((folder / STATE).read_text())
    put_junk(draw, state)
    write_state(folder, state)


def forget_digest(draw: random.Random, folder: Path) -> None:
    """Values of the state are others, and its digest is that of before."""
    state = json.loads((folder / STATE).read_text())
    before = json.dumps(state)
    put_junk(draw, state)
    if json.dumps(state) != before:
        (folder / STATE).write_text(json.dumps(state))


def put_junk(draw: random.Random, tree: Any) -> None:
    """Replace, remove or add one part anywhere in a tree."""
    while True:
        keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(tree[key], dict | list) and tree[key] and draw.random() < 0.8:
            tree = tree[key]
            continue
        choice = draw.randrange(4)
        if choice == 0:
            del tree[key]
        elif choice == 1 and isinstance(tree, dict):
            tree[draw.choice(("extra", "__metadata__", "../x", ""))] = draw.choice(JUNK)
        elif choice == 2 and isinstance(tree[key], int) and not isinstance(tree[key], bool):
            tree[key] += draw.choice((-1, 1, 8, 2**31))
        else:
            tree[key] = draw.choice(JUNK)
        return


def sign(folder: Path) -> None:
    state = json.loads((folder / STATE).read_text())
    for name in state["files"]:
        data = (folder / name).read_bytes()
        state["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_state(folder, state)


def write_state(folder: Path, state: dict[str, Any]) -> None:
    state.pop("digest", None)
    text = json.dumps(state, sort_keys=True, separators=(",", ":"))
    state["digest"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / STATE).write_text(json.dumps(state, indent=1))


# What has wrong digests must be refused unless it means the same; what was signed anew may load.
UNSIGNED: tuple[Mutation, ...] = (
    *(flip_bits, flip_bits, cut, lengthen, exchange, remove, shuffle_blocks, forget_digest),
)
SIGNED: tuple[Mutation, ...] = (change_header, change_header, change_body, change_state)


@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_checkpoints(tmp_path: Path, good: tuple[api.Net, Path], part: int) -> None:
    net, source = good
    draw = random.Random(part)
    folder = tmp_path / "step-000009"
    expected, refused, reasons = states_of(net), 0, set()
    for number in range(COUNT // PARTS):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        mutate = draw.choice(SIGNED if number % 2 else UNSIGNED)
        mutate(draw, folder)
        started = time.perf_counter()
        try:
            load_checkpoint(open_checkpoint(folder), net.entries, net.device)
        except CheckpointError as error:
            refused += 1
            reasons.add(str(error).split(": ", 2)[2][:20])
            assert str(error).encode() and error.exit_code == 1
            assert states_of(net) == expected, (
                f"{mutate.__name__}: refused, yet it changed something"
            )
        else:
            if mutate not in SIGNED:
                assert states_of(net) == expected, f"{mutate.__name__}: loaded, yet it differs"
            load_checkpoint(open_checkpoint(source), net.entries, net.device)
        assert time.perf_counter() - started < 1, mutate.__name__
    assert refused > 0.8 * COUNT / PARTS and len(reasons) > 15


def test_memory_of_mutated_checkpoints(tmp_path: Path, good: tuple[api.Net, Path]) -> None:
    """Sampled with the allocator watched, the densest texts there are among them."""
    net, source = good
    draw = random.Random(9)
    folder = tmp_path / "step-000009"
    limit = peak_of(net, source) + (64 << 20)
    for number in range(120):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        draw.choice((*SIGNED, *UNSIGNED))(draw, folder)
        if number % 4 == 0:
            (folder / STATE).write_bytes(dense(draw, 3 << 20))
        elif number % 4 == 1:
            text = dense(draw, draw.choice((60_000, 1 << 20)))
            (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
            if (folder / STATE).is_file() and (folder / "optimizer.safetensors").is_file():
                shutil.copy(source / STATE, folder)
                shutil.copy(source / "optimizer.safetensors", folder)
                sign_if_whole(folder)
        assert peak_of(net, folder) < limit


def sign_if_whole(folder: Path) -> None:
    if all((folder / name).is_file() for name in ("best.safetensors", "model.safetensors")):
        sign(folder)


def dense(draw: random.Random, size: int) -> bytes:
    """JSON of so many bytes that takes as much memory as it can."""
    unit = draw.choice((b"[],", b"{},", b"1.5,", b'"ab",', b"[[]],", b'{"a":1},'))
    return b'{"a":[' + unit * ((size - 20) // len(unit)) + b"0]}"


def peak_of(net: api.Net, folder: Path) -> int:
    tracemalloc.start()
    try:
        load_checkpoint(open_checkpoint(folder), net.entries, net.device)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak
