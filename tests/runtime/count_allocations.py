"""Run in a process of its own with counted_alloc preloaded: allocations of each call, as JSON.

usage: count_allocations.py COUNTER.so SPEC THREADS
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
from programs import open_net, plan_net, share_library

from bpc.train.evaluate import feed
from bpc.train.initial import initial_values


def main(counter: str, spec: str, threads: int) -> None:
    """Two training steps and one evaluation; counts by entry point, in order."""
    net = open_net(Path(spec))
    (device,) = share_library([plan_net(net).program])
    for name, value in initial_values(net.entries.states_of("parameter"), 0).items():
        device.write_state(name, value)
    for name, value in {"divisor": 8, "scale": 1, "base_lr": 1e-2, "total": 100}.items():
        device.write_scalar(f"control.{name}", value)
    feed(device, {name: values[: device.rows] for name, values in net.data.train.items()})
    library = ctypes.CDLL(counter)
    count = library.counted_call
    count.restype = ctypes.c_long
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    count.argtypes = [pointer, pointer, pointer, i32, i32, pointer, i64, i32]
    run = ctypes.cast(device._library._run, ctypes.c_void_p)
    found = []
    for entry in ("micro_step", "update", "evaluate") * 2:
        launches, last, offsets = device._calls[entry]
        base = device.arena.ctypes.data
        calls = count(run, base, launches, 0, last, offsets, device.rows, threads)
        found.append((entry, calls))
    assert np.isfinite(device.read_scalar("control.loss"))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
