"""A YAML file -> `Spec`: the one way in, which reports every fault of a file at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bpc.errors import Collector, Diagnostic, SpecError
from bpc.spec import codes
from bpc.spec import schema as models
from bpc.spec.blocks import Block, read_blocks, read_functions
from bpc.spec.entries import COMPOSITES
from bpc.spec.expand import Vocabulary, expand_model
from bpc.spec.found import describe
from bpc.spec.merge import Tree, apply_set, read_tree
from bpc.spec.model import (
    DataSpec,
    FunctionSpec,
    LayerSpec,
    LossSpec,
    ParameterSpec,
    Spec,
    TrainSpec,
    ignored_by,
)
from bpc.spec.names import Names
from bpc.spec.options import Scope, read_options
from bpc.spec.origins import find_origins
from bpc.spec.sections import choose, read_data, read_loss, read_parameters, read_train
from bpc.spec.words import show
from bpc.spec.yamlnodes import Entry, Items, Scalar, Table, is_null, make_table
from bpc.types import LayerSchema

_TITLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CHECKED_ELSEWHERE = tuple(key for key in models.Head.model_fields if key != "seed")
_NOTHING: Mapping[str, object] = MappingProxyType({})
_NO_PLACES: Mapping[str, str] = MappingProxyType({})
_MOST_ERRORS = 50


class IncompleteSpec(SpecError):
    """Faults of a file, with what could be read beside them.

    `spec` lacks the layers and declarations that are at fault, and has a loss without inputs, or
    training by default, where those sections are; None where the data is at fault.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic], spec: Spec | None):
        super().__init__(diagnostics)
        self.spec = spec

    def with_more(self, found: Sequence[Diagnostic]) -> SpecError:
        """The error that also tells what was found in `spec`."""
        return SpecError(sort_faults([*self.diagnostics, *found]))


def load_spec(
    path: str | Path,
    layers: Mapping[str, LayerSchema],
    losses: Mapping[str, LayerSchema],
    optimizers: Mapping[str, LayerSchema],
    sets: Mapping[str, object] = _NOTHING,
    text: str | None = None,
    places: Mapping[str, str] = _NO_PLACES,
) -> Spec:
    """Read, merge, check and expand a spec.

    Args:
        path: the file; spans show it as given, bytes that are no text as `\\udcff`. `extends:` is
            relative to it.
        layers: what a layer's entry may say, by op.
        losses: the same for `loss:`.
        optimizers: the same for `train.optimizer:`.
        sets: dotted keys and values that override the file; text is read as YAML.
        text: the content, if it is not to be read from `path`.
        places: how a person set what is in `sets`, where that was not `--set`: such as `--seed`.

    Raises:
        SpecError: with every fault that was found, in order of place, the first 50; an
            `IncompleteSpec` where the YAML itself can be read.
    """
    errors = Collector()
    shown = str(path).encode("utf-8", "backslashreplace").decode()
    tree = read_tree(Path(path), shown, text, errors)
    misread = {str(item.span) for item in errors.found}
    tree = _apply_sets(tree, sets, {**layers, **losses, **optimizers}, errors, places)
    scope = Scope(errors)
    reader = _Reader(scope, tree, layers, losses, optimizers)
    spec = reader.read(str(path))
    if errors.found:
        raise IncompleteSpec(_drop_repeats(errors, misread), spec)
    assert spec is not None, "nothing is missing without an error"
    return spec


def _apply_sets(
    tree: Tree,
    sets: Mapping[str, object],
    tables: Mapping[str, LayerSchema],
    errors: Collector,
    places: Mapping[str, str],
) -> Tree:
    root = tree.root
    for key, value in sets.items():
        try:
            root = apply_set(root, str(key), value, tables, places.get(key, ""))
        except SpecError as fault:
            errors.found.extend(fault.diagnostics)
    return Tree(root, tree.files)


def _drop_repeats(errors: Collector, misread: Set[str]) -> tuple[Diagnostic, ...]:
    """The faults in order; where the YAML itself is at fault (`misread`) only the first counts."""
    kept: list[Diagnostic] = []
    seen: set[str] = set()
    for item in errors.found:
        place = str(item.span)
        if place not in misread or place not in seen:
            kept.append(item)
        seen.add(place)
    return sort_faults(kept)


def sort_faults(found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The faults in order of place, the first 50; one of a repeated layer counts once."""
    unique = {(item.code, item.message, item.span): item for item in reversed(found)}
    try:
        Collector(list(reversed(unique.values()))).raise_if_any()
    except SpecError as fault:
        return fault.diagnostics[:_MOST_ERRORS]
    raise AssertionError("there is at least one fault")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads section by section; a fault in one does not hide those of another."""

    scope: Scope
    tree: Tree
    layers: Mapping[str, LayerSchema]
    losses: Mapping[str, LayerSchema]
    optimizers: Mapping[str, LayerSchema]

    @property
    def errors(self) -> Collector:
        """Where faults go."""
        return self.scope.errors

    @property
    def root(self) -> Table:
        """The merged tree."""
        return self.tree.root

    def read(self, path: str) -> Spec | None:
        """The spec, or None after recording faults."""
        seed = self._read_head()
        name = self._read_name(path)
        data = read_data(self.scope, self.root.find("data"), self._find_ignored())
        parameters = read_parameters(self.scope, self.root.get("parameters"))
        functions, blocks = self._read_declarations()
        names = self._start_names(data, parameters)
        first = data.inputs[0] if data else "x"
        model, last = self._read_model(Vocabulary(self.layers, blocks, functions), names, first)
        loss = read_loss(self.scope, self.root.get("loss"), self.losses, names, last)
        names.report_missing()
        train = read_train(
            self.scope, self.root.find("train"), self.optimizers, self._file_names(), self.root.span
        )
        if data is None:
            return None
        faulty = loss is None or train is None or seed is None
        spec = Spec(
            path,
            name,
            seed or 0,
            data,
            parameters,
            tuple(functions.values()),
            model,
            loss or LossSpec("", "loss", {}, {}, self.root.span, ()),
            train or self._default_train(),
            {},
            self.root.span,
            self.tree.files,
            self.root,
        )
        return spec if faulty else find_origins(spec, self.root)

    def _find_ignored(self) -> int | None:
        """The class that the loss leaves out, which data in files is read with; no fault here."""
        aside, node = Scope(Collector()), self.root.get("loss")
        choice = None if node is None else choose(aside, node, self.losses, "loss", ("from",))
        if choice is None:
            return None
        options = read_options(aside, choice.schema, choice.body, choice.span)
        return ignored_by(options.values)

    def _file_names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.tree.files)

    def _default_train(self) -> TrainSpec:
        """Training with nothing said of it but a rate, in place of a section at fault."""
        rate = Entry("lr", self.root.span, Scalar("1.0", 1.0, self.root.span, self.root.span))
        table = make_table([rate], self.root.span)
        entry = Entry("train", self.root.span, table)
        aside = Scope(Collector())
        made = read_train(aside, entry, self.optimizers, self._file_names(), self.root.span)
        assert made is not None, "a rate is all that has no default"
        return made

    def _read_head(self) -> int | None:
        """Check the keys at the top and the version; the seed."""
        self._check_version()
        head = models.validate(models.Head, self.root, _CHECKED_ELSEWHERE, "", self.errors)
        for key in ("data", "model", "loss"):
            if self.root.find(key) is None:
                message = f"the spec needs the key {show(key)}"
                self.errors.add(codes.MISSING_KEY, message, self.root.span, help=_EXAMPLES[key])
        return head.seed if head else None

    def _check_version(self) -> None:
        node = self.root.get("bpc")
        if node is None:
            message = "the spec does not say its version"
            self.errors.add(codes.VERSION, message, self.root.span, help="start it with 'bpc: 1'")
        elif not isinstance(node, Scalar) or type(node.value) is not int or node.value != 1:
            message = f"bpc must be 1, the version of this language, found {describe(node)}"
            self.errors.add(codes.VERSION, message, node.span, help="write bpc: 1")

    def _read_name(self, path: str) -> str:
        node = self.root.get("name")
        if node is None or is_null(node):
            return re.sub(r"[^A-Za-z0-9_-]", "_", Path(path).stem)[:64] or "spec"
        if (
            isinstance(node, Scalar)
            and isinstance(node.value, str)
            and _TITLE.fullmatch(node.value)
        ):
            return node.value
        message = f"{describe(node)} cannot be the name of a spec"
        help = "letters, digits, and _ . - after the first; at most 64 of them"
        self.errors.add(codes.BAD_NAME, message, node.span, help=help)
        return ""

    def _read_declarations(self) -> tuple[dict[str, FunctionSpec], dict[str, Block]]:
        taken = {
            **dict.fromkeys(self.layers, "a layer"),
            **dict.fromkeys((*COMPOSITES, "name", "from", "precision"), "a word of the language"),
        }
        functions = read_functions(self.root.get("functions"), taken, self.errors)
        taken |= dict.fromkeys(functions, "a function")
        return functions, read_blocks(self.root.get("blocks"), taken, self.errors)

    def _start_names(self, data: DataSpec | None, parameters: tuple[ParameterSpec, ...]) -> Names:
        names = Names(self.errors)
        for name in data.inputs if data else ("x",):
            names.declare(name, name, data.span if data else self.root.span)
        for parameter in parameters:
            names.declare(parameter.name, parameter.name, parameter.span)
        return names

    def _read_model(
        self, vocabulary: Vocabulary, names: Names, first: str
    ) -> tuple[tuple[LayerSpec, ...], str]:
        entry = self.root.find("model")
        if entry is None or not models.check_kind(
            entry.value, Items, "model", entry.key_span, self.errors
        ):
            return (), first
        assert isinstance(entry.value, Items)
        if not entry.value.items:
            message = "the model has no layers"
            self.errors.add(codes.MISSING_KEY, message, entry.key_span, help=_EXAMPLES["model"])
        return expand_model(entry.value, vocabulary, names, first, self.scope)


_EXAMPLES = {
    "data": "such as data: {source: digits, batch: 32}",
    "model": "such as model: [linear: 64, relu, linear: 10]",
    "loss": "such as loss: cross_entropy",
}
