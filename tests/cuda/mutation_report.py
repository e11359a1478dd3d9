"""docs/cuda_mutations.md from what a run found and from the reasons of what survived."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from mutate import Outcome

REASONS = Path(__file__).with_name("mutation_reasons.yaml")

HEAD = """# Defects planted in the CUDA text

Written by `python tests/cuda/mutate.py --from tests/cuda/mutated/outcomes.json --write
docs/cuda_mutations.md`. `--more tests/cuda/mutated/outcomes.json --json FILE` in place of `--from`
plants what the text has that is not in that file yet.

Parts of the CUDA templates, of `bpc_cuda.h` and of the lines that the generator writes into them
are changed, one at a time, in the kernels of {networks} small networks with tails and unequal sides
(`tests/cuda/mutated`). {planted_whole}:
planted wherever there is one.{others}

Changes that read the same but for names and numbers are planted once, and tried in several kernels,
in all kernels before they count as unexplained. A defect is *found* if what `bpc check --kernels`
does with a launch reports anything; *refused* if a compiler does not take the text. The rest
*survived*, and a reason below says why no result changes, or which other network shows the defect.
{left} without a reason; one would come last here and fail a test.

{planted:,} planted, {refused:,} refused, {found:,} found, {survived:,} survived.

"""


@dataclass(slots=True)
class Reason:
    """Why some survivors change no result: patterns of template, old and new line."""

    text: str
    template: re.Pattern[str]
    old: re.Pattern[str]
    new: re.Pattern[str]
    survivors: list[Outcome] = field(default_factory=list)

    def fits(self, item: Outcome) -> bool:
        """Whether this is the reason of a survivor."""
        return bool(
            self.template.fullmatch(item.template)
            and self.old.search(item.old)
            and self.new.search(item.new)
        )


def read_reasons(path: Path = REASONS) -> list[Reason]:
    """The reasons file: a list of reasons, each with places `- [template, old, new]`."""
    found = []
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        for template, old, new in entry["where"]:
            compiled = [re.compile(pattern) for pattern in (template, old, new)]
            found.append(Reason(" ".join(entry["reason"].split()), *compiled))
    return found


def explain(outcomes: Iterable[Outcome], reasons: Sequence[Reason]) -> list[Outcome]:
    """Give each survivor to its reason; returns those that have none."""
    left = []
    for item in outcomes:
        if item.status in ("survived", "crashed"):
            reason = next((reason for reason in reasons if reason.fits(item)), None)
            (reason.survivors if reason else left).append(item)
    return left


def write_page(listed: Mapping[str, int], outcomes: Sequence[Outcome], path: Path) -> int:
    """Write the page; 1 if a survivor has no reason or a reason no survivor."""
    reasons = read_reasons()
    left = explain(outcomes, reasons)
    for item in left:
        print(f"no reason: {item.name}")
    unused = [reason for reason in reasons if not reason.survivors]
    for reason in unused:
        print(f"no survivor: {reason.template.pattern} | {reason.old.pattern} | {reason.text[:60]}")
    path.write_text(page(listed, outcomes, reasons, left), encoding="utf-8")
    return 1 if left or unused else 0


def page(
    listed: Mapping[str, int],
    outcomes: Sequence[Outcome],
    reasons: Sequence[Reason],
    left: Sequence[Outcome] = (),
) -> str:
    """The page's text.

    Args:
        listed: how many defects there are of each operator, planted or not.
        outcomes: of those that were planted.
        reasons: of survivors.
        left: survivors without one.
    """
    status = Counter(item.status for item in outcomes)
    head = HEAD.format(
        networks=len(list((REASONS.parent / "mutated").glob("*.yaml"))),
        planted_whole=_whole(listed, outcomes),
        others=" Of the others a sample was planted; the table says how large."
        if sum(listed.values()) > len(outcomes)
        else "",
        left=len(left),
        planted=len(outcomes),
        refused=status["invalid"],
        found=status["found"],
        survived=status["survived"],
    )
    parts = [
        head,
        "## By operator\n\n",
        _table("operator", outcomes, lambda item: item.operator, listed),
        "\n## By template\n\n",
        "`generator` stands for lines that `bpc/codegen/lines.py` and `parts.py` write.\n\n",
        _table("template", outcomes, lambda item: item.template),
        "\n## Found by\n\n",
        _reports(outcomes),
        "\n## Survivors\n\n",
        *_survivors(reasons),
        *_open(left),
    ]
    return "".join(parts).rstrip() + "\n"


def _whole(listed: Mapping[str, int], outcomes: Sequence[Outcome]) -> str:
    """The operators of which nothing was left out, as the start of a sentence."""
    planted = Counter(item.operator for item in outcomes)
    names = sorted(name for name, count in listed.items() if planted[name] == count)
    return ", ".join(names).capitalize()


def _table(
    name: str,
    outcomes: Sequence[Outcome],
    key: Callable[[Outcome], str],
    listed: Mapping[str, int] | None = None,
) -> str:
    """A row for each value of `key`, with how many defects there are where that is known."""
    heads = [name, *(["there are"] if listed else []), "planted", "refused", "found", "survived"]
    rows = [heads, ["---"] * len(heads)]
    for value in sorted({key(item) for item in outcomes}):
        mine = Counter(item.status for item in outcomes if key(item) == value)
        numbers = [sum(mine.values()), mine["invalid"], mine["found"], mine["survived"]]
        total = [listed[value]] if listed else []
        rows.append([value, *map(str, (*total, *numbers))])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _reports(outcomes: Sequence[Outcome]) -> str:
    """What was reported first, by kind."""
    found = Counter(item.report for item in outcomes if item.status == "found")
    rows = ["| first report | defects |", "| --- | --- |"]
    rows += [f"| {kind} | {count} |" for kind, count in found.most_common()]
    return "\n".join(rows) + "\n"


def _survivors(reasons: Sequence[Reason]) -> Iterable[str]:
    by_text: dict[str, list[Outcome]] = {}
    for reason in reasons:
        by_text.setdefault(reason.text, []).extend(reason.survivors)
    for text, items in sorted(by_text.items(), key=lambda pair: -len(pair[1])):
        if items:
            yield f"{text}\n\n"
            for item in sorted(items, key=lambda item: (item.template, item.line, item.new)):
                where = f"{item.template}:{item.line}" if item.line else item.template
                yield f"- {where}: `{_short(item.old, item.new)}`\n"
            yield "\n"


def _open(left: Sequence[Outcome]) -> Iterable[str]:
    """Survivors that nobody has explained."""
    if left:
        yield "## Not explained\n\n"
    for item in left:
        yield f"- {item.template}:{item.line}, last tried in {item.where}: "
        yield f"`{_short(item.old, item.new)}`\n"


def _short(old: str, new: str) -> str:
    """The part of two lines that differs, with some of its surroundings."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    first, last = max(0, start - 24), max(0, end - 24)
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    dots = "..." if first else ""
    return f"{dots}{before}` -> `{dots}{after}"
