"""What kernels and their statements are called: by the user's layers, in the model's order.

linear1_relu1                    two layers forward, as the spec lists them
relu1_linear2_input_gradient     back through linear2, then through relu1
linear2_weight_gradient          one weight's gradient
loss_cross_entropy               a layer whose name does not tell its kind gets it
adam_linear1_weight              a part of the update, and what it updates
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Container, Mapping, Sequence

from bpc.ir import Node
from bpc.plan.repeats import REPEAT, original
from bpc.plan.words import describe_control

LONGEST = 60
_PLAIN = ("map", "row_reduce", "col_reduce", "chunk_reduce", "combine", "sum", "mean")
"""Ops that say how a layer is computed, not what it is."""
AGAIN = " again"
_DIRECTIONS = {"conv2d_input": "input", "conv2d_weight": "weight"}


def identifier(name: str) -> str:
    """A value's name as an identifier of C++ and CUDA, the same for every repetition."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", original(name).replace("#", "_part"))
    return f"v{text}" if text[0].isdigit() else text


def describe_node(node: Node) -> str:
    """The node for people: its layer, the layer's kind unless its name tells, which gradient."""
    kind = _kind(node)
    title = node.scope or node.name
    if node.phase == "update":
        return f"{kind} of {title}" if kind and title != "update" else kind or title
    if node.op in ("col_reduce", "row_reduce") and node.name.startswith("d_"):
        return f"{node.name.removeprefix('d_').rpartition('.')[0] or title} gradient"
    shown = title if _tells(title, kind) else f"{title} ({kind.replace('_', ' ')})"
    ending = _gradient(node)
    return f"{shown} {ending}" if ending else shown + (AGAIN if node.phase == "backward" else "")


def describe_statement(node: Node) -> str:
    """The node beside its line of a kernel, which serves the first run of it and repetitions."""
    return describe_control(node) or describe_node(node).removesuffix(AGAIN)


def name_kernel(nodes: Sequence[Node], skeleton: str) -> str:
    """A name that says which layers a kernel serves; an identifier of at most 60 characters.

    Args:
        nodes: of the kernel, in order, without copies that it pulled in for itself.
        skeleton: names a kernel whose nodes have no names to offer.
    """
    last = nodes[-1]
    if last.phase == "update":
        return shorten(_update_name(nodes))
    if last.op in ("col_reduce", "row_reduce") and last.name.startswith("d_") and _alone(nodes):
        stem, _, end = last.name.removeprefix("d_").rpartition(".")
        return shorten(f"{identifier(stem or end)}_gradient" + ("_rows" if end == "rows" else ""))
    backward = [node for node in nodes if _is_gradient(node)]
    forward = [node for node in nodes if node.phase == "forward"]
    if forward or not backward:
        end = "_with_gradient" if backward else "" if forward else "_again"
        return shorten((_parts(forward or nodes) or skeleton) + end)
    words = [_gradient(node) for node in backward]
    gradient = next((word for word in words if word != "gradient"), "gradient")
    return shorten(f"{_parts(backward)}_{identifier(gradient)}")


def distinguish(name: str, last: Node, taken: Container[str]) -> str:
    """The name, with the part of the layer that the kernel makes where the name is taken."""
    if name not in taken:
        return name
    part = original(last.name).removeprefix(last.scope).lstrip(".#")
    word = f"part{part}" if part.isdigit() else part
    longer = f"{name}_{identifier(word)}" if part and part != original(last.name) else name
    found, count = shorten(longer), 1
    while found in taken:
        count += 1
        found = shorten(f"{longer}_{count}")
    return found


def shorten(name: str) -> str:
    """The name, or its first part and a checksum of the whole."""
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9].rstrip('_')}_{zlib.crc32(name.encode()):08x}"


def _update_name(nodes: Sequence[Node]) -> str:
    scopes = list(dict.fromkeys(node.scope for node in nodes if node.scope))
    kind = next((word for word in map(_kind, nodes) if word), nodes[-1].op)
    if "update" in scopes or len(scopes) > 1:
        return "update_control" if "update" in scopes else f"{kind}_all"
    return "_".join([kind, *(identifier(scope) for scope in scopes)])


def _alone(nodes: Sequence[Node]) -> bool:
    """Whether all that the kernel makes is the last node's sum."""
    return len({node.scope for node in nodes}) == 1


def _parts(nodes: Sequence[Node]) -> str:
    """Layers in the model's order, each once, with its kind where its name does not tell."""
    kinds: dict[str, str] = {}
    for node in nodes:
        title, kind = node.scope or node.name, _kind(node)
        kinds[title] = kinds.get(title) or kind
    titles = list(kinds)
    if _is_gradient(nodes[0]):
        titles.reverse()
    whole = _join(titles, kinds, "_")
    if len(titles) > 3 or (len(titles) > 2 and len(whole) > LONGEST - len("_with_gradient")):
        return _join([titles[0], titles[-1]], kinds, "_to_")
    return whole


def _join(titles: Sequence[str], kinds: Mapping[str, str], between: str) -> str:
    words, before = [], ""
    for title in titles:
        shown = _inside(title, before)
        words.append(shown if _tells(title, kinds[title]) else f"{shown}_{kinds[title]}")
        before = title
    return identifier(between.join(words)) if words else ""


def _inside(title: str, before: str) -> str:
    """The title without the scopes that it shares with the one before it."""
    mine, theirs = title.split("."), before.split(".")
    shared = 0
    while shared < min(len(mine), len(theirs)) - 1 and mine[shared] == theirs[shared]:
        shared += 1
    if shared and mine[shared].isdigit():  # which repetition: a number alone says nothing
        shared -= 1
    return ".".join(mine[shared:])


def _tells(title: str, kind: str) -> bool:
    """Whether a layer's name already says what kind of layer it is."""
    return not kind or title.rpartition(".")[2].startswith(kind)


def _kind(node: Node) -> str:
    """The user's word for what the node is a part of; '' if there is none."""
    word = node.role.removesuffix("_gradient") or node.op
    return "" if word in _PLAIN else word


def _is_gradient(node: Node) -> bool:
    return node.phase == "backward" and REPEAT not in node.name


def _gradient(node: Node) -> str:
    """`input gradient`, `weight gradient` or `gradient`; '' for a forward node."""
    if not _is_gradient(node):
        return ""
    if node.op in _DIRECTIONS:
        return f"{_DIRECTIONS[node.op]} gradient"
    if node.op == "gemm":
        return "weight gradient" if node.attr("ta") else "input gradient"
    return "gradient"
