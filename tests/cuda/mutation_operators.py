"""One small defect at a time in the text of a CUDA kernel: which there are, and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

INTEGERS = r"(?:bpc_index|int64_t|int|unsigned)"
VALUES = r"(?:bpc_index|int64_t|int|unsigned|float|double|Acc|T|bool)"
INDEXED = ("bpc_load", "bpc_store", "bpc_bit_load")  # calls whose second argument is an index
COUNTED = (  # calls all of whose plain arguments are places, counts or strides
    *("bpc_is_whole", "bpc_load_pack", "bpc_store_pack", "bpc_row_sum", "bpc_row_max"),
    *("bpc_held", "bpc_warp_reduce", "bpc_serial_sum", "bpc_find_part", "atomicInc", "bpc_gemm"),
    *("bpc_conv_forward", "bpc_conv_input_gradient", "bpc_conv_weight_gradient", "store"),
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A replacement of text[start:end] by `new`, and the operator that made it."""

    operator: str
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        """The text with the defect."""
        return text[: self.start] + self.new + text[self.end :]


def find_mutations(text: str) -> tuple[Mutation, ...]:
    """Every defect of every operator in a text, each changed text once."""
    bare = blank_comments(text)
    found: dict[tuple[int, int, str], Mutation] = {}
    for operator in OPERATORS:
        for item in operator(bare):
            if "".join(text[item.start : item.end].split()) != "".join(item.new.split()):
                found.setdefault((item.start, item.end, item.new), item)
    return tuple(sorted(found.values(), key=lambda item: (item.start, item.end, item.operator)))


def blank_comments(text: str) -> str:
    """The same text, character by character, with blanks for comments and directives."""
    return re.sub(r"//[^\n]*|^#[^\n]*", lambda m: " " * len(m[0]), text, flags=re.M)


# -- barriers, fences, shuffles -------------------------------------------------------------------


def remove_barriers(bare: str) -> Iterator[Mutation]:
    """Each barrier of a block or a warp removed."""
    for match in re.finditer(r"__sync(?:threads|warp)\(\);", bare):
        yield Mutation("barrier", *match.span(), ";")


def remove_fences(bare: str) -> Iterator[Mutation]:
    """Each fence removed; the ticket drawn without an atomic."""
    for match in re.finditer(r"__threadfence\(\);", bare):
        yield Mutation("fence", *match.span(), ";")
    for match in re.finditer(r"atomicInc\(ticket,", bare):
        yield Mutation(
            "fence", *match.span(), "([](unsigned* p, unsigned) { return (*p)++; })(ticket,"
        )


def change_shuffles(bare: str) -> Iterator[Mutation]:
    """Each shuffle with half a mask, another offset, another direction."""
    for match in re.finditer(r"__shfl_xor_sync\((\w+), (\w+), (\w+)\)", bare):
        mask, value, step = match.groups()
        for new in (
            f"__shfl_xor_sync(0xffffu, {value}, {step})",
            f"__shfl_xor_sync({mask}, {value}, {step} / 2)",
            f"__shfl_xor_sync({mask}, {value}, {step} + 1)",
            f"__shfl_down_sync({mask}, {value}, {step})",
            value,
        ):
            yield Mutation("shuffle", *match.span(), new)


# -- comparisons, guards, choices -----------------------------------------------------------------

_OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}


def change_comparisons(bare: str) -> Iterator[Mutation]:
    """Each comparison turned at its edge, and with its bound one less and one more."""
    for match in re.finditer(r" (<=|>=|==|!=|<|>) (?=\S)", bare):
        sign = match[1]
        yield Mutation("comparison", *match.span(), f" {_OTHER[sign]} ")
        yield Mutation("comparison", *match.span(), f" {sign} -1 + ")
        yield Mutation("comparison", *match.span(), f" {sign} 1 + ")


def drop_guards(bare: str) -> Iterator[Mutation]:
    """Each condition always true, or never where it leaves; each part of a condition alone."""
    for match in re.finditer(r"\b(if|while) \(", bare):
        start = match.end()
        end = _closing(bare, start - 1)
        leaves = re.match(r"\) (?:return|continue)\b", bare[end:])
        wanted = "false" if leaves else "true"
        if match[1] == "if":
            yield Mutation("guard", start, end, wanted)
        yield from _drop_parts(bare, start, end)
    for match in re.finditer(r"\bfor \(", bare):
        end = _closing(bare, match.end() - 1)
        pieces = _split(bare, match.end(), end, ";")
        if len(pieces) == 3:
            yield from _drop_parts(bare, *pieces[1])
    for match in re.finditer(r"\bbool \w+ = ([^;]*&&[^;]*);|\breturn ([^;?]*&&[^;?]*);", bare):
        group = 1 if match[1] else 2
        yield from _drop_parts(bare, match.start(group), match.end(group))


def _drop_parts(bare: str, start: int, end: int) -> Iterator[Mutation]:
    """A conjunction or alternative without one of its parts."""
    for sign, neutral in (("&&", "true"), ("||", "false")):
        parts = _split(bare, start, end, sign)
        if len(parts) > 1:
            for first, last in parts:
                yield Mutation("guard", first, last, f" {neutral} ")


def force_choices(bare: str) -> Iterator[Mutation]:
    """Each `a ? b : c` always b, always c."""
    for match in re.finditer(r"(?:=|\(|return) ((?:[^;?{}=]|==|<=|>=)+?) \? ", bare):
        yield Mutation("choice", match.start(1), match.end(1), _balanced(match[1], "true"))
        yield Mutation("choice", match.start(1), match.end(1), _balanced(match[1], "false"))


def _balanced(condition: str, word: str) -> str:
    """The word, after whatever opens in the condition without closing."""
    depth = 0
    keep = 0
    for at in range(len(condition) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(condition[at], 0)
        if depth < 0:
            keep = at + 1
            break
    return condition[:keep] + word


# -- indices and strides --------------------------------------------------------------------------


def shift_indices(bare: str) -> Iterator[Mutation]:
    """Each place, count and stride one off, without a term or factor, or with strides swapped."""
    for start, end in sorted(set(_index_regions(bare))):
        while start < end and bare[start].isspace():
            start += 1
        text = bare[start:end].rstrip()
        if text:
            yield from _index_mutations(text, start, top=True)


def _index_regions(bare: str) -> Iterator[tuple[int, int]]:
    """Where the text computes places, counts and strides."""
    for match in re.finditer(rf"\b{INTEGERS} (?=\w+ = )", bare):
        end = match.end()
        while end < len(bare) and bare[end] not in ";)":
            end = _closing(bare, end) + 1 if bare[end] in "([{" else end + 1
        for first, last in _split(bare, match.end(), end, ","):
            if "=" in bare[first:last]:
                yield bare.index("=", first) + 1, last
    for match in re.finditer(r"\[", bare):
        end = _closing(bare, match.start())
        if bare[match.end() : end].strip("& "):
            yield match.end(), end
    names = "|".join((*INDEXED, *COUNTED))
    for match in re.finditer(rf"\b({names})(?:<[^;()]*?>)?\(", bare):
        parts = _split(bare, match.end(), _closing(bare, match.end() - 1), ",")
        wanted = parts[1:2] if match[1] in INDEXED else parts
        for first, last in wanted:
            part = bare[first:last]
            if "{" not in part and not re.search(r"\w [*&]|\w[*&]+ \w|^\s*\w+ \w+$", part):
                yield first, last
    for match in re.finditer(r"\bbpc_conv shape = \{([^}]*)\}", bare):
        yield from _split(bare, match.start(1), match.end(1), ",")


def _index_mutations(text: str, at: int, top: bool) -> Iterator[Mutation]:
    if "?" in text or "[&]" in text:
        yield from _choice_mutations(text, at)
        return
    if re.search(r"[<>=!]=| [<>] |&&|\|\|", text):
        return  # the comparisons' own operator changes it
    end = at + len(text)
    if top:
        yield Mutation("index", at, end, f"({text}) + 1")
        yield Mutation("index", at, end, f"({text}) - 1")
    terms = _terms(text, "+-")
    if len(terms) > 1:
        for first, last, sign in terms:
            rest = text[:first] + ("0" if not sign else f"{sign} 0") + text[last:]
            yield Mutation("term", at, end, rest)
    yield from _swap_strides(text, at, terms)
    for first, last, sign in terms:
        start = first + (len(sign) + 1 if sign else 0)
        yield from _factor_mutations(text[start:last], at + start)


def _choice_mutations(text: str, at: int) -> Iterator[Mutation]:
    """The places chosen between, not the condition."""
    match = re.match(r"([^?]*\? )([^:]*)( : )(.*)$", text, re.S)
    if match and "[&]" not in text:
        yield from _index_mutations(match[2].strip(), at + match.start(2), top=True)
        yield from _index_mutations(match[4].strip(), at + match.start(4), top=True)


def _factor_mutations(term: str, at: int) -> Iterator[Mutation]:
    """A term without one of its factors, divided instead of wrapped, with a factor one off."""
    factors = _terms(term, "*/%")
    for first, last, sign in factors:
        start = first + (len(sign) + 1 if sign else 0)
        factor = term[start:last]
        if sign:
            yield Mutation("term", at + first - 1, at + last, "")
        if sign in ("/", "%"):
            other = "%" if sign == "/" else "/"
            yield Mutation("stride", at + first, at + last, f"{other} {factor}")
        if len(factors) > 1:
            yield Mutation("stride", at + start, at + last, f"({factor} + 1)")
            if factor != "1":
                yield Mutation("stride", at + start, at + last, f"({factor} - 1)")
        inner = re.match(r"((?:\w+)?\()(.*)\)$", factor, re.S)
        whole = inner and _closing(factor, len(inner[1]) - 1) == len(factor) - 1
        if inner and whole and "," not in inner[2]:
            shifted = len(factors) > 1
            yield from _index_mutations(inner[2], at + start + len(inner[1]), top=shifted)


def _swap_strides(text: str, at: int, terms: list[tuple[int, int, str]]) -> Iterator[Mutation]:
    """a * s + b becomes a + b * s; a * s + b * t becomes a * t + b * s."""
    products = []
    for first, last, sign in terms:
        start = first + (len(sign) + 1 if sign else 0)
        factors = _terms(text[start:last], "*/%")
        tail = factors[-1]
        scaled = len(factors) > 1 and tail[2] == "*"
        cut = start + tail[0] if scaled else last
        products.append((start, cut, text[cut:last]))
    for one, two in pairwise(products):
        if one[2].strip() != two[2].strip():
            new = text[: one[1]].rstrip() + (f" {two[2]}" if two[2] else "")
            middle = text[one[1] + len(one[2]) : two[1]].rstrip()
            new += middle + (f" {one[2]}" if one[2] else "") + text[two[1] + len(two[2]) :]
            yield Mutation("stride", at, at + len(text), new)


def swap_arguments(bare: str) -> Iterator[Mutation]:
    """Neighbouring sizes, strides or coordinates of a product or convolution exchanged."""
    for match in re.finditer(r"\bbpc_(?:gemm|conv_\w+)<[^;()]*?>\(|\bbpc_conv shape = \{", bare):
        opening = match.end() - 1
        parts = _split(bare, match.end(), _closing(bare, opening), ",")
        for one, two in pairwise(parts):
            a, b = bare[slice(*one)], bare[slice(*two)]
            if all(re.fullmatch(r"(?!\w+_in$)[\w */%+]+", part.strip()) for part in (a, b)):
                yield Mutation("stride", one[0], two[1], f"{b},{a}")


# -- sums, starts, constants ----------------------------------------------------------------------


def change_sums(bare: str) -> Iterator[Mutation]:
    """Each sum without what was there before; each step of a loop one more."""
    for match in re.finditer(r"([+|/])=(?= )", bare):
        yield Mutation("sum", *match.span(), "=")
    for match in re.finditer(r"(\w+(?:\[\w+\])*) = bpc_fma\((.*), \1\);", bare):
        yield Mutation("sum", match.end(2), match.end() - 2, f", {match[1]} * 0")
    for match in re.finditer(r"; \+\+(\w+)\)", bare):
        yield Mutation("step", *match.span(), f"; {match[1]} += 2)")
    for match in re.finditer(r"; \w+ ([+/])= ([^;)]*)\)", bare):
        yield Mutation("step", match.start(2), match.end(2), f"{match[2]} + 1")


def change_starts(bare: str) -> Iterator[Mutation]:
    """Each sum and each loop begun at another value."""
    for match in re.finditer(rf"\b{VALUES} \w+ = (0|Acc\(0\)|T\(0\))(?=;)", bare):
        yield Mutation("start", match.start(1), match.end(1), match[1].replace("0", "1"))
    for match in re.finditer(r"\breturn (-?T\((?:0|BPC_INF_F32)\));", bare):
        yield Mutation("start", match.start(1), match.end(1), "T(1)")
    for match in re.finditer(r" = (\{\});", bare):
        yield Mutation("start", match.start(1), match.end(1), "{1}")
    for match in re.finditer(r" : (Acc\(0\))", bare):
        yield Mutation("start", match.start(1), match.end(1), "Acc(1)")


def change_constants(bare: str) -> Iterator[Mutation]:
    """Each named constant one off, doubled, halved."""
    for match in re.finditer(r"\bconstexpr \w+ [^;{}]*;", bare):
        for value in re.finditer(r"= (\d\w*)", match[0]):
            start = match.start() + value.start(1)
            for new in (f"{value[1]} - 1", f"{value[1]} + 1", f"{value[1]} * 2", f"{value[1]} / 2"):
                yield Mutation("constant", start, start + len(value[1]), new)


OPERATORS: tuple[Callable[[str], Iterator[Mutation]], ...] = (
    remove_barriers,
    remove_fences,
    change_shuffles,
    change_comparisons,
    drop_guards,
    force_choices,
    change_constants,
    change_sums,
    change_starts,
    swap_arguments,
    shift_indices,
)


# -- text -----------------------------------------------------------------------------------------


def _closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` closes."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def _split(text: str, start: int, end: int, by: str) -> list[tuple[int, int]]:
    """The pieces of text[start:end] between `by` outside of brackets."""
    pieces, depth, first, at = [], 0, start, start
    while at < end:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if depth == 0 and text.startswith(by, at):
            pieces.append((first, at))
            at = first = at + len(by)
        else:
            at += 1
    return [*pieces, (first, end)]


def _terms(text: str, signs: str) -> list[tuple[int, int, str]]:
    """(start, end, sign) of the operands of ` + ` and the like outside of brackets."""
    found, depth, first, sign, at = [], 0, 0, "", 0
    while at < len(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        spaced = text[at - 1 : at] == " " and text[at + 1 : at + 2] == " "
        if depth == 0 and at and spaced and text[at] in signs:
            found.append((first, at - 1, sign))
            first, sign = at, text[at]
        at += 1
    return [*found, (first, len(text), sign)]
