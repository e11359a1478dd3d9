"""The team of threads that runs launch tables: same bits, no deadlock, nothing left behind."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

import numpy as np
from header_drivers import NEEDS_COMPILER, call, driver

pytestmark = NEEDS_COMPILER

TABLE = np.array([[0, 8, 1, 0], [1, 8, 1, 0], [0, 8, 1, 0], [1, 8, 0, 0]], np.int32)
ROWS = 1003
OFFSETS = np.array([64, 64 + 4 * ROWS], np.int64)


def run_team(
    library: ctypes.CDLL, arena: np.ndarray, threads: int, table: np.ndarray = TABLE
) -> None:
    call(
        library.bpc_run,
        arena,
        table,
        ctypes.c_int32(len(table)),
        OFFSETS,
        ROWS,
        ctypes.c_int32(threads),
    )


def test_team_gives_the_same_bits_for_any_number_of_threads():
    lib, results = driver("team"), {}
    before = os.sched_getaffinity(0)
    for threads in (1, 2, 3, 2):
        arena = np.zeros(64 + 8 * ROWS, np.uint8)
        for _ in range(500):
            run_team(lib, arena, threads)
        results.setdefault(threads, arena)
        assert (arena == results[1]).all()
    assert os.sched_getaffinity(0) == before
    lib.bpc_shutdown()
    lib.bpc_shutdown()


def test_team_can_run_one_launch_at_a_time():
    lib, whole, single = driver("team"), *np.zeros((2, 64 + 8 * ROWS), np.uint8)
    run_team(lib, whole, 2)
    for i in range(len(TABLE)):
        numbers = (ctypes.c_int32(i), ctypes.c_int32(i + 1))
        call(lib.bpc_run_range, single, TABLE, *numbers, OFFSETS, ROWS, ctypes.c_int32(2))
    assert (whole == single).all() and whole.any()


def test_subnormals_flush_inside_a_call_only():
    lib = driver("team")
    lib.half_of_least.restype = ctypes.c_float
    for threads in (1, 2):
        arena = np.full(64 + 8 * ROWS, 0xFF, np.uint8)
        run_team(lib, arena, threads, np.array([[3, 8, 0, 0]], np.int32))
        assert not arena[64:96].any()
        assert lib.half_of_least() == 2.0**-127


FORKING = """
import ctypes, os, sys, warnings
warnings.simplefilter("ignore")
library, offsets = ctypes.CDLL(sys.argv[1]), ctypes.c_long(0)
table = (ctypes.c_int32 * 4)(2, 8, 1, 0)
def run():
    return library.bpc_run(None, table, 1, ctypes.byref(offsets), ctypes.c_long(1), 2)
run()
child = os.fork()
if child == 0:
    os._exit(7 if run() == 0 else 1)
run()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_team_works_after_fork():
    command = [sys.executable, "-c", FORKING, driver("team")._name]
    assert subprocess.run(command, timeout=30, check=False).returncode == 7


def test_team_rejects_no_threads():
    function = driver("team").bpc_run
    assert function(None, None, ctypes.c_int32(0), None, ctypes.c_long(0), ctypes.c_int32(0)) == -1


def test_barrier_cost_is_printed():
    lib, arena = driver("team"), np.zeros(64 + 8 * ROWS, np.uint8)
    table = np.tile(np.array([2, 2, 1, 0], np.int32), (5000, 1))
    run_team(lib, arena, 2, table)
    start = time.perf_counter()
    run_team(lib, arena, 2, table)
    each = (time.perf_counter() - start) / len(table)
    print(f"barrier with 2 threads: {each * 1e9:.0f} ns")
    assert each < 1e-3  # a lost wake-up would take far longer
