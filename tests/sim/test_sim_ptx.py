"""Every PTX form of the table: in a kernel of its own, against a reference in Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from sim_cases import CASES, read_kernel

from bpc.errors import ToolError
from bpc.runtime.sim.buffers import GuardedBuffer
from bpc.runtime.sim.build import kernel_library
from bpc.runtime.sim.forms import FORMS, Form, find_form
from bpc.runtime.sim.module import SimModule
from bpc.runtime.sim.nvrtc import compile_nvrtc
from bpc.runtime.sim.ptx import Instruction, read_ptx
from bpc.runtime.sim.translate import translate_ptx

HEAD = ".version 8.5\n.target sm_90\n.address_size 64\n"
SEEN: set[str] = set()


def f32(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def bits32(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def bits64(value: float) -> int:
    return int(np.float64(value).view(np.uint64))


def signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


# Each row: an instruction of registers %a, %b, %c (64 bits), %ra.. (32), %ha.. (16), %fa.. (f32),
# %da.. (f64) that hold the inputs' low bits, and the bits expected in its result %x (64), %rx,
# %hx, %fx, %dx or %px.
A, B, C = 0xFFFF_FFF0_8000_0005, 0x0000_0003_0000_0007, 0x0123_4567_89AB_CDEF
RA, RB, RC = A & 0xFFFFFFFF, B & 0xFFFFFFFF, C & 0xFFFFFFFF
FA, FB, FC = 2.5, -1.25, 0.1
DA, DB, DC = 2.5, -1.25, 0.1
W32, W64, W16 = (1 << 32) - 1, (1 << 64) - 1, 0xFFFF
SA32, SA64 = signed(RA, 32), signed(A, 64)
HA, HB, HC = A & W16, B & W16, C & W16
FC32 = float(np.float32(FC))


def fused(a: float, b: float, c: float) -> float:
    return float(np.float32(np.float64(np.float32(a)) * np.float64(np.float32(b)) + np.float32(c)))


def quotient(a: int, b: int) -> int:
    """Division towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


VALUES: tuple[tuple[str, int], ...] = (
    ("mov.u32 %rx, %ra", RA),
    ("mov.b64 %x, {%ra, %rb}", RA | RB << 32),
    ("mov.b32 %rx, {%ha, %hb}", HA | HB << 16),
    ("mov.b32 {%hx, _}, %rc", HC),
    ("mov.f32 %fx, 0f40200000", bits32(2.5)),
    ("mov.f64 %dx, 0d4004000000000000", bits64(2.5)),
    ("mov.pred %px, %pa", 1),
    ("cvta.to.global.u64 %x, %a", A),
    ("selp.b32 %rx, %ra, %rb, %pa", RA),
    ("selp.f32 %fx, %fa, %fb, %pb", bits32(FB)),
    ("add.s32 %rx, %ra, -3", RA - 3),
    ("add.u64 %x, %a, %b", (A + B) & W64),
    ("sub.s64 %x, %b, %a", (B - A) & W64),
    ("add.s16 %hx, %ha, %hb", (HA + HB) & W16),
    ("mul.lo.s32 %rx, %ra, %rc", RA * RC & W32),
    ("mul.lo.s64 %x, %a, %c", A * C & W64),
    ("mul.hi.u32 %rx, %ra, %rc", RA * RC >> 32),
    ("mul.hi.s32 %rx, %ra, %rc", (SA32 * signed(RC, 32) >> 32) & W32),
    ("mul.hi.u64 %x, %a, %c", A * C >> 64),
    ("mul.wide.u32 %x, %ra, %rc", RA * RC),
    ("mul.wide.s32 %x, %ra, %rb", SA32 * RB & W64),
    ("mul.wide.u16 %rx, %hc, %hc", HC * HC),
    ("mad.lo.s32 %rx, %ra, %rb, %rc", (RA * RB + RC) & W32),
    ("mad.lo.s64 %x, %a, %b, %c", (A * B + C) & W64),
    ("mad.hi.u32 %rx, %ra, %rc, %rb", ((RA * RC >> 32) + RB) & W32),
    ("mad.wide.u32 %x, %ra, %rc, %b", RA * RC + B),
    ("div.s32 %rx, %ra, %rb", quotient(SA32, RB) & W32),
    ("div.u64 %x, %a, %b", A // B),
    ("rem.u32 %rx, %ra, %rb", RA % RB),
    ("neg.s32 %rx, %rb", -RB & W32),
    ("abs.s32 %rx, %ra", -SA32),
    ("min.s32 %rx, %ra, %rb", RA),
    ("max.u64 %x, %a, %b", A),
    ("and.b32 %rx, %ra, %rc", RA & RC),
    ("or.b64 %x, %a, %c", A | C),
    ("xor.b16 %hx, %ha, %hc", HA ^ HC),
    ("and.pred %px, %pa, %pb", 0),
    ("xor.pred %px, %pa, %pb", 1),
    ("not.pred %px, %pb", 1),
    ("not.b32 %rx, %ra", ~RA & W32),
    ("shl.b32 %rx, %rc, 5", RC << 5 & W32),
    ("shl.b64 %x, %c, 64", 0),
    ("shr.u32 %rx, %rc, 32", 0),
    ("shr.s32 %rx, %ra, 40", W32),
    ("shr.s64 %x, %a, 3", SA64 >> 3 & W64),
    ("shf.l.wrap.b32 %rx, %ra, %rc, 36", ((RC << 32 | RA) << 4 >> 32) & W32),
    ("shf.r.wrap.b32 %rx, %ra, %rc, 8", (RC << 32 | RA) >> 8 & W32),
    ("shf.l.clamp.b32 %rx, %ra, %rc, 40", RA),
    ("shf.r.clamp.b32 %rx, %ra, %rc, 40", RC),
    ("lop3.b32 %rx, %ra, %rb, %rc, 0x96", RA ^ RB ^ RC),
    ("lop3.b32 %rx, %ra, %rb, %rc, 0xCA", (RA & RB) | (~RA & RC) & W32),
    ("prmt.b32 %rx, %ra, %rc, 0x7421", 0x89EF0000),
    ("prmt.b32 %rx, %ra, %rc, 0x444B", 0xEFEFEFFF),
    ("bfe.u32 %rx, %rc, 4, 8", RC >> 4 & 0xFF),
    ("bfe.s32 %rx, %rc, 8, 8", signed(RC >> 8 & 0xFF, 8) & W32),
    ("bfe.u64 %x, %c, 60, 8", C >> 60),
    ("bfi.b32 %rx, %rb, %rc, 4, 8", RC & ~0xFF0 | RB << 4),
    ("bfind.u32 %rx, %rb", 2),
    ("bfind.s32 %rx, %ra", 30),
    ("popc.b32 %rx, %rc", RC.bit_count()),
    ("popc.b64 %rx, %c", C.bit_count()),
    ("clz.b32 %rx, %rb", 29),
    ("clz.b64 %rx, %c", 7),
    ("brev.b32 %rx, %rb", 0xE0000000),
    ("add.rn.ftz.f32 %fx, %fa, %fb", bits32(1.25)),
    ("sub.f64 %dx, %da, %db", bits64(3.75)),
    ("mul.ftz.f32 %fx, %fa, 0f00000001", 0),
    ("add.sat.f32 %fx, %fa, %fb", bits32(1.0)),
    ("mul.rn.f64 %dx, %dc, %dc", bits64(DC * DC)),
    ("fma.rn.ftz.f32 %fx, %fc, %fc, %fa", bits32(fused(FC, FC, FA))),
    ("fma.rn.f64 %dx, %da, %db, %da", bits64(DA * DB + DA)),
    ("fma.rn.sat.f32 %fx, %fa, %fb, %fa", bits32(0.0)),
    ("div.rn.ftz.f32 %fx, %fa, %fc", bits32(np.float32(FA) / np.float32(FC))),
    ("div.rn.f64 %dx, %da, %dc", bits64(DA / DC)),
    ("div.full.ftz.f32 %fx, %fa, %fb", bits32(-2.0)),
    ("div.approx.f32 %fx, %fa, %fb", bits32(-2.0)),
    ("rcp.rn.ftz.f32 %fx, %fc", bits32(np.float32(1) / np.float32(FC))),
    ("rcp.approx.ftz.f32 %fx, %fb", bits32(np.float32(1) / np.float32(FB))),
    ("sqrt.rn.ftz.f32 %fx, %fa", bits32(np.sqrt(np.float32(FA)))),
    ("sqrt.rn.f64 %dx, %da", bits64(math.sqrt(DA))),
    ("sqrt.approx.ftz.f32 %fx, 0f40800000", bits32(2.0)),
    ("rsqrt.approx.ftz.f32 %fx, 0f40800000", bits32(0.5)),
    ("ex2.approx.ftz.f32 %fx, 0f40400000", bits32(8.0)),
    ("lg2.approx.ftz.f32 %fx, 0f41000000", bits32(3.0)),
    ("sin.approx.ftz.f32 %fx, 0f00000000", 0),
    ("cos.approx.ftz.f32 %fx, 0f00000000", bits32(1.0)),
    ("tanh.approx.f32 %fx, 0f00000000", 0),
    ("neg.ftz.f32 %fx, %fa", bits32(-FA)),
    ("abs.f64 %dx, %db", bits64(1.25)),
    ("abs.ftz.f32 %fx, %fb", bits32(1.25)),
    ("min.ftz.f32 %fx, %fa, 0f7FC00000", bits32(FA)),
    ("max.f32 %fx, 0f80000000, 0f00000000", 0),
    ("max.NaN.f32 %fx, %fa, 0f7FC00000", 0x7FC00000),
    ("copysign.f32 %fx, %fb, %fa", bits32(-2.5)),
    ("testp.finite.f32 %px, %fa", 1),
    ("testp.infinite.f32 %px, 0f7F800000", 1),
    ("testp.notanumber.f32 %px, %fa", 0),
    ("testp.number.f64 %px, %da", 1),
    ("setp.lt.s32 %px, %ra, %rb", 1),
    ("setp.ne.b64 %px, %a, %b", 1),
    ("setp.hi.u32 %px, %ra, %rb", 1),
    ("setp.gt.and.s32 %px, %rb, %ra, %pb", 0),
    ("setp.eq.s32 %pb|%px, %ra, %rb", 1),
    ("setp.lt.ftz.f32 %px, %fa, 0f7FC00000", 0),
    ("setp.ne.f32 %px, %fa, 0f7FC00000", 0),
    ("setp.neu.ftz.f32 %px, %fa, 0f7FC00000", 1),
    ("setp.leu.or.f32 %px, %fa, %fb, %pa", 1),
    ("setp.nan.f32 %px, %fa, 0f7FC00000", 1),
    ("setp.num.f64 %px, %da, %db", 1),
    ("cvt.s64.s32 %x, %ra", SA32 & W64),
    ("cvt.u64.u32 %x, %ra", RA),
    ("cvt.u32.u64 %rx, %a", RA),
    ("cvt.s32.s8 %rx, %rc", signed(RC, 8) & W32),
    ("cvt.u16.u32 %hx, %rc", HC),
    ("cvt.sat.u8.s32 %hx, %ra", 0),
    ("cvt.rn.f32.s32 %fx, %ra", bits32(SA32)),
    ("cvt.rn.f32.u64 %fx, %a", bits32(A)),
    ("cvt.rn.f64.s32 %dx, %ra", bits64(SA32)),
    ("cvt.rni.ftz.s32.f32 %rx, %fa", 2),
    ("cvt.rzi.s32.f32 %rx, %fb", -1 & W32),
    ("cvt.rzi.u32.f32 %rx, %fb", 0),
    ("cvt.rmi.ftz.f32.f32 %fx, %fb", bits32(-2.0)),
    ("cvt.rpi.f32.f32 %fx, %fa", bits32(3.0)),
    ("cvt.rzi.f64.f64 %dx, %da", bits64(2.0)),
    ("cvt.f64.f32 %dx, %fc", bits64(FC32)),
    ("cvt.rn.f32.f64 %fx, %dc", bits32(FC)),
    ("cvt.sat.f32.f32 %fx, %fa", bits32(1.0)),
    ("cvt.rn.f16.f32 %hx, %fc", int(np.float16(FC32).view(np.uint16))),
    ("cvt.f32.f16 %fx, %hb", bits32(float(np.uint16(HB).view(np.float16)))),
    ("cvt.rn.bf16.f32 %hx, %fa", 0x4020),
    ("cvt.f32.bf16 %fx, %hc", HC << 16),
)

RESULT_STORES = {
    "%x": "st.global.u64 [%out], %x;",
    "%rx": "st.global.u32 [%out], %rx;",
    "%hx": "st.global.u16 [%out], %hx;",
    "%fx": "st.global.f32 [%out], %fx;",
    "%dx": "st.global.f64 [%out], %dx;",
    "%px": "selp.u32 %rx, 1, 0, %px; st.global.u32 [%out], %rx;",
}


def value_kernels() -> Iterator[tuple[str, str]]:
    for index, (instruction, _) in enumerate(VALUES):
        target = next(t for t in RESULT_STORES if re.search(rf"{t}\b", instruction))
        yield f"value_{index}", f"{instruction};\n{RESULT_STORES[target]}"


def kernel_text(name: str, body: str, extra: str = "") -> str:
    # From memory, so that no compiler computes the result.
    loads = "".join(
        f"ld.global.u64 %{r}, [%in+{8 * i}]; cvt.u32.u64 %r{r}, %{r}; cvt.u16.u32 %h{r}, %r{r};\n"
        f"ld.global.f64 %d{r}, [%in+{24 + 8 * i}]; ld.global.f32 %f{r}, [%in+{48 + 4 * i}];\n"
        for i, r in enumerate("abc")
    )
    registers = "".join(
        f".reg .{t} {', '.join(f'%{p}{n}' for n in 'abcx')};\n"
        for p, t in (("", "b64"), ("r", "b32"), ("h", "b16"), ("f", "f32"), ("d", "f64"))
    )
    return f"""
.visible .entry {name}(.param .u64 {name}_0, .param .u64 {name}_1)
{{
{registers}.reg .pred %pa, %pb, %px;
.reg .b64 %out, %in;
{extra}
ld.param.u64 %out, [{name}_0];
ld.param.u64 %in, [{name}_1];
{loads}setp.eq.s32 %pa, %ra, %ra;
setp.ne.s32 %pb, %ra, %ra;
{body}
ret;
}}
"""


def given() -> GuardedBuffer:
    numbers = np.array([A, B, C], np.uint64).tobytes() + np.array([DA, DB, DC]).tobytes()
    numbers += np.array([FA, FB, FC], np.float32).tobytes()
    return GuardedBuffer.of(np.frombuffer(numbers, np.uint8), "in", read_only=True)


def build(kernels: dict[str, str], extra: str = "") -> SimModule:
    text = HEAD + extra + "".join(kernels.values())
    for entry in read_ptx(text, "test.ptx").kernels:
        for statement in entry.body:
            if isinstance(statement, Instruction):
                SEEN.add(statement.opcode)
    code = translate_ptx(text)
    return SimModule(code, True, kernel_library(code.text, True, code.flags))


@pytest.fixture(scope="module")
def values() -> SimModule:
    return build({name: kernel_text(name, body) for name, body in value_kernels()})


def run_value(values: SimModule, index: int) -> int:
    out = GuardedBuffer.of(np.zeros(1, np.uint64), "out")
    assert values.launch(f"value_{index}", 1, 1, 0, [out, given()]) == ()
    return int(out.array[0])


def test_values_of_all_instructions(values: SimModule) -> None:
    wrong = [
        f"{instruction}: {found:#x}, not {wanted:#x}"
        for index, (instruction, wanted) in enumerate(VALUES)
        if (found := run_value(values, index)) != wanted
    ]
    assert not wrong, "\n".join(wrong)


# Instructions that need memory or other threads. Each kernel fills out[lane]; 32 threads.
WARP = "mov.u32 %ra, %tid.x; mul.wide.u32 %a, %ra, 4; add.s64 %out, %out, %a;\n"
STORE = "\nst.global.u32 [%out], %rx;"
LANES = np.arange(32)
SHARED = ".shared .align 16 .b8 tile[512];"
TILE = "mov.u64 %b, tile; add.s64 %b, %b, %a;"


def shuffled(op: str, by: int) -> Callable[[], np.ndarray]:
    moves = {
        "bfly": LANES ^ by,
        "up": np.where(by > LANES, LANES, LANES - by),
        "down": np.where(LANES + by > 31, LANES, LANES + by),
        "idx": np.full(32, by),
    }
    return lambda: moves[op]


MEETING: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
    **{
        f"shuffle_{op}": (
            f"shfl.sync.{op}.b32 %rx|%px, %ra, {by}, {0 if op == 'up' else 31}, -1;",
            shuffled(op, by),
        )
        for op, by in (("bfly", 5), ("up", 3), ("down", 3), ("idx", 9))
    },
    "ballot": (
        "setp.lt.u32 %px, %ra, 4; vote.sync.ballot.b32 %rx, %px, -1;",
        lambda: np.full(32, 15),
    ),
    "vote_any": (
        "setp.lt.u32 %px, %ra, 4; vote.sync.any.pred %px, %px, -1; selp.u32 %rx, 1, 0, %px;",
        lambda: np.ones(32),
    ),
    "vote_all": (
        "setp.lt.u32 %px, %ra, 4; vote.sync.all.pred %px, !%px, -1; selp.u32 %rx, 1, 0, %px;",
        lambda: np.zeros(32),
    ),
    "redux_add": ("redux.sync.add.u32 %rx, %ra, -1;", lambda: np.full(32, 496)),
    "redux_add_signed": ("redux.sync.add.s32 %rx, %ra, -1;", lambda: np.full(32, 496)),
    "redux_max": ("redux.sync.max.s32 %rx, %ra, -1;", lambda: np.full(32, 31)),
    "redux_or": ("redux.sync.or.b32 %rx, %ra, -1;", lambda: np.full(32, 31)),
    "barrier": (
        f"{TILE} st.shared.u32 [%b], %ra; bar.sync 0; ld.shared.u32 %rx, [tile+8];",
        lambda: np.full(32, 2),
    ),
    "barrier_narrow_address": (
        "mov.u32 %rb, tile; mad.lo.s32 %rb, %ra, 4, %rb; st.shared.u32 [%rb], %ra;"
        "barrier.sync 0; cvt.u64.u32 %b, %rb; cvta.shared.u64 %b, %b; ld.u32 %rx, [%b];",
        lambda: LANES,
    ),
    "barrier_count": (
        "setp.lt.u32 %px, %ra, 5; bar.red.popc.u32 %rx, 0, %px;",
        lambda: np.full(32, 5),
    ),
    "barrier_and": (
        "setp.lt.u32 %px, %ra, 5; bar.red.and.pred %px, 0, %px; selp.u32 %rx, 1, 0, %px;",
        lambda: np.zeros(32),
    ),
    "warp_barrier": (
        f"{TILE} st.volatile.shared.u32 [%b], %ra; bar.warp.sync -1;"
        "ld.volatile.shared.u32 %rx, [tile+12];",
        lambda: np.full(32, 3),
    ),
    "vectors": (
        "mov.u64 %b, tile; shl.b64 %c, %a, 2; add.s64 %b, %b, %c;"
        "st.shared.v4.u32 [%b], {%ra, %ra, %ra, %ra}; st.shared.v2.u32 [%b+8], {%rc, %rc};"
        "ld.shared.v4.u32 {%rx, %rb, _, _}, [%b]; ld.shared.v2.b32 {%rb, %rc}, [%b];"
        "add.u32 %rx, %rx, %rb;",
        lambda: 2 * LANES,
    ),
    "bytes": (
        f"{TILE} st.shared.u8 [%b], %ra; ld.shared.s8 %rx, [%b]; ld.shared.u8 %hx, [%b];",
        lambda: LANES,
    ),
    "local": (
        "st.local.u32 [depot+4], %ra; ld.local.u32 %rx, [depot+4];",
        lambda: LANES,
    ),
    "fences": (
        "membar.cta; membar.gl; membar.sys; fence.acq_rel.gpu; fence.sc.cta; mov.u32 %rx, %laneid;",
        lambda: LANES,
    ),
    "constants": (
        "mov.u64 %b, table; and.b64 %c, %a, 12; add.s64 %b, %b, %c; ld.global.nc.u32 %rx, [%b];",
        lambda: np.array([11, 12, 13, 14])[LANES % 4],
    ),
    "guards": (
        "setp.lt.u32 %px, %ra, 4; mov.u32 %rx, 7; @%px bra $done; @!%px mov.u32 %rx, 9;\n$done:",
        lambda: np.where(LANES < 4, 7, 9),
    ),
    "special_registers": (
        "mov.u32 %rx, %ntid.x; mov.u32 %rb, %ctaid.x; add.u32 %rx, %rx, %rb;"
        "mov.u32 %rb, %nctaid.x; add.u32 %rx, %rx, %rb; mov.u32 %rb, %lanemask_lt;"
        "popc.b32 %rb, %rb; add.u32 %rx, %rx, %rb;",
        lambda: 33 + LANES,
    ),
    **{
        f"atomic_{op}": (
            f"st.shared.u32 [tile], 5; bar.sync 0; setp.eq.u32 %px, %ra, 0;"
            f"@%px atom.shared.{op}.{t} %rb, [tile], {operands}; bar.sync 0;"
            "ld.shared.u32 %rx, [tile];",
            partial(np.full, 32, value),
        )
        for op, t, operands, value in (
            ("add", "u32", "4", 9),
            ("min", "s32", "4", 4),
            ("max", "u32", "9", 9),
            ("and", "b32", "4", 4),
            ("or", "b32", "2", 7),
            ("xor", "b32", "1", 4),
            ("exch", "b32", "1", 1),
            ("inc", "u32", "5", 0),
            ("dec", "u32", "9", 4),
            ("cas", "b32", "5, 8", 8),
        )
    },
    "reduce_without_a_result": (
        "st.shared.u32 [tile], 0; bar.sync 0; red.shared.add.u32 [tile], 1; bar.sync 0;"
        "ld.shared.u32 %rx, [tile];",
        lambda: np.full(32, 32),
    ),
}


@pytest.fixture(scope="module")
def meetings() -> SimModule:
    extra = SHARED + "\n.local .align 16 .b8 depot[16];"
    kernels = {
        name: kernel_text(name, WARP + body + STORE, extra) for name, (body, _) in MEETING.items()
    }
    # A name of its own for the shared array of each kernel, as NVRTC writes it.
    kernels = {name: re.sub(r"\btile\b", f"tile_{name}", text) for name, text in kernels.items()}
    return build(kernels, ".global .align 4 .u32 table[4] = {11, 12, 13, 14};\n")


@pytest.mark.parametrize("name", MEETING)
def test_meeting(name: str, meetings: SimModule) -> None:
    out = GuardedBuffer(32, np.uint32, "out")
    found = meetings.launch(name, 1, 32, 0, [out, given()])
    same_first_value = name.startswith(("atomic", "reduce"))
    assert found == () or same_first_value, [str(report) for report in found]
    assert np.array_equal(out.array, MEETING[name][1]())


def test_every_form_of_the_table_is_exercised(values: SimModule, meetings: SimModule) -> None:
    """A form counts when its opcode stands in a kernel of this file, whose values are compared."""
    used = {id(match.form) for opcode in SEEN if (match := find_form(opcode))}
    missing = [form.pattern for form in FORMS if id(form) not in used]
    assert set(missing) <= ELSEWHERE, sorted(set(missing) - ELSEWHERE)


ELSEWHERE = {"trap"}  # among the illegal neighbours of legal patterns


@pytest.mark.parametrize("arch", ["compute_75", "compute_90", "compute_100"])
@pytest.mark.parametrize("name", CASES)
def test_everything_that_nvrtc_emits_for_the_kernels_is_in_the_table(name: str, arch: str) -> None:
    ptx = compile_nvrtc(read_kernel(name), arch, ("-lineinfo",), f"{name}.cu").ptx
    assert ptx is not None
    opcodes = {
        statement.opcode
        for kernel in read_ptx(ptx, "test.ptx").kernels
        for statement in kernel.body
        if isinstance(statement, Instruction)
    }
    assert opcodes
    assert [opcode for opcode in sorted(opcodes) if find_form(opcode) is None] == []


@pytest.mark.parametrize(
    "instruction",
    ["wgmma.fence.sync.aligned", "mma.sync.x %ra, %rb", "dp4a.u32.u32 %rx, %ra, %rb, %rc"],
)
def test_an_unknown_form_is_an_error_that_names_it_and_its_line(instruction: str) -> None:
    text = HEAD + kernel_text("k", f"add.s32 %rx, %ra, %rb;\n{instruction};")
    with pytest.raises(ToolError) as error:
        translate_ptx(text, "net.cu")
    diagnostic = error.value.diagnostics[0]
    opcode = instruction.split()[0]
    assert diagnostic.code == "BPC0626" and f"'{opcode}'" in diagnostic.message
    assert diagnostic.span is not None and diagnostic.span.file == "net.ptx"
    assert opcode in text.splitlines()[diagnostic.span.line - 1]


@pytest.mark.parametrize("operands", ["%rx, %clock", "%rx, %nosuch"])
def test_an_unknown_register_is_an_error(operands: str) -> None:
    text = HEAD + kernel_text("k", f"mov.u32 {operands};")
    with pytest.raises(ToolError, match=operands.split()[1]):
        translate_ptx(text)


def test_a_function_that_was_not_inlined_is_an_error() -> None:
    text = HEAD + ".func (.param .b32 r) f(.param .b32 a)\n{\nret;\n}\n"
    with pytest.raises(ToolError, match=r"\.func") as error:
        translate_ptx(text)
    assert error.value.diagnostics[0].help == "declare it __forceinline__"


def test_no_opcode_has_two_meanings(values: SimModule, meetings: SimModule) -> None:

    def fitting(opcode: str) -> list[Form]:
        return [form for form in FORMS if form.regex().match(opcode)]

    twice = {o: [f.pattern for f in fitting(o)] for o in SEEN if len(fitting(o)) > 1}
    assert twice == {}
