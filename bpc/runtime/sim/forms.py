"""The table of PTX instruction forms that the simulator knows, each with its meaning in C++."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

CPP_TYPES: Mapping[str, str] = {
    "pred": "bool",
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f16": "ptx_f16",
    "bf16": "ptx_bf16",
    "f32": "float",
    "f64": "double",
}

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
NARROW = ("u16", "s16", "u32", "s32")
WORDS = ("u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
LOGIC = ("pred", *BITS)
FLOATS = ("f32", "f64")
SIGNED = ("s16", "s32", "s64")
ANY = (*INTEGERS, *BITS, *FLOATS)
MEMORY = ("u8", "s8", "b8", *ANY)
ATOMIC = ("u32", "s32", "u64", "s64", "b32", "b64", *FLOATS)


@dataclass(frozen=True, slots=True)
class Form:
    """One or more opcodes with one meaning.

    Args:
        pattern: the opcode. `[.a|.b]` may be missing, `{name:a|b}` is a named choice, and `T`
            stands for one of `types`.
        operands: how each operand is read, the result first. T: the form's type; W: twice as
            wide; U: unsigned; S: the named choice `source`; `-`: as it stands; else a type.
        code: a C++ expression of the operands a, b, c, d that the result gets, with the types
            {T}, {U}, {W} and the named choices; or `@name`, a shape that the translator knows.
        choices: what a named choice stands for in the code.
    """

    pattern: str
    operands: str
    code: str
    types: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    def regex(self) -> re.Pattern[str]:
        """The pattern as a regular expression over whole opcodes."""
        text = re.sub(r"\[([^\]]*)\]", r"(?:\1)?", self.pattern)
        text = re.sub(r"\{(\w+):([^}]*)\}", r"(?P<\1>\2)", text)
        text = text.replace(".", r"\.")
        if self.types:
            text = re.sub(r"\bT\b", f"(?P<T>{'|'.join(self.types)})", text, count=1)
        return re.compile(text + r"\Z")


_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED_COMPARE = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_REDUCE = {"add": "ADD", "min": "MIN", "max": "MAX", "and": "AND", "or": "OR", "xor": "XOR"}
_SHUFFLES = {
    "bfly": "SIM_SHUFFLE_XOR",
    "up": "SIM_SHUFFLE_UP",
    "down": "SIM_SHUFFLE_DOWN",
    "idx": "SIM_SHUFFLE",
}
_ROUND = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_LOGIC_CODE = {"and": "&", "or": "|", "xor": "^"}
_ATOMICS = {
    **{"add": "Add", "min": "Min", "max": "Max", "and": "And", "or": "Or", "xor": "Xor"},
    **{"exch": "Exch", "inc": "Inc", "dec": "Dec", "cas": "CAS"},
}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_SPACE = "[.global|.shared|.local|.const]"
_ORDER = "[.relaxed|.acquire|.release|.acq_rel][.cta|.cluster|.gpu|.sys]"
_CACHE = "[.ca|.cg|.cs|.lu|.cv|.wb|.wt][.L1::evict_last|.L1::evict_first|.L1::no_allocate]"
BOOLEAN = {"and": "&&", "or": "||", "xor": "!="}

FORMS: tuple[Form, ...] = (
    # moving
    Form("mov.T", "- -", "@move", (*ANY, "pred")),
    Form("cvta[.to][.global|.shared|.local|.const|.param].{T:u64|u32}", "- -", "@address"),
    Form("selp.T", "T T T pred", "{c} ? {a} : {b}", ANY),
    # integers
    Form("{op:add|sub}.T", "T T T", "{T}({a} {op} {b})", INTEGERS, _ARITHMETIC),
    Form("mul.lo.T", "T T T", "{T}({W}({a}) * {W}({b}))", NARROW),
    Form("mul.lo.T", "T T T", "{T}({a} * {b})", ("u64", "s64")),
    Form("mul.hi.T", "T T T", "ptx_mul_hi({a}, {b})", INTEGERS),
    Form("mul.wide.T", "W T T", "{W}({a}) * {W}({b})", NARROW),
    Form("mad.lo.T", "T T T T", "{T}({W}({a}) * {W}({b}) + {W}({c}))", NARROW),
    Form("mad.lo.T", "T T T T", "{T}({a} * {b} + {c})", ("u64", "s64")),
    Form("mad.hi.T", "T T T T", "{T}(ptx_mul_hi({a}, {b}) + {c})", WORDS),
    Form("mad.wide.T", "W T T W", "{W}({W}({a}) * {W}({b}) + {c})", NARROW),
    Form("{op:div|rem}.T", "T T T", "{T}({a} {op} {b})", INTEGERS, {"div": "/", "rem": "%"}),
    Form("neg.T", "T T", "{T}(-{a})", SIGNED),
    Form("abs.T", "T T", "{T}({a} < 0 ? -{a} : {a})", SIGNED),
    Form("{op:min|max}.T", "T T T", "sim_{op}({a}, {b})", INTEGERS),
    # bits
    Form("{op:and|or|xor}.T", "T T T", "{T}({a} {op} {b})", LOGIC, _LOGIC_CODE),
    Form("not.pred", "pred pred", "!{a}"),
    Form("not.T", "T T", "{T}(~{a})", BITS),
    Form("shl.T", "T T u32", "ptx_shl({a}, {b})", BITS),
    Form("shr.T", "T T u32", "ptx_shr({a}, {b})", (*INTEGERS, *BITS)),
    Form("shf.l.wrap.b32", "b32 b32 b32 u32", "ptx_funnel_left({a}, {b}, {c} & 31)"),
    Form("shf.r.wrap.b32", "b32 b32 b32 u32", "ptx_funnel_right({a}, {b}, {c} & 31)"),
    Form("shf.l.clamp.b32", "b32 b32 b32 u32", "ptx_funnel_left({a}, {b}, ptx_clamp_shift({c}))"),
    Form("shf.r.clamp.b32", "b32 b32 b32 u32", "ptx_funnel_right({a}, {b}, ptx_clamp_shift({c}))"),
    Form("lop3.b32", "b32 b32 b32 b32 -", "ptx_lop3<{d}>({a}, {b}, {c})"),
    Form("prmt.b32", "b32 b32 b32 b32", "ptx_permute({a}, {b}, {c})"),
    Form("bfe.T", "T T u32 u32", "ptx_extract({a}, {b}, {c})", WORDS),
    Form("bfi.T", "T T T u32 u32", "ptx_insert({a}, {b}, {c}, {d})", ("b32", "b64")),
    Form("bfind.T", "u32 T", "ptx_highest_bit({a})", WORDS),
    Form("popc.b32", "u32 b32", "uint32_t(__builtin_popcount({a}))"),
    Form("popc.b64", "u32 b64", "uint32_t(__builtin_popcountll({a}))"),
    Form("clz.T", "u32 T", "ptx_leading_zeros({a})", ("b32", "b64")),
    Form("brev.T", "T T", "ptx_reverse_bits({a})", ("b32", "b64")),
    # floating point
    Form("{op:add|sub|mul}[.rn][.ftz].T", "T T T", "{a} {op} {b}", FLOATS, _ARITHMETIC),
    Form("{op:add|sub|mul}[.rn][.ftz].sat.f32", "f32 f32 f32", "ptx_saturate({a} {op} {b})",
         choices=_ARITHMETIC),
    Form("fma.rn[.ftz].T", "T T T T", "ptx_fma({a}, {b}, {c})", FLOATS),
    Form("fma.rn[.ftz].sat.f32", "f32 f32 f32 f32", "ptx_saturate(ptx_fma({a}, {b}, {c}))"),
    Form("div.rn[.ftz].T", "T T T", "{a} / {b}", FLOATS),
    Form("div{how:.full|.approx}[.ftz].f32", "f32 f32 f32", "sim_divide({a}, {b})"),
    Form("rcp.rn[.ftz].T", "T T", "{T}(1) / {a}", FLOATS),
    Form("rcp.approx[.ftz].f32", "f32 f32", "sim_reciprocal({a})"),
    Form("sqrt.rn[.ftz].T", "T T", "sqrt({a})", FLOATS),
    Form("sqrt.approx[.ftz].f32", "f32 f32", "sim_reciprocal(sim_rsqrt({a}))"),
    Form("rsqrt.approx[.ftz].f32", "f32 f32", "sim_rsqrt({a})"),
    Form("ex2.approx[.ftz].f32", "f32 f32", "sim_exp2({a})"),
    Form("lg2.approx[.ftz].f32", "f32 f32", "sim_log2({a})"),
    Form("sin.approx[.ftz].f32", "f32 f32", "sim_sin({a})"),
    Form("cos.approx[.ftz].f32", "f32 f32", "sim_cos({a})"),
    Form("tanh.approx.f32", "f32 f32", "sim_tanh({a})"),
    Form("neg[.ftz].T", "T T", "-{a}", FLOATS),
    Form("abs[.ftz].T", "T T", "{T}(fabs({a}))", FLOATS),
    Form("{op:min|max}[.ftz].T", "T T T", "sim_{op}({a}, {b})", FLOATS),
    Form("{op:min|max}[.ftz].NaN.f32", "f32 f32 f32", "ptx_{op}_nan({a}, {b})"),
    Form("copysign.T", "T T T", "{T}(copysign({b}, {a}))", FLOATS),
    Form("testp.finite.T", "pred T", "bool(isfinite({a}))", FLOATS),
    Form("testp.infinite.T", "pred T", "bool(isinf({a}))", FLOATS),
    Form("testp.notanumber.T", "pred T", "{a} != {a}", FLOATS),
    Form("testp.number.T", "pred T", "{a} == {a}", FLOATS),
    # comparing; a second result is the complement, a further operand is joined
    Form("setp.{op:eq|ne|lt|le|gt|ge}[.and|.or|.xor].T", "pred T T", "@compare",
         (*INTEGERS, *BITS), _COMPARE),
    Form("setp.{op:lo|ls|hi|hs}[.and|.or|.xor].T", "pred T T", "@compare",
         ("u16", "u32", "u64"), _UNSIGNED_COMPARE),
    Form("setp.{op:eq|lt|le|gt|ge}[.and|.or|.xor][.ftz].T", "pred T T", "@compare", FLOATS,
         _COMPARE),
    Form("setp.ne[.and|.or|.xor][.ftz].T", "pred T T", "@compare_unequal", FLOATS),
    Form("setp.{op:eq|ne|lt|le|gt|ge}u[.and|.or|.xor][.ftz].T", "pred T T", "@compare_or_nan",
         FLOATS, _COMPARE),
    Form("setp.nan[.and|.or|.xor][.ftz].T", "pred T T", "@compare_nan", FLOATS),
    Form("setp.num[.and|.or|.xor][.ftz].T", "pred T T", "@compare_numbers", FLOATS),
    # converting
    Form("cvt.T.{source:u8|s8|u16|s16|u32|s32|u64|s64}", "T S", "{T}({a})",
         ("u8", "s8", *INTEGERS)),
    Form("cvt.sat.T.{source:u16|s16|u32|s32|u64|s64}", "T S", "ptx_saturate_to<{T}>({a})",
         ("u8", "s8", *INTEGERS)),
    Form("cvt.rn[.ftz].T.{source:u8|s8|u16|s16|u32|s32|u64|s64}", "T S", "{T}({a})", FLOATS),
    Form("cvt.{op:rni|rzi|rmi|rpi}[.ftz].T.{source:f32|f64}", "T S",
         "sim_to_integer<{T}>({op}({a}))", INTEGERS, _ROUND),
    Form("cvt.{op:rni|rzi|rmi|rpi}[.ftz].T.{source:f32|f64}", "T S", "{T}({op}({a}))", FLOATS,
         _ROUND),
    Form("cvt[.rn][.ftz].T.{source:f32|f64}", "T S", "{T}({a})", FLOATS),
    Form("cvt[.rn][.ftz].sat.f32.f32", "f32 f32", "ptx_saturate({a})"),
    Form("cvt[.ftz].f32.{source:f16|bf16}", "f32 S", "ptx_widen({a})"),
    Form("cvt.rn[.ftz].{to:f16|bf16}.f32", "{to} f32", "ptx_to_{to}({a})"),
    # memory
    Form("ld.param[.v2|.v4].T", "- -", "@load_parameter", MEMORY),
    Form(f"ld{_ORDER}{_SPACE}[.nc]{_CACHE}[.L2::128B|.L2::256B][.v2|.v4].T", "- -", "@load",
         MEMORY),
    Form(f"ld.volatile{_SPACE}[.v2|.v4].T", "- -", "@load", MEMORY),
    Form(f"st{_ORDER}{_SPACE}{_CACHE}[.v2|.v4].T", "- -", "@store", MEMORY),
    Form(f"st.volatile{_SPACE}[.v2|.v4].T", "- -", "@store", MEMORY),
    Form(f"atom{_ORDER}[.global|.shared].{{op:add|min|max|and|or|xor|exch|inc|dec|cas}}.T",
         "T - T", "@atomic", ATOMIC, _ATOMICS),
    Form(f"red{_ORDER}[.global|.shared].{{op:add|min|max|and|or|xor|inc|dec}}.T",
         "- T", "@reduce", ATOMIC, _ATOMICS),
    # meeting
    Form("{how:bar|barrier}[.cta].sync[.aligned]", "-", "@barrier"),
    Form("{how:bar|barrier}[.cta].red[.aligned].popc.u32", "u32 - pred", "@barrier_count"),
    Form("{how:bar|barrier}[.cta].red[.aligned].{op:and|or}.pred", "pred - pred",
         "@barrier_vote", choices={"and": "SIM_AND", "or": "SIM_OR"}),
    Form("bar.warp.sync", "u32", "@syncwarp"),
    Form("membar.{how:gl|sys}", "", "sim_fence(1)"),
    Form("membar.cta", "", "sim_fence(0)"),
    Form("fence.{how:acq_rel|sc}.{scope:gpu|sys|cluster}", "", "sim_fence(1)"),
    Form("fence.{how:acq_rel|sc}.cta", "", "sim_fence(0)"),
    Form("shfl.sync.{op:bfly|up|down|idx}.b32", "b32 b32 u32 u32 u32", "@shuffle",
         choices=_SHUFFLES),
    Form("vote.sync.ballot.b32", "b32 pred u32", "uint32_t(sim_warp(SIM_BALLOT, {b}, {a}, 0, 32))"),
    Form("vote.sync.{op:any|all}.pred", "pred pred u32",
         "sim_warp({op}, {b}, {a}, 0, 32) != 0", choices={"any": "SIM_ANY", "all": "SIM_ALL"}),
    Form("redux.sync.{op:add|min|max}.u32", "u32 u32 u32",
         "uint32_t(sim_warp(SIM_REDUCE_{op}, {b}, {a}, 0, 32))", choices=_REDUCE),
    Form("redux.sync.add.s32", "u32 u32 u32",
         "uint32_t(sim_warp(SIM_REDUCE_ADD, {b}, {a}, 0, 32))"),
    Form("redux.sync.{op:min|max}.s32", "u32 u32 u32",
         "uint32_t(sim_warp(SIM_REDUCE_{op}_SIGNED, {b}, {a}, 0, 32))", choices=_REDUCE),
    Form("redux.sync.{op:and|or|xor}.b32", "b32 b32 u32",
         "uint32_t(sim_warp(SIM_REDUCE_{op}, {b}, {a}, 0, 32))", choices=_REDUCE),
    # going on elsewhere
    Form("bra[.uni]", "-", "@branch"),
    Form("{how:ret|exit}[.uni]", "", "@return"),
    Form("trap", "", 'sim_trap("trap")'),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Match:
    """A form found for an opcode, with what its pattern left open."""

    form: Form
    names: Mapping[str, str]


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], Form], ...]:
    return tuple((form.regex(), form) for form in FORMS)


@cache
def find_form(opcode: str) -> Match | None:
    """The first form that fits; None if the opcode is unknown."""
    for pattern, form in _compiled():
        found = pattern.match(opcode)
        if found:
            return Match(form, {name: text for name, text in found.groupdict().items() if text})
    return None


def widened(element: str) -> str:
    """The type twice as wide."""
    return f"{element[0]}{2 * int(element[1:])}"
