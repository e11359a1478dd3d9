"""Words of messages: quoting what the user wrote, the nearest known word, names that are safe."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from functools import lru_cache

from bpc.errors import Span, SpecError
from bpc.spec import codes

_LONGEST_SHOWN = 40
_LONGEST_NAME = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CPP = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
co_return co_yield decltype default delete do double dynamic_cast else enum explicit export
extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
nullptr operator or or_eq private protected public register reinterpret_cast requires restrict
return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename union unsigned using virtual void volatile
wchar_t while xor xor_eq
"""
_CUDA = "threadIdx blockIdx blockDim gridDim warpSize half half2 dim3"
_YAML = "null Null NULL True TRUE False FALSE"
RESERVED = frozenset(f"{_CPP} {_CUDA} {_YAML}".split()) | frozenset(keyword.kwlist)


def show(text: str) -> str:
    """The text in quotes as a message prints it: short, one line, no control characters."""
    short = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)
    quote = '"' if "'" in safe and '"' not in safe else "'"
    return f"{quote}{safe}{quote}"


def join(words: Iterable[str], last: str = "or") -> str:
    """`a, b or c`."""
    listed = list(words)
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}"


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is spelt most like `word`, if any is near."""
    return _find_nearest(word, tuple(sorted(known))) if len(word) <= _LONGEST_NAME else None


@lru_cache(maxsize=256)
def _find_nearest(word: str, known: tuple[str, ...]) -> str | None:
    from difflib import get_close_matches

    found = get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return found[0] if found else None


def suggest(word: str, known: Iterable[str], listed: int = 12) -> str | None:
    """The help line for an unknown word: the nearest known one, or all when there are few."""
    words = sorted(known)
    nearest = find_nearest(word, words)
    if nearest is not None:
        return f"did you mean {show(nearest)}?"
    if 0 < len(words) <= listed:
        return f"known here: {', '.join(words)}"
    return None


def is_name(text: str) -> bool:
    """Whether the text may name something that reaches generated code."""
    return _name_fault(text) is None


def check_name(text: object, span: Span, what: str = "a name") -> str:
    """The text itself if it is a usable name.

    Raises:
        SpecError: it is not text, not an identifier, reserved, or too long.
    """
    fault = _name_fault(text) if isinstance(text, str) else "is not text"
    if fault is None:
        assert isinstance(text, str)
        return text
    shown = show(str(text))
    raise SpecError.at(
        codes.BAD_NAME,
        f"{shown} cannot be {what}: it {fault}",
        span,
        help="names are letters, digits and _, do not start with a digit, at most 64 of them",
    )


def _name_fault(text: str) -> str | None:
    if len(text) > _LONGEST_NAME:
        return f"is {len(text)} characters long"
    if not _NAME.fullmatch(text):
        return "has other characters than letters, digits and _" if text else "is empty"
    if text in RESERVED:
        return "is a reserved word of C++, CUDA, Python or YAML"
    if text.startswith("__"):
        return "starts with two underscores, which compilers keep for themselves"
    return None
