"""Which rate, decay and clipping each parameter gets: the patterns of a spec, resolved.

Patterns are those of a shell: `*` stands for any characters (dots too), `?` for one, `[ab]` for
one of several. Where several groups match a parameter, the last one that says something wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from bpc.errors import Diagnostic, SpecError
from bpc.ir import State
from bpc.spec.model import ClipGroup, GroupSpec, Pattern, Spec
from bpc.spec.words import find_nearest, show

NO_MATCH = "BPC0222"

Rate = tuple[float | None, float]
"""A rate of its own, or None and the factor of the run's."""

_MOST_LISTED = 6
_UNDECAYED = ("bias", "gamma", "beta")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the update does with one parameter.

    `lr` is a rate of its own, None where it is `factor` times that of the run. `exempt`: decay is
    left out because the parameter is a bias or belongs to a norm. `clip` is the position of its
    group in `TrainSpec.clip_groups`, None for the rest.
    """

    name: str
    lr: float | None
    factor: float
    weight_decay: float
    exempt: bool
    clip: int | None

    @property
    def rate(self) -> Rate:
        """What its learning rate follows from; parameters with the same share one scalar."""
        return self.lr, self.factor


def is_exempt(state: State) -> bool:
    """Whether decay leaves a parameter alone by default: a bias, a scale or shift of a norm."""
    return len(state.value.shape) < 2 or state.name.rsplit(".", 1)[-1] in _UNDECAYED


def assign_settings(spec: Spec, parameters: Sequence[State]) -> dict[str, Settings]:
    """The settings of every parameter by name, in the order of the parameters.

    Raises:
        SpecError: with every pattern that fits no parameter, or only such as later ones take.
    """
    faults = _find_faults(spec, [state.name for state in parameters])
    if faults:
        raise SpecError(faults)
    return {state.name: _settings_of(spec, state) for state in parameters}


def _settings_of(spec: Spec, state: State) -> Settings:
    train = spec.train
    written = float(str(train.optimizer.options.get("weight_decay", 0.0)))
    exempt = is_exempt(state)
    found = Settings(state.name, None, 1.0, 0.0 if exempt else written, exempt, None)
    for group in train.groups:
        if _fits(group.patterns, state.name):
            found = _overlay(found, group)
    clips = [k for k, item in enumerate(train.clip_groups) if _fits((item.pattern,), state.name)]
    return replace(found, clip=clips[-1] if clips else None)


def _overlay(found: Settings, group: GroupSpec) -> Settings:
    if group.lr is not None:
        found = replace(found, lr=group.lr, factor=1.0)
    if group.lr_factor is not None:
        found = replace(found, lr=None, factor=group.lr_factor)
    if group.weight_decay is not None:
        found = replace(found, weight_decay=group.weight_decay, exempt=False)
    return found


def _fits(patterns: Sequence[Pattern], name: str) -> bool:
    return any(fnmatchcase(name, pattern.text) for pattern in patterns)


# -- patterns without an effect -------------------------------------------------------------------


def _find_faults(spec: Spec, names: Sequence[str]) -> list[Diagnostic]:
    """Patterns that fit no parameter, and limits of norms that nothing is left for."""
    train = spec.train
    patterns = [pattern for group in train.groups for pattern in group.patterns]
    patterns += [item.pattern for item in train.clip_groups]
    faults = [_no_match(pattern, names) for pattern in patterns if not _names(pattern, names)]
    return faults or _find_taken(train.clip_groups, names)


def _names(pattern: Pattern, names: Sequence[str]) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern.text)]


def _find_taken(groups: Sequence[ClipGroup], names: Sequence[str]) -> list[Diagnostic]:
    faults = []
    for k, group in enumerate(groups):
        later = [item.pattern for item in groups[k + 1 :]]
        mine = _names(group.pattern, names)
        if not all(_fits(later, name) for name in mine):
            continue
        message = f"all that {show(group.pattern.text)} matches is taken by a later pattern"
        help = "the last pattern that matches a parameter counts: write wide ones first"
        faults.append(Diagnostic(NO_MATCH, message, group.pattern.span, (), help))
    return faults


def _no_match(pattern: Pattern, names: Sequence[str]) -> Diagnostic:
    message = f"no parameter is called like {show(pattern.text)}"
    return Diagnostic(NO_MATCH, message, pattern.span, (), _help(pattern.text, names))


def _help(text: str, names: Sequence[str]) -> str:
    """A layer's name lacks what follows it; else the nearest name, else what there is."""
    inside = [name for name in names if fnmatchcase(name, f"{text}.*")]
    if inside:
        return f"write {text}.* for {', '.join(inside[:_MOST_LISTED])}"
    layers = {name.rpartition(".")[0] for name in names} - {""}
    near = find_nearest(text, (*names, *layers))
    if near is not None:
        return f"did you mean {show(near if near in names else f'{near}.*')}?"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"parameters are {', '.join(names[:_MOST_LISTED])}{more}"
