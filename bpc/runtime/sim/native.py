"""The compiled runtime: its C structures mirrored for ctypes, and the one loaded copy of it."""

from __future__ import annotations

import ctypes as c
from functools import cache

from bpc.runtime.sim.build import runtime_library


class SharedVariable(c.Structure):
    """A `__shared__` variable; mirrors templates/sim/runtime/state.h, as all classes here do."""

    _fields_ = (
        ("offset", c.c_uint64),
        ("bytes", c.c_uint64),
        ("alignment", c.c_uint32),
        ("dynamic", c.c_uint32),
    )


class Segment(c.Structure):
    """A loaded part of a kernel library."""

    _fields_ = (
        ("low", c.c_uint64),
        ("bytes", c.c_uint64),
        ("writable", c.c_uint32),
        ("unused", c.c_uint32),
    )


class RawReport(c.Structure):
    """A finding before its addresses are looked up."""

    _fields_ = (
        ("kind", c.c_int),
        ("region", c.c_int),
        ("block", c.c_uint32 * 2),
        ("thread", c.c_uint32 * 2),
        ("access", c.c_int * 2),
        ("offset", c.c_uint64),
        ("bytes", c.c_uint64),
        ("pc", c.c_uint64 * 2),
        ("count", c.c_uint64),
        ("message", c.c_char * 192),
    )


class RawLaunch(c.Structure):
    """One launch."""

    _fields_ = (
        ("module", c.c_void_p),
        ("kernel", c.c_void_p),
        ("arguments", c.c_void_p),
        ("shared_base", c.c_uint64),
        ("seed", c.c_uint64),
        ("max_accesses", c.c_uint64),
        ("seconds", c.c_double),
        ("grid", c.c_uint32 * 3),
        ("block", c.c_uint32 * 3),
        ("shared_bytes", c.c_uint32),
        ("preempt", c.c_uint32),
        ("order", c.c_int),
        ("checked", c.c_int),
        ("max_reports", c.c_uint32),
        ("adversarial", c.c_float),
    )


@cache
def runtime() -> c.PyDLL:
    """The runtime, built when first needed.

    Loaded with its symbols visible to kernel libraries, and called with the interpreter lock
    held: there is one launch at a time.

    Raises:
        ToolError: no g++, or it refuses the runtime.
    """
    library = c.PyDLL(str(runtime_library()), mode=c.RTLD_GLOBAL)
    library.sim_module_new.restype = c.c_void_p
    library.sim_report.restype = c.POINTER(RawReport)
    library.sim_report.argtypes = [c.c_int]
    library.sim_launch.argtypes = [c.POINTER(RawLaunch)]
    library.sim_access_count.restype = c.c_uint64
    library.sim_switch_count.restype = c.c_uint64
    library.sim_buffer_written.restype = c.c_void_p
    library.sim_buffer_new.argtypes = [
        *(c.c_uint64, c.c_uint64, c.c_int, c.c_int),
        c.POINTER(c.c_uint64),
    ]
    library.sim_buffer_mark.argtypes = [c.c_int, c.c_uint64, c.c_uint64, c.c_int]
    return library
