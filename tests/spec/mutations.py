"""Ways to break the text of a spec, by bytes, lines, words or its tree; each from a seed alone."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from bpc.errors import Collector
from bpc.spec.schema import to_plain
from bpc.spec.yamlnodes import read_yaml

TOKENS = (
    *("{", "}", "[", "]", ":", "-", ",", "#", "&a", "*a", "<<", "!!python/name:os", "|", ">", "'"),
    *(
        '"',
        "\t",
        "\x00",
        "\ufeff",
        "é",
        "層",
        "1e400",
        ".nan",
        "-1",
        "null",
        "~",
        "true",
        "no",
        "${",
    ),
    *("${9**9**9}", "__import__", "from", "name", "repeat", "residual", "layers", "${dim", "---"),
    *("9" * 50, "0x" + "f" * 30, "x.y.z", "..", "%YAML 9", "? [a]", "\u2028", "\r", "[" * 70),
)


def change_byte(source: random.Random, text: str) -> bytes:
    raw = bytearray(text.encode())
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(raw))
        action = source.randrange(3)
        if action == 0:
            raw[at] = source.randrange(256)
        elif action == 1:
            del raw[at]
        else:
            raw.insert(at, source.randrange(256))
    return bytes(raw)


def change_line(source: random.Random, text: str) -> bytes:
    lines = text.split("\n")
    at, other = source.randrange(len(lines)), source.randrange(len(lines))
    action = source.randrange(5)
    if action == 0:
        del lines[at]
    elif action == 1:
        lines.insert(at, lines[other])
    elif action == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif action == 3:
        lines[at] = " " * source.randint(1, 5) + lines[at]
    else:
        lines[at] = lines[at][: source.randrange(len(lines[at]) + 1)]
    return "\n".join(lines).encode()


def change_token(source: random.Random, text: str) -> bytes:
    words = text.split(" ")
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(words))
        token = source.choice(TOKENS)
        words[at] = token if source.random() < 0.5 else words[at] + token
    return " ".join(words).encode()


ODD: tuple[object, ...] = (
    *(None, True, -1, 0, 10**30, 1.5, float("inf"), "", "x", "no", "1e-3", "a.b", "__x", "${dim}"),
    *([], {}, [[]], [None], {"": 1}, {"linear": None}, ["relu", 3], {"a": {"b": {"c": []}}}),
)


def change_structure(source: random.Random, text: str) -> bytes:
    """Put one part of the tree, or something odd, in the place of another; JSON is YAML."""
    tree = to_plain(read_yaml(text, "fuzz.yaml", Collector()))
    parts = list(walk(tree))
    for _ in range(source.randint(1, 3)):
        holder, key = source.choice(parts)
        other, place = source.choice(parts)
        value = copy.deepcopy(other[place]) if source.random() < 0.5 else source.choice(ODD)
        action = source.randrange(3)
        if action == 0:
            holder[key] = value
        elif isinstance(holder, list):
            holder.insert(source.randrange(len(holder) + 1), value)
        elif action == 1:
            holder[str(place)] = value
        else:
            holder[source.choice(["name", "from", "layers", "args", "w2", "x"])] = value
    return json.dumps(tree, indent=1).encode()


def walk(part: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in nested lists and mappings, as what holds it and its key."""
    keys = (
        list(part) if isinstance(part, dict) else range(len(part) if isinstance(part, list) else 0)
    )
    for key in keys:
        yield part, key
        yield from walk(part[key])


def change_indentation(source: random.Random, text: str) -> bytes:
    """Move a run of lines to the left or right, or put tabs before them."""
    lines = text.split("\n")
    at = source.randrange(len(lines))
    count = source.randint(1, 6)
    shift = source.choice([" ", "  ", "    ", "\t", ""])
    for k in range(at, min(at + count, len(lines))):
        lines[k] = shift + (lines[k].lstrip() if source.random() < 0.3 else lines[k])
    return "\n".join(lines).encode()


def change_number(source: random.Random, text: str) -> bytes:
    """Put another number, often one that nothing can hold, in the place of one."""
    found = list(re.finditer(r"(?<![\w.])\d[\d.e-]*", text))
    chosen = source.choice(found)
    digits = source.choice((20, 40, 400, 5000))
    numbers = [
        *("0", "-1", "-0.0", "1e400", "1e-400", ".inf", "-.inf", ".nan", "0x1f", "0b1", "1_0"),
        *("9" * digits, "1" + "0" * digits, "0." + "0" * digits + "1", f"1e{digits}"),
        *("2147483648", "9223372036854775808", "18446744073709551616", "1e9", "65536", "4096"),
        *("255", "3", "1.5", "5.", ".5", "+7", "1:30", "${2**40}", "${9**9**9}", "${1//0}"),
    ]
    return (text[: chosen.start()] + source.choice(numbers) + text[chosen.end() :]).encode()


def change_by_bomb(source: random.Random, text: str) -> bytes:
    """Aliases of aliases, deep nesting, a long scalar, many keys, a merge, or a circle."""
    depth = source.choice((3, 8, 20, 63, 64, 65, 200, 5000))
    width = source.choice((2, 10, 30))
    bombs = [
        "".join(f"  - &b{k} [{', '.join([f'*b{k - 1}'] * width)}]\n" for k in range(1, 12)),
        "  - " + "[" * depth + "]" * depth + "\n",
        "  - " + "{a: " * depth + "1" + "}" * depth + "\n",
        "  " + "- " * depth + "relu\n",
        f"  - {'x' * source.choice((100, 10_000, 2_000_000))}\n",
        "  - {" + ", ".join(f"k{k}: 1" for k in range(source.choice((10, 1001, 20_000)))) + "}\n",
        "  - &c [relu, *c]\n",
        "  - &m {linear: 4, <<: *m}\n",
        f"  - {{repeat: {source.choice((0, 3, 10_000, 10_001, 10**9))}, layers: [relu]}}\n",
        "  - " + "{repeat: 30, layers: [" * 5 + "relu" + "]}" * 5 + "\n",
        f'  - formula: "{"(" * depth}x{")" * depth}"\n',
        f'  - formula: "{" + ".join(["x"] * depth)}"\n',
        f'  - formula: "{"sin(" * min(depth, 60)}x{")" * min(depth, 60)}"\n',
        '  - formula: "' + "x**" * min(depth, 200) + 'x"\n',
    ]
    place = text.index("model:\n") + len("model:\n")
    chosen = source.choice(bombs)
    head = "  - &b0 relu\n" if "*b0" in chosen else ""
    return (text[:place] + head + chosen + text[place:]).encode()


def change_by_copy(source: random.Random, text: str) -> bytes:
    """Write a key twice: the same line again, or a key of the top with another value."""
    lines = text.split("\n")
    keys = [k for k, line in enumerate(lines) if ":" in line]
    chosen = lines[source.choice(keys)]
    key = chosen.split(":")[0]
    again = source.choice(
        [chosen, f"{key}: 1", f"{key}: null", f"{key}: *l", f"'{key.strip()}': 1"]
    )
    lines.insert(source.randrange(len(lines) + 1), again)
    return "\n".join(lines).encode()


def change_letters(source: random.Random, text: str) -> bytes:
    """Letters of other scripts, marks, directions and surrogates where ASCII was."""
    letters = "éßΩж層🙂\u0301\u200b\u202e\ufeff\u2028\x85\x7f\ufffe\u3000\uff41\uff11"
    found = list(text)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(found))
        found[at] = source.choice(letters) if source.random() < 0.7 else found[at] * 3
    raw = "".join(found).encode()
    return raw.replace(b"fc", b"\xed\xa0\x80") if source.random() < 0.1 else raw


def change_keys(source: random.Random, text: str) -> bytes:
    """Rename keys, move sections below others or to the top, and swap the kinds of values."""
    tree = to_plain(read_yaml(text, "mutated.yaml", Collector()))
    for _ in range(source.randint(1, 2)):
        places = [(holder, key) for holder, key in walk(tree) if isinstance(holder, dict)]
        holder, key = source.choice(places)
        other, place = source.choice(places)
        value = holder.pop(key) if key in holder else None
        action = source.randrange(5)
        if action == 0:
            holder[f"{key}{source.choice('sx_')}"] = value
        elif action == 1 and other is not value:
            other[str(key)] = copy.deepcopy(value)
        elif action == 2:
            tree[str(key)] = copy.deepcopy(value)
        elif action == 3 and place in other:
            holder[key] = copy.deepcopy(other[place])
        else:
            holder[key] = source.choice([[value], {"a": value}, str(value), None, [value] * 3])
    return json.dumps(tree, indent=1).encode()


CHANGES: tuple[Callable[[random.Random, str], bytes], ...] = (
    change_byte,
    change_line,
    change_token,
    change_structure,
    change_indentation,
    change_number,
    change_by_bomb,
    change_by_copy,
    change_letters,
    change_keys,
)
"""Every way, in an order that numbers of mutations refer to."""
