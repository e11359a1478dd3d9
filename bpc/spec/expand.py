"""The model as written -> a flat list of layers: blocks, repeats and residuals opened up.

Every layer takes the value before it unless `from:` names others. A block, `repeat`, `residual`
or nested `layers` makes a scope; names are found in the own scope first, then outwards. The name
of a scope stands for its last value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from bpc.errors import BpcError, Note, Span, SpecError
from bpc.spec import codes
from bpc.spec.blocks import Block
from bpc.spec.entries import COMPOSITES, LayerEntry, read_entry
from bpc.spec.found import describe
from bpc.spec.model import FunctionSpec, LayerSpec
from bpc.spec.names import Names, join_scope
from bpc.spec.options import Options, Scope, convert, read_options
from bpc.spec.words import show, suggest
from bpc.spec.yamlnodes import Items, Node, is_null
from bpc.types import LayerSchema, Option, count_of

MOST_ENTRIES = 20_000
_MOST_SCOPES = 32
_MOST_FAULTS = 1000
_COUNT = Option("repeat", "int", required=True, minimum=1, maximum=10_000)
_SUM = "add"
UNKNOWN = "?"
"""Stands for the value of an entry that is at fault; no layer has that name."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What entries may name: layers of the op table, blocks and functions of the spec."""

    layers: Mapping[str, LayerSchema]
    blocks: Mapping[str, Block]
    functions: Mapping[str, FunctionSpec]

    def kinds(self) -> tuple[str, ...]:
        """Every kind of entry."""
        return (*self.layers, *self.blocks, *self.functions, *COMPOSITES)

    def own_options(self) -> frozenset[tuple[str, str]]:
        """Kinds with an option that is itself called `name`, `from` or `precision`."""
        return frozenset(
            (schema.name, option.name)
            for schema in self.layers.values()
            for option in schema.options
            if option.name in ("name", "from", "precision")
        )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where an entry stands: its scope, values of block arguments, the blocks around it.

    `precision` is what the scope's own entry, or one around it, says of all layers inside.
    """

    scope: str = ""
    values: Mapping[str, int] = field(default_factory=dict)
    blocks: tuple[str, ...] = ()
    depth: int = 0
    precision: str | None = None


def expand_model(
    model: Items, vocabulary: Vocabulary, names: Names, first: str, scope: Scope
) -> tuple[tuple[LayerSpec, ...], str]:
    """All layers in order, and the full name of the last value; faults are recorded.

    Layers at fault are left out.

    Args:
        model: the list of entries.
        vocabulary: what an entry may name.
        names: with data inputs and declared parameters already in it; layers are added, and
            names that were not found wait there for `report_missing`.
        first: the value that the first layer takes.
        scope: where faults go and which initialisers exist.
    """
    kinds = frozenset(vocabulary.kinds())
    expansion = _Expansion(vocabulary, names, scope, kinds, vocabulary.own_options())
    last = expansion.expand(model, _Frame(), first)
    return tuple(expansion.layers), last


class _TooMany(Exception):
    """The expansion, or the number of its faults, grew beyond its limit; all is recorded."""


@dataclass(slots=True)
class _Expansion:
    vocabulary: Vocabulary
    names: Names
    outer: Scope
    kinds: frozenset[str]
    own_options: frozenset[tuple[str, str]]
    layers: list[LayerSpec] = field(default_factory=list)
    entries: int = 0

    def expand(self, model: Items, frame: _Frame, first: str) -> str:
        """Expand the whole model; stops at the limit."""
        try:
            return self._expand_list(model, frame, first)
        except _TooMany:
            return first

    def _expand_list(self, items: Items, frame: _Frame, previous: str) -> str:
        for node in items.items:
            self._count(node)
            try:
                previous = self._expand_entry(node, frame, previous)
            except SpecError as fault:
                self.outer.errors.found.extend(fault.diagnostics)
                previous = UNKNOWN
        return previous

    def _count(self, node: Node) -> None:
        self.entries += 1
        if len(self.outer.errors.found) > _MOST_FAULTS:
            raise _TooMany
        if self.entries > MOST_ENTRIES:
            message = f"the model expands to more than {MOST_ENTRIES:,} entries"
            self.outer.errors.add(codes.LIMIT, message, node.span)
            raise _TooMany

    def _expand_entry(self, node: Node, frame: _Frame, previous: str) -> str:
        entry = read_entry(node, self.kinds, self.own_options)
        if entry.kind in COMPOSITES:
            return self._expand_composite(entry, frame, previous)
        if entry.kind in self.vocabulary.blocks:
            return self._expand_block(entry, frame, previous)
        return self._add_layer(entry, frame, previous)

    # Layers

    def _add_layer(self, entry: LayerEntry, frame: _Frame, previous: str) -> str:
        before = self._count_faults()
        schema = self._find_schema(entry.kind)
        name = self._take_name(entry, frame, entry.kind)
        if schema is None:
            self._refuse_kind(entry)
            return self._finish(join_scope(frame.scope, name))
        inputs = self._find_inputs(entry, schema, frame, previous)
        scope = self._scope(frame)
        found = read_options(scope, schema, entry.body, entry.kind_span)
        options = {**found.values, **self._tie(schema, found, frame)}
        layer = LayerSpec(
            entry.kind,
            name,
            frame.scope,
            inputs,
            options,
            found.spans,
            entry.kind_span,
            entry.name is not None,
            entry.precision or frame.precision,
        )
        if self._count_faults() == before:
            self.layers.append(layer)
        return self._finish(layer.full_name)

    def _count_faults(self) -> int:
        """Faults so far, with names that are not found yet; a layer that adds one is left out."""
        return len(self.outer.errors.found) + len(self.names.missing)

    def _finish(self, full: str) -> str:
        self.names.values.setdefault(full, full)
        return full

    def _tie(self, schema: LayerSchema, found: Options, frame: _Frame) -> dict[str, object]:
        """Options that name a parameter, with names in full where they are known."""
        return {
            option.name: self.names.tie(value, frame.scope)
            for option in schema.options
            if option.kind == "name" and isinstance(value := found.values.get(option.name), str)
        }

    def _find_schema(self, kind: str) -> LayerSchema | None:
        function = self.vocabulary.functions.get(kind)
        if function is not None:
            count = len(function.arguments)
            return LayerSchema(kind, least_inputs=count, most_inputs=count)
        return self.vocabulary.layers.get(kind)

    def _refuse_kind(self, entry: LayerEntry) -> None:
        message = f"there is no layer {show(entry.kind)}"
        help = suggest(entry.kind, self.kinds)
        self.outer.errors.add(codes.UNKNOWN_LAYER, message, entry.kind_span, help=help)

    def _take_name(self, entry: LayerEntry, frame: _Frame, kind: str) -> str:
        name = self.names.make(frame.scope, kind) if entry.name is None else entry.name
        self.names.reserve(join_scope(frame.scope, name), entry.name_span)
        return name

    def _find_inputs(
        self, entry: LayerEntry, schema: LayerSchema, frame: _Frame, previous: str
    ) -> tuple[str, ...]:
        least, most = schema.least_inputs, schema.most_inputs
        if entry.sources is None:
            inputs: tuple[str, ...] = () if most == 0 else (previous,)
        else:
            inputs = self._resolve(entry, frame, previous)
        if len(inputs) < least or (most is not None and len(inputs) > most):
            self._refuse_count(entry, schema, len(inputs))
        return inputs

    def _resolve(self, entry: LayerEntry, frame: _Frame, previous: str) -> tuple[str, ...]:
        if entry.sources is None:
            return (previous,)
        found = [self.names.find(source, frame.scope) for source in entry.sources]
        return tuple(previous if value is None else value for value in found)

    def _refuse_count(self, entry: LayerEntry, schema: LayerSchema, count: int) -> None:
        least, most = schema.least_inputs, schema.most_inputs
        if most is None:
            needed = f"at least {least}"
        else:
            needed = str(least) if least == most else f"{least} to {most}"
        plural = "" if needed == "1" else "s"
        message = f"{entry.kind} takes {needed} input{plural}, found {count}"
        help = "name them: from: [a, b]" if count < least else None
        span = entry.sources[0].span if entry.sources else entry.kind_span
        self.outer.errors.add(codes.INPUT_COUNT, message, span, help=help)

    def _scope(self, frame: _Frame) -> Scope:
        return Scope(self.outer.errors, frame.values, self.outer.inits)

    # Blocks and composites

    def _expand_block(self, entry: LayerEntry, frame: _Frame, previous: str) -> str:
        block = self.vocabulary.blocks[entry.kind]
        if block.name in frame.blocks:
            chain = " in ".join((block.name, *reversed(frame.blocks)))
            message = f"the block {show(block.name)} contains itself ({chain})"
            raise SpecError.at(codes.RECURSIVE_BLOCK, message, entry.kind_span)
        values = self._read_arguments(block, entry, frame)
        inputs = self._resolve(entry, frame, previous)
        wanted = block.inputs or ("input",)
        if len(inputs) != len(wanted):
            needed = count_of(len(wanted), "input")
            message = f"the block {block.name} takes {needed}, found {len(inputs)}"
            notes = [Note("the block is declared here", block.span)]
            raise SpecError.at(codes.INPUT_COUNT, message, entry.kind_span, notes)

        def fill(inner: _Frame) -> str:
            inner = replace(inner, values=values, blocks=(*inner.blocks, block.name))
            for name, value in zip(wanted, inputs, strict=True):
                self.names.declare(join_scope(inner.scope, name), value, block.span)
            return self._expand_list(block.layers, inner, inputs[0])

        return self._open_scope(entry, frame, fill)

    def _read_arguments(self, block: Block, entry: LayerEntry, frame: _Frame) -> dict[str, int]:
        options = tuple(
            Option(name, "int", default, required=default is None)
            for name, default in block.arguments.items()
        )
        shorthand = next(iter(block.arguments), None)
        schema = LayerSchema(block.name, options, shorthand=shorthand)
        found = read_options(self._scope(frame), schema, entry.body, entry.kind_span)
        # A fault is recorded by now; 1 stands in so that the rest of the block is checked too.
        return {name: _as_int(found.values.get(name, 1)) for name in block.arguments}

    def _expand_composite(self, entry: LayerEntry, frame: _Frame, previous: str) -> str:
        first = self._resolve(entry, frame, previous)
        if len(first) != 1:
            message = f"{entry.kind} takes 1 input, found {len(first)}"
            raise SpecError.at(codes.INPUT_COUNT, message, entry.kind_span)
        if entry.kind == "repeat":
            return self._expand_repeat(entry, frame, first[0])
        layers = _need_list(entry.body, entry.kind, entry.kind_span)
        if entry.kind == "layers":
            return self._open_scope(
                entry, frame, lambda inner: self._expand_list(layers, inner, first[0])
            )
        return self._open_scope(
            entry, frame, lambda inner: self._expand_residual(entry, layers, inner, first[0])
        )

    def _expand_repeat(self, entry: LayerEntry, frame: _Frame, previous: str) -> str:
        if entry.body is None:
            message, help = "repeat needs a number", "such as {repeat: 2, layers: [relu]}"
            raise SpecError.at(codes.BAD_ENTRY, message, entry.kind_span, help=help)
        count = convert(self._scope(frame), _COUNT, entry.body, "repeat")
        layers = _need_list(entry.layers, "repeat", entry.kind_span)

        def fill(inner: _Frame) -> str:
            value = previous
            for number in range(_as_int(count)):
                full = join_scope(inner.scope, str(number))
                round_frame = replace(inner, scope=full)
                self.names.reserve(full, entry.kind_span)
                value = self._expand_list(layers, round_frame, value)
                self.names.values[full] = value
            return value

        return self._open_scope(entry, frame, fill)

    def _expand_residual(
        self, entry: LayerEntry, layers: Items, frame: _Frame, previous: str
    ) -> str:
        last = self._expand_list(layers, frame, previous)
        schema = self.vocabulary.layers.get(_SUM)
        options = {option.name: option.default for option in schema.options} if schema else {}
        name = self.names.make(frame.scope, _SUM)
        inputs = (previous, last)
        layer = LayerSpec(
            *(_SUM, name, frame.scope, inputs, options, {}, entry.kind_span, False),
            precision=frame.precision,
        )
        self.names.reserve(layer.full_name, entry.kind_span)
        self.layers.append(layer)
        return self._finish(layer.full_name)

    def _open_scope(self, entry: LayerEntry, frame: _Frame, fill: Callable[[_Frame], str]) -> str:
        if frame.depth >= _MOST_SCOPES:
            message = f"scopes are nested more than {_MOST_SCOPES} deep"
            raise SpecError.at(codes.LIMIT, message, entry.kind_span)
        name = self._take_name(entry, frame, entry.kind)
        full = join_scope(frame.scope, name)
        precision = entry.precision or frame.precision
        last = fill(_Frame(full, frame.values, frame.blocks, frame.depth + 1, precision))
        self.names.values.setdefault(full, last)
        return last


def _need_list(node: Node | None, what: str, span: Span) -> Items:
    if isinstance(node, Items) and node.items:
        return node
    raise _fault_of_list(node, what, span)


def _fault_of_list(node: Node | None, what: str, span: Span) -> BpcError:
    example = "{repeat: 2, layers: [relu]}" if what == "repeat" else f"{{{what}: [relu]}}"
    help = f"such as {example}"
    if isinstance(node, Items) or node is None or is_null(node):
        return SpecError.at(codes.BAD_ENTRY, f"{what} needs a list of layers", span, help=help)
    message = f"{what} needs a list of layers, found {describe(node)}"
    return SpecError.at(codes.WRONG_TYPE, message, node.span, help=help)


def _as_int(value: object) -> int:
    return value if isinstance(value, int) else 1
