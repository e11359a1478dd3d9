"""Source mode: a .cu text completed for g++, and what the checks need to know about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bpc.errors import UsageError
from bpc.runtime.sim.reports import Place

NO_KERNEL = "BPC0627"

DISPLACED = "sim_displaced_"
DYNAMIC_SHARED = "sim_dynamic_shared"
MAX_SHARED_BYTES = 227 << 10  # what a block may use on sm_90

_ELEMENT_BYTES = {
    **dict.fromkeys(("char", "signed char", "unsigned char", "bool", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("short", "unsigned short", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("int", "unsigned", "unsigned int", "float", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("long", "unsigned long", "long long", "unsigned long long"), 8),
    **dict.fromkeys(("double", "int64_t", "uint64_t", "float2", "int2", "uint2"), 8),
}
_UNKNOWN_ALIGNMENT = 16  # of a type that is not in the table: no access needs more

_KERNEL = re.compile(
    r"\bextern\s+\"C\"\s+__global__\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
)
_SHARED = re.compile(r"(\bextern\s+)?\b__shared__\s+([^;]*);")
_ALIGNED = re.compile(r"(?:__align__|alignas)\s*\(\s*([^)]*?)\s*\)")
_SMALL_ARRAY = re.compile(
    r"(?<!extern )\b__shared__\s+((?:\w+\s+)*?\w+)\s+(\w+)\s*((?:\[[^\];]*\]\s*)+);"
)
_DECLARED = re.compile(r"^\s*((?:\w+\s+)*?\w+)\s+(\w+\s*(?:\[.*)?)$", re.S)


@dataclass(frozen=True, slots=True)
class SharedArray:
    """A `__shared__` variable as declared. `nbytes` None: as the symbol table says."""

    symbol: str
    name: str
    alignment: int
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class KernelText:
    """A file for g++ and the facts that its symbols do not carry.

    `shared` holds what is known of shared arrays by symbol, or by plain name where the symbol is
    the compiler's; `cell_shift` is the detector's granularity in shared memory (log2 of bytes).
    `flags` are the mode's own options for g++. Where the text is a translation, its line numbers
    count instructions, and `lines` holds the source lines of each, innermost first.
    """

    text: str
    kernels: tuple[str, ...]
    shared: tuple[SharedArray, ...]
    dynamic: SharedArray | None
    cell_shift: int
    flags: tuple[str, ...] = ()
    lines: tuple[tuple[Place, ...], ...] = ()


def complete_source(text: str, name: str, checked: bool) -> KernelText:
    """Wrap an unchanged .cu text: CUDA's names before it, exports of its kernels behind it.

    Args:
        text: the .cu file.
        name: what line tables call it.
        checked: whether shared arrays are kept at no better alignment than their declaration's.

    Raises:
        UsageError: the text has no kernel that could be called by name.
    """
    bare = strip_comments(text)
    kernels = tuple(_KERNEL.findall(bare))
    if not kernels:
        raise UsageError.at(
            NO_KERNEL,
            f"{name} has no kernel",
            None,
            help='declare each as extern "C" __global__ void name(...)',
        )
    arrays, dynamic = find_shared(bare)
    body = displace_shared(text, bare) if checked else text
    parts = ['#include "sim_cuda.h"', f'#line 1 "{name}"', body, '#line 1 "sim_footer"']
    if dynamic:
        parts.append(define_dynamic([array.symbol for array in dynamic]))
    parts += [f"SIM_EXPORT({kernel}, {kernel})" for kernel in kernels]
    return KernelText(
        "\n".join(parts) + "\n", kernels, arrays, dynamic[0] if dynamic else None, cell_shift(bare)
    )


def displace_shared(text: str, bare: str) -> str:
    """Moves shared arrays of small types away from addresses that happen to be aligned.

    A device need not align `float tile[64]` to more than 4 bytes, but g++ does. Within functions
    such an array becomes the member of a structure, behind one element's worth of gap, and its
    name a reference to it. Lines stay where they are.

    Args:
        text: the source.
        bare: the same with blanks for comments, character by character.
    """
    for match in reversed(list(_SMALL_ARRAY.finditer(bare))):
        element, name, extents = " ".join(match[1].split()), match[2], match[3]
        in_function = bare.count("{", 0, match.start()) > bare.count("}", 0, match.start())
        if not in_function or element not in _ELEMENT_BYTES:
            continue
        held = f"{DISPLACED}{_ELEMENT_BYTES[element]}_{name}"
        moved = f"__shared__ sim_displaced<{element}{extents}> {held}; auto& {name} = {held}.value;"
        breaks = "\n" * match[0].count("\n")
        text = text[: match.start()] + moved + breaks + text[match.end() :]
    return text


def define_dynamic(names: list[str]) -> str:
    """One thread-local array for all `extern __shared__` names of a file."""
    lines = [
        f"alignas(16) thread_local unsigned char {DYNAMIC_SHARED}[{MAX_SHARED_BYTES}];",
        *(
            f'asm(".globl {name}\\n.hidden {name}\\n.type {name}, @tls_object\\n'
            f'.set {name}, {DYNAMIC_SHARED}");'
            for name in dict.fromkeys(names)
        ),
    ]
    return "\n".join(lines)


def strip_comments(text: str) -> str:
    """The text with comments blanked; line breaks stay."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        return found if found[0] in "\"'" else re.sub(r"[^\n]", " ", found)

    pattern = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    return re.sub(pattern, blank, text, flags=re.S)


def find_shared(bare: str) -> tuple[tuple[SharedArray, ...], tuple[SharedArray, ...]]:
    """The static and the dynamic `__shared__` declarations of a text without comments."""
    static: dict[str, SharedArray] = {}
    dynamic: dict[str, SharedArray] = {}
    for external, declaration in _SHARED.findall(bare):
        for name, alignment in _declared_names(declaration):
            group = dynamic if external else static
            known = group[name].alignment if name in group else 0
            # Two arrays of one name are told apart by nothing here: the laxer alignment holds.
            group[name] = SharedArray(name, name, max(alignment, known))
    return tuple(static.values()), tuple(dynamic.values())


def _declared_names(declaration: str) -> list[tuple[str, int]]:
    explicit = _ALIGNED.search(declaration)
    plain = _ALIGNED.sub(" ", declaration)
    found = _DECLARED.match(plain.split(",")[0])
    if not found:
        return []
    alignment = _ELEMENT_BYTES.get(" ".join(found[1].split()), _UNKNOWN_ALIGNMENT)
    if explicit:
        alignment = int(explicit[1]) if explicit[1].isdigit() else _UNKNOWN_ALIGNMENT
    names = [found[2], *re.sub(r"\[[^\]]*\]", "", plain).split(",")[1:]]
    return [(re.sub(r"\[.*", "", name, flags=re.S).strip(), alignment) for name in names]


def cell_shift(bare: str) -> int:
    """The detector's granularity in shared memory: as fine as the text's smallest elements.

    A lone flag needs no cell of its own, and dynamic shared memory is declared as bytes whatever
    it holds.
    """
    text = re.sub(r"\bextern\s+__shared__[^;]*;", "", bare)
    if re.search(r"\b(u?char\w?|u?int8_t)\b|\bbool\s+\w+\s*\[", text):
        return 0
    return 1 if re.search(r"\b(u?short\w?|u?int16_t|half|bfloat16)\b", text) else 2
