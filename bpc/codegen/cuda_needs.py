"""Which functions the launches of a program need, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bpc.codegen.launches import Launch
from bpc.codegen.lines import structure
from bpc.codegen.parts import common_name, function_name
from bpc.kernel import Kernel
from bpc.plan.naming import LONGEST, shorten

# -- which functions there are --------------------------------------------------------------------

Key = tuple[object, ...]


@dataclass(slots=True)
class Need:
    """A function that launches need; `role`: alone, main, tail (see `Launch`), or joined."""

    role: str
    kernels: list[Kernel] = field(default_factory=list)
    parts: tuple[Key, ...] = ()
    side_by_side: list[Kernel] = field(default_factory=list)  # of the first launch


def function_key(kernel: Kernel, inside: bool) -> Key:
    """What kernels of one function share; those called inside another have one of their own."""
    return (structure(kernel), inside)


def find_needs(found: Iterable[tuple[Sequence[Kernel], Launch]]) -> dict[Key, Need]:
    """The functions that launches need, in the order in which they are met."""
    needs: dict[Key, Need] = {}

    def need(kernels: list[Kernel], role: str) -> Key:
        key = function_key(kernels[0], role != "alone")
        made = needs.setdefault(key, Need(role, side_by_side=kernels))
        made.kernels.extend(kernels)
        return key

    for kernels, launch in found:
        parts = [kernels[at] for at in launch.parts]
        if not launch.tails:
            need(parts, "alone")
            continue
        keys = [need(parts, "main"), *(need([kernels[at]], "tail") for at in launch.tails)]
        joined = needs.setdefault(tuple(keys), Need("joined", parts=tuple(keys)))
        joined.kernels.extend([*parts, *(kernels[at] for at in launch.tails)])
    return needs


# -- names ----------------------------------------------------------------------------------------

_UNITS = {"rows": "rows", "chunks": "chunks", "flat": "elements", "columns": "columns"}


@dataclass(slots=True)
class Names:
    """The names of functions that are taken."""

    taken: set[str] = field(default_factory=set)

    def claim(self, *stems: str) -> str:
        """The first stem that is free, else the last with a number."""
        count = 1
        names = [function_name(shorten(stem)) for stem in stems]
        while (name := next((n for n in names if n not in self.taken), "")) == "":
            count += 1
            names = [shorten(f"{stems[-1]}_{count}")]
        self.taken.add(name)
        return name


def name_needs(needs: Mapping[Key, Need]) -> dict[Key, str]:
    """A name for each function; those that are launched choose first."""
    names, taken = {}, Names()
    for key, need in needs.items():
        if need.role == "alone":
            names[key] = taken.claim(common_name(need.kernels))
        elif need.role == "joined":
            names[key] = taken.claim(_joined_name([needs[part] for part in need.parts]))
    for key, need in needs.items():
        stem = common_name(need.kernels)
        if need.role == "main":
            names[key] = taken.claim(f"{stem}_{_UNITS.get(need.kernels[0].skeleton, 'elements')}")
        elif need.role == "tail":
            names[key] = taken.claim(stem, f"{stem}_finish")
    return names


def _joined_name(needs: Sequence[Need]) -> str:
    """`norm_and_control`: what every block does, and what else the last one does."""
    main, *tails = (common_name(need.kernels) for need in needs)
    first = main.partition("_")[0]
    others = [tail.removeprefix("update_") for tail in tails if tail.partition("_")[0] != first]
    name = "_and_".join([main, *dict.fromkeys(others)])
    return name if len(name) <= LONGEST else f"{main}_and_others"
