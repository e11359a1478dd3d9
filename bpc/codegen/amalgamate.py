"""A generated file with its headers written into it, so that it compiles anywhere by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_INCLUDE = re.compile(r'^#include "(\w+\.h)"$')


def single_file(text: str, name: str, folders: Sequence[Path]) -> str:
    """The text with each `#include "header.h"` replaced by the header, once.

    `#line` keeps the places: a compiler's message and a debugger name the header or `name`.

    Args:
        text: a generated file.
        name: what compilers should call it.
        folders: where headers are looked for.
    """
    done: set[str] = set()

    def expand(body: str, called: str) -> list[str]:
        lines = []
        for number, line in enumerate(body.splitlines(), 1):
            found = _INCLUDE.match(line)
            if not found:
                lines.append(line if line != "#pragma once" else "")
                continue
            header = found[1]
            if header not in done:
                done.add(header)
                path = next(folder / header for folder in folders if (folder / header).exists())
                lines.append(f'#line 1 "{header}"')
                lines.extend(expand(path.read_text(encoding="utf-8"), header))
            lines.append(f'#line {number + 1} "{called}"')
        return lines

    return "\n".join([f'#line 1 "{name}"', *expand(text, name)]) + "\n"
