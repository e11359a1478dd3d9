"""Plants one defect at a time in the CUDA text and tells which of them the checker finds.

    python tests/cuda/mutate.py --json found.json --jobs 2
    python tests/cuda/mutate.py --template rows.jinja --operator barrier
    python tests/cuda/mutate.py --from found.json --write docs/cuda_mutations.md

Each defect is planted in the kernels that small networks (tests/cuda/mutated) make of the
templates, or in the header that they include; equal ones are planted once. What `bpc check
--kernels` does with a launch is done with each launch of a changed kernel, until something is
found: first two runs in source mode, then all ways of running.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

from mutation_operators import blank_comments, find_mutations
from mutation_places import HEADER_NAME, Places, line_at, normal_form
from mutation_report import explain, read_reasons, write_page
from mutation_subjects import (
    FIRST_RUNS,
    HEADER,
    Subject,
    complete,
    header_names,
    header_uses,
    load,
    read_subjects,
)

from bpc.diagnose.kernels import RUNS, KernelCheck, Run, check_launch
from bpc.errors import ToolError

CHUNK = 256
MOST_PLACES = 6
"""Kernels that a defect is tried in, of those where it reads the same."""

NEAR = (
    "bytes",
    "mlp",
    "whole",
    "edges",
    "long",
    "tails",
    "lines",
    "many",
    "columns",
    "plain",
    "blank",
)
NEAR += ("ties", "slice", "zero", "kept", "even", "skipped", "images", "strides", "narrow")
NEAR += ("last", "double", "big")
"""Networks in the order in which defects are tried on them, sizes near an edge first."""

HEAVY = 1_000_000
"""Work of a launch from which on it is tried only for what no other kernel can show."""

ONLY_HEAVY = ("bpc_serial_sum",)
WHOLE = ("barrier", "fence", "guard", "comparison", "shuffle")
"""Operators of which nothing is left out where the rest is sampled."""

GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Place:
    """A kernel to run with a changed text: of itself, of what it calls, or of the header."""

    subject: int
    launched: str
    function: str  # "" for the header
    text: str


def name_of(family: str, template: str, old: str, new: str, nth: int) -> str:
    """What identifies a defect from one run to the next, whatever kernel shows it."""
    return f"{family} {template} | {normal_form(old)} | {normal_form(new)} | {nth}"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect, where it is, and the kernels in which it can be tried."""

    operator: str
    family: str  # the template of the whole kernel, or the header
    template: str  # that of the line
    line: int
    old: str
    new: str
    places: tuple[Place, ...]
    nth: int = 0  # of those that read the same

    @property
    def facts(self) -> tuple[str, str, str, int, str, str, int]:
        """Everything but the kernels."""
        place = self.operator, self.family, self.template, self.line
        return (*place, self.old, self.new, self.nth)

    @property
    def name(self) -> str:
        """What identifies the defect from one run to the next."""
        return name_of(self.family, self.template, self.old, self.new, self.nth)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a defect. `status`: found, survived, invalid, or crashed."""

    operator: str
    family: str  # the template of the whole kernel, or the header
    template: str  # that of the line
    line: int
    old: str
    new: str
    nth: int
    status: str
    report: str = ""  # the kind of what was reported first
    run: str = ""
    where: str = ""  # network and kernel
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """What identifies the defect from one run to the next."""
        return name_of(self.family, self.template, self.old, self.new, self.nth)


# -- which defects there are ----------------------------------------------------------------------


def list_mutants(subjects: Sequence[Subject], places: Places) -> list[Mutant]:
    """Every defect of every kernel and of the header, equal ones once."""
    seen: Counter[str] = Counter()
    numbered = []
    for item in (*_header_mutants(subjects), *_template_mutants(subjects, places)):
        numbered.append(replace(item, nth=seen[item.name]))
        seen[item.name] += 1
    return numbered


def _template_mutants(subjects: Sequence[Subject], places: Places) -> Iterator[Mutant]:
    found: dict[object, list[tuple[Place, tuple[str, str, str, int, str, str]]]] = {}
    for at, subject in enumerate(subjects):
        for function in subject.source.functions:
            launched = subject.callers(function.name)
            family = places.template_of(function)
            seen: Counter[tuple[str, str]] = Counter()
            for item in find_mutations(function.text):
                changed = item.apply(function.text)
                old = line_at(function.text, item.start, item.end)
                new = line_at(changed, item.start, item.start + len(item.new))
                template, number = places.find(family, old)
                read = normal_form(old), normal_form(new)
                key = (family, template, *read, seen[read])
                seen[read] += 1
                facts = (item.operator, family, template, number, old, new)
                place = Place(at, launched[0], function.name, changed)
                if _cost(subjects, place) < HEAVY:
                    found.setdefault(key, []).append((place, facts))
    for group in found.values():
        yield Mutant(*group[0][1], spread([place for place, _ in group], subjects))


def spread(places: Sequence[Place], subjects: Sequence[Subject]) -> tuple[Place, ...]:
    """The quickest place, then unlike kernels of unlike networks, the largest of each first."""
    ranked = sorted(places, key=lambda place: _cost(subjects, place))
    kinds: Counter[object] = Counter()
    before: Counter[int] = Counter()  # places of the same network
    others = []
    for place in reversed(ranked[1:]):
        subject = subjects[place.subject]
        kernel = subject.function(place.launched).kernels[0]
        sides = [kernel.attr(name) for name in ("ta", "tb") if kernel.skeleton == "gemm"]
        text = subject.text(place.launched)
        length = re.findall(r"round < (\w+)", text)  # of a sum over columns
        kind = (kernel.skeleton, *sides, *length, ">> 3] = " in text, place.subject)
        near = NEAR.index(subject.name)
        others.append((kinds[kind], before[place.subject], near, place))
        if not kinds[kind]:
            before[place.subject] += 1
        kinds[kind] += 1
    others.sort(key=lambda item: item[:3])
    return (*ranked[:1], *(item[-1] for item in others))


def _header_mutants(subjects: Sequence[Subject]) -> Iterator[Mutant]:
    starts, uses = header_names(HEADER), header_uses(HEADER)
    bare = blank_comments(HEADER)
    for item in find_mutations(HEADER):
        owner = [name for start, name in starts if start <= item.start][-1]
        changed = item.apply(HEADER)
        old = line_at(HEADER, item.start, item.end)
        if old.startswith("constexpr"):
            owner = bare[: item.start].rsplit(" = ", 1)[0].split()[-1]
            if not owner.startswith("bpc_"):
                owner = bare[: item.start + 3].rsplit(" = ", 1)[0].split()[-1]
        new = line_at(changed, item.start, item.start + len(item.new))
        number = HEADER.count("\n", 0, item.start) + 1
        names = {owner, *uses.get(owner, ())}
        places = _header_places(subjects, names, changed, owner in ONLY_HEAVY)
        yield Mutant(item.operator, HEADER_NAME, HEADER_NAME, number, old, new, places)


def _header_places(
    subjects: Sequence[Subject], names: set[str], changed: str, heavy: bool
) -> tuple[Place, ...]:
    """Kernels that use one of these names; `heavy` ones first, where they are wanted."""
    found = []
    for at, subject in enumerate(subjects):
        for launched in subject.cases:
            if names & set(re.findall(r"\bbpc_\w+", subject.text(launched))):
                found.append(Place(at, launched, "", changed))
    most = [place for place in found if _cost(subjects, place) < HEAVY]
    large = [place for place in found if heavy and _cost(subjects, place) >= HEAVY]
    return (*large[:1], *spread(most, subjects))


def _cost(subjects: Sequence[Subject], place: Place) -> int:
    return sum(case.work for case in subjects[place.subject].cases[place.launched])


# -- trying one -----------------------------------------------------------------------------------


def try_mutant(
    subjects: Sequence[Subject], mutant: Mutant, most: int = MOST_PLACES, runs: Sequence[Run] = RUNS
) -> Outcome:
    """Run the kernels with the defect until something is found."""
    start = perf_counter()
    status, report, run, where = "invalid", "", "", ""
    last = mutant.places[-1:] if runs else ()
    for stage, places in ((FIRST_RUNS, mutant.places[:most]), (runs, last)):
        for place in places:
            status, report, run = _try_place(subjects[place.subject], place, stage)
            where = f"{subjects[place.subject].name} {place.launched}"
            if status != "survived":
                break
        if status != "survived":
            break
    return Outcome(*mutant.facts, status, report, run, where, perf_counter() - start)


def _try_place(subject: Subject, place: Place, runs: Sequence[Run]) -> tuple[str, str, str]:
    if place.function:
        text = complete(subject.text(place.launched, {place.function: place.text}))
    else:
        text = complete(subject.text(place.launched), place.text)
    try:
        modules = {mode: load(text, mode) for mode in dict.fromkeys(run.mode for run in runs)}
    except ToolError:
        return "invalid", "", ""
    cases = sorted(subject.cases[place.launched], key=lambda case: case.item.rows)
    for case in cases[:1] if cases[0].work >= HEAVY else cases:
        checks: dict[str, KernelCheck] = {}
        check_launch(case.item, modules, runs, checks)
        for finding in checks[place.launched].findings:
            return "found", kind_of(finding.text), finding.run
    return "survived", "", ""


def kind_of(text: str) -> str:
    """The kind of a report, or in a word what was wrong with the results."""
    words = {
        "were not written": "unwritten",
        "beyond row": "beyond the rows",
        "other bits": "other bits",
        "differs from the first": "order",
        "is off by": "values",
    }
    plain = next((kind for part, kind in words.items() if part in text), "")
    return plain or text.split(" in ")[0].split(":")[0]


# -- trying all -----------------------------------------------------------------------------------

_SHARED: tuple[Sequence[Subject], Sequence[Mutant], int] = ((), (), 0)


def _try_index(index: int) -> Outcome:
    subjects, mutants, most = _SHARED
    mutant = mutants[index]
    outcome = try_mutant(subjects, mutant, most)
    if outcome.status != "survived" or not explain([outcome], read_reasons()):
        return outcome
    others = replace(mutant, places=mutant.places[most:])  # nobody has said why it survives
    more = try_mutant(subjects, others, len(others.places), ()) if others.places else outcome
    return replace(more, seconds=outcome.seconds + more.seconds)


def try_all(
    subjects: Sequence[Subject], mutants: Sequence[Mutant], jobs: int, most: int = MOST_PLACES
) -> Iterator[Outcome]:
    """Outcomes in order; processes are replaced now and then, since modules stay loaded."""
    global _SHARED
    _SHARED = (subjects, mutants, most)
    first = 0
    while first < len(mutants):
        part = range(first, min(first + CHUNK, len(mutants)))
        try:
            for outcome in _in_processes(part, jobs):
                yield outcome
                first += 1
        except BrokenProcessPool:  # the first that is missing may be the one that broke it
            yield _try_alone(mutants[first], first)
            first += 1


def _try_alone(mutant: Mutant, index: int) -> Outcome:
    try:
        return next(_in_processes(range(index, index + 1), 1))
    except BrokenProcessPool:
        return Outcome(*mutant.facts, "crashed")


def _in_processes(part: range, jobs: int) -> Iterator[Outcome]:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(_try_index, part)


# -- command line ---------------------------------------------------------------------------------


def select(mutants: Sequence[Mutant], template: str, operators: str, each: int) -> list[Mutant]:
    """Those of a template and of some operators; of each that may be sampled, at most `each`."""
    named = [item for item in mutants if template in ("", item.template, item.family)]
    wanted = operators.split(",") if operators else []
    named = [item for item in named if not wanted or item.operator in wanted]
    groups: dict[str, list[Mutant]] = {}
    for item in named:
        groups.setdefault(item.operator, []).append(item)
    first = [item for name in WHOLE for item in groups.pop(name, ())]
    rest = [pair for group in groups.values() for pair in enumerate(spread_out(group)[:each])]
    return first + [item for _, item in sorted(rest, key=lambda pair: pair[0])]


def spread_out(items: Sequence[Mutant]) -> list[Mutant]:
    """The same in an order in which the first so many lie evenly over all."""
    places = sorted(range(len(items)), key=lambda place: place * GOLDEN % 1.0)
    return [items[place] for place in places]


def main(words: Sequence[str]) -> int:
    """Plant, try, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write all outcomes here")
    parser.add_argument("--from", dest="given", type=Path, help="take outcomes from here")
    parser.add_argument("--write", type=Path, help="write the page here")
    parser.add_argument("--template", default="", help="only this one, such as rows.jinja")
    parser.add_argument("--operator", default="", help="only these, separated by commas")
    parser.add_argument("--each", type=int, help="at most so many of each operator that is sampled")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--places", type=int, default=MOST_PLACES, help="kernels to try one in")
    parser.add_argument("--more", type=Path, help="only those that are not in this file yet")
    parser.add_argument("--again", type=Path, help="only those that survived in this file")
    parser.add_argument("--trust", action="store_true", help="do not check unchanged kernels first")
    wishes = parser.parse_args(words)
    listed, outcomes = read_outcomes(wishes.given) if wishes.given else run(wishes)
    if wishes.write:
        return write_page(listed, outcomes, wishes.write)
    return 0


def read_outcomes(path: Path) -> tuple[dict[str, int], list[Outcome]]:
    """How many defects there are of each operator, and outcomes of those that were planted."""
    given = json.loads(path.read_text())
    return given["listed"], [Outcome(**item) for item in given["outcomes"]]


def write_outcomes(path: Path, listed: dict[str, int], outcomes: Iterable[Outcome]) -> None:
    """Keep them, one a line."""
    lines = ",\n".join(json.dumps(asdict(item)) for item in outcomes)
    path.write_text(f'{{"listed": {json.dumps(listed)},\n"outcomes": [\n{lines}\n]}}\n')


def run(wishes: argparse.Namespace) -> tuple[dict[str, int], list[Outcome]]:
    """Plant everything that was wished for; what is done is written as it comes."""
    os.environ.setdefault("BPC_CACHE", tempfile.mkdtemp(prefix="bpc-mutate-"))
    start = perf_counter()
    subjects = read_subjects(checked=not wishes.trust)
    every = list_mutants(subjects, Places())
    listed = dict(Counter(item.operator for item in every))
    mutants = select(every, wishes.template, wishes.operator, wishes.each or len(every))
    done: dict[str, Outcome] = {}
    if wishes.again or wishes.more:
        done = {item.name: item for item in read_outcomes(wishes.again or wishes.more)[1]}
        known = {item.name for item in every}
        done = {name: item for name, item in done.items() if name in known}
        left = {name for name, item in done.items() if item.status in ("survived", "crashed")}
        mutants = [m for m in mutants if (m.name in left if wishes.again else m.name not in done)]
    print(f"{len(subjects)} networks in {perf_counter() - start:.0f} s; {len(mutants)} defects")
    for at, outcome in enumerate(try_all(subjects, mutants, wishes.jobs, wishes.places), 1):
        done[outcome.name] = outcome
        if outcome.status in ("survived", "crashed"):
            print(f"{outcome.status}: {outcome.name}", flush=True)
        if at % 8 == 0 or at == len(mutants):
            print(f"{at} of {len(mutants)}, {perf_counter() - start:.0f} s", flush=True)
            if wishes.json:
                write_outcomes(wishes.json, listed, done.values())
    return listed, list(done.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
