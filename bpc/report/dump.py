"""Every stage of the compiler as text, for reading and for comparing two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bpc.entries import Entries
from bpc.errors import Span
from bpc.expr import Expr, render_formula
from bpc.ir import Graph, Node
from bpc.kernel import Extent, Index, Item, Kernel, Reduction, Statement
from bpc.passes import run_passes
from bpc.plan.choose import Planned
from bpc.plan.program import Entry, Program
from bpc.report.timeline import find_moment, list_tensors, make_axis, type_of
from bpc.spec.model import Spec
from bpc.types import Rows, format_bytes, format_shape

FORWARD = "evaluate"


def dump_stages(spec: Spec, entries: Entries, planned: Planned) -> dict[str, str]:
    """File name to text, numbered in the order of the compiler."""
    program = planned.program
    stages = {"1-spec.txt": dump_spec(spec)}
    for name, graph in entries.graphs.items():
        # Without loss scaling, dropout and gradients: the network as the spec wrote it.
        stage = "2-forward" if name == FORWARD else f"3-joint-{name}"
        stages[f"{stage}.txt"] = dump_graph(graph)
    for name, graph in entries.graphs.items():
        stages[f"4-passes-{name}.txt"] = dump_graph(run_passes(graph))
    for name, entry in program.entries.items():
        stages[f"5-kernels-{name}.txt"] = dump_kernels(entry)
    stages["6-plan.txt"] = dump_plan(planned)
    stages["7-program.txt"] = dump_program(program)
    return stages


def dump_spec(spec: Spec) -> str:
    """Each resolved value and where it comes from."""
    lines = [f"# {spec.name}: every value, and where it comes from"]
    for key, value in _resolved(spec):
        lines.append(f"{key} = {value}  # {spec.origins.get(key, spec.span)}")
    lines += ["", "# layers"]
    for layer in spec.layers:
        inputs = ", ".join(layer.inputs)
        lines.append(f"{layer.full_name}: {layer.op}({inputs})  # {layer.span}")
    lines.append(f"loss: {spec.loss.op}({', '.join(spec.loss.inputs)})  # {spec.loss.span}")
    return "\n".join(lines) + "\n"


def _resolved(spec: Spec) -> Iterator[tuple[str, str]]:
    train = spec.train
    yield from _shown("", {"name": spec.name, "seed": spec.seed})
    data = spec.data
    yield from _shown(
        "data.", {"source": data.source, "batch": data.batch, "shuffle": data.shuffle}
    )
    yield from _shown("data.", data.options)
    for layer in spec.layers:
        yield from _shown(f"model.{layer.full_name}.", layer.options)
        if layer.precision:
            yield f"model.{layer.full_name}.precision", layer.precision
    yield from _shown("loss.", spec.loss.options)
    yield from _shown(
        "train.",
        {
            "epochs": train.epochs,
            "steps": train.steps,
            "precision": train.precision,
            "gradients": train.gradients,
            "optimizer": train.optimizer.kind,
            **{f"optimizer.{key}": value for key, value in train.optimizer.options.items()},
            "lr": train.lr,
            "clip.global_norm": train.clip,
            "clip.value": train.clip_value,
            "clip.groups": {item.pattern.text: item.norm for item in train.clip_groups},
            "groups": [" ".join(p.text for p in group.patterns) for group in train.groups],
            "warmup.steps": train.warmup_steps,
            "warmup.share": train.warmup_share,
            "schedule": train.schedule.kind,
            **{f"schedule.{key}": value for key, value in train.schedule.options.items()},
            "accumulate": train.accumulate,
            "memory": train.memory_bytes,
            "nonfinite": train.nonfinite,
        },
    )


def _shown(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        yield f"{prefix}{key}", _text(value)


def _text(value: Any) -> str:
    """A value without memory addresses or places."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if hasattr(value, "kind") and hasattr(value, "options"):
        return f"{value.kind}{_text(value.options) if value.options else ''}"
    return "none" if value is None else str(value)


def dump_graph(graph: Graph) -> str:
    """One line a node: its values, op, operands and attributes, and where it comes from."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input {value.name}: {type_of(value)}" for value in graph.inputs]
    lines += [
        f"  state {state.name}: {type_of(state.value)}  # {state.kind}, {state.span}"
        for state in graph.states
    ]
    lines += [f"  {_node(node)}" for node in graph.nodes]
    lines += [f"  output {role} = {value}" for role, value in graph.outputs]
    lines += [f"  next {state} = {value}" for state, value in graph.updates]
    return "\n".join(lines) + "\n"


def _node(node: Node) -> str:
    made = ", ".join(f"{value.name}: {type_of(value)}" for value in node.outputs)
    attrs = [f"{key}={_attribute(value)}" for key, value in node.attrs]
    role = f" ({node.role})" if node.role else ""
    call = f"{node.op}({', '.join([*node.inputs, *attrs])})"
    return f"{made} = {call}  # {node.phase} {node.scope}{role}, {node.span}"


def _attribute(value: Any) -> str:
    if isinstance(value, Expr):
        return f"[{render_formula(value, {})}]"
    if isinstance(value, Span):
        return str(value)
    if isinstance(value, tuple):
        dims = all(isinstance(item, int | Rows) for item in value)
        return format_shape(value) if dims else f"({_joined(value)})"
    return str(value)


def _joined(values: Sequence[Any]) -> str:
    return ", ".join(_attribute(value) for value in values)


def dump_kernels(entry: Entry) -> str:
    """Each kernel with its loop space, tensors and formulas, in launch order."""
    return "\n".join(
        [f"entry {entry.name}: {len(entry.kernels)} launches\n", *map(_kernel, entry.kernels)]
    )


def _kernel(kernel: Kernel) -> str:
    places = ", ".join(dict.fromkeys(str(span) for span in kernel.spans))
    lines = [
        f"{kernel.name}: {kernel.skeleton} over {format_shape(kernel.space)}, "
        f"{kernel.slices} slices, {kernel.flops:,} FLOPs  # {places}",
        *(f"  read {operand.label} = {operand.value}" for operand in kernel.reads),
        *(f"  {_item(item)}" for item in kernel.body),
        *(
            f"  write {kernel.operand(store.operand).value} = {store.label}"
            for store in kernel.stores
        ),
    ]
    return "\n".join(lines) + "\n"


def _item(item: Item) -> str:
    if isinstance(item, Statement):
        return f"{item.formula()}  # {item.level}, {item.op}, {item.span}"
    if isinstance(item, Reduction):
        return f"{item.label} = {item.kind}({item.source})  # {item.level}, {item.span}"
    if isinstance(item, Index):
        axis = "element" if item.axis is None else f"axis {item.axis}"
        return f"{item.label} = position ({axis})"
    assert isinstance(item, Extent)
    return f"{item.label} = {item.dim}"


def dump_plan(planned: Planned) -> str:
    """What is kept and what is repeated, and every storage of a step."""
    program = planned.program
    budget = "none" if planned.budget_bytes is None else f"{planned.budget_bytes} B"
    lines = [
        f"arena {program.arena_bytes} B, budget {budget}, at {find_moment(program)}",
        f"{planned.recompute_flops} FLOPs repeated beside {planned.step_flops} of a step",
        "",
        *(f"{item.value}: {item.decision}, {item.why}" for item in planned.decisions.values()),
        "",
    ]
    for tensor in list_tensors(planned, make_axis(program)):
        lives = "-" if tensor.first is None else f"{tensor.first}-{tensor.last}"
        place = "-" if tensor.offset is None else f"0x{tensor.offset:06x}"
        lines.append(
            f"{place} {tensor.name}: {tensor.type}, {format_bytes(tensor.nbytes)}, {lives}, "
            f"{tensor.decision}, {tensor.why}"
        )
    return "\n".join(lines) + "\n"


def dump_program(program: Program) -> str:
    """The launch tables: slices, places of the tensors, and where the team waits."""
    lines = [f"arena {program.arena_bytes} B, {program.rows} rows"]
    for name, entry in program.entries.items():
        lines += ["", f"entry {name}: peak {entry.replayed.peak_bytes} B"]
        for at, kernel in enumerate(entry.kernels):
            places = ", ".join(
                f"{operand.value}@0x{entry.offset_of(operand):06x}"
                for operand in (*kernel.reads, *kernel.writes)
            )
            lines.append(f"  {at} {kernel.name} x{kernel.slices}: {places}")
            if entry.barriers[at]:
                lines.append("  wait")
    return "\n".join(lines) + "\n"
