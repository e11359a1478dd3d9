"""The head of a CUDA file: what its names, control numbers and helpers mean, where it uses them."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

from bpc.codegen.header import list_after
from bpc.plan.program import Entry, Program

_WIDTH = 94

# -- words ----------------------------------------------------------------------------------------
# (the words, a pattern of the text that needs them, what they mean)

Word = tuple[str, str, str]

_NAMES: tuple[Word, ...] = (
    (
        "<t>_in, <t>_out",
        r"_in\b|_out\b",
        "pointers to a tensor that a kernel reads, and to one that it writes; <t> in a statement "
        "is one element of it. In a function with both for one <t>, they are one address: its "
        "blocks write the tensor, its last block reads it",
    ),
    (
        "<t>_part2",
        r"\w_part\d",
        "in lists of tensors <t>#2: result number 2 of the node <t>, which makes several, from "
        "number 0 on",
    ),
    ("d_<t>", r"\bd_\w", "the gradient of the loss (times scale / divisor) with respect to <t>"),
    (
        "grad_<t>",
        r"\bgrad[_.]\w",
        "the gradient of a parameter <t>, kept from micro_step to update: micro_step writes its "
        "d_<t> straight there (`keeps` above)",
    ),
    (
        "micro_step_add",
        r"\bmicro_step_add\b",
        "a further batch of the same step: adds its d_<t> to grad_<t>",
    ),
    (
        "next_<t>",
        r"\bnext_",
        "the value of <t> after the update, written in place: next_<t>_out and <t>_in are one "
        "address",
    ),
    ("<t>.cols", r"\.cols\b", "<t> as sums over rows: a number a column"),
    ("<t>.chunks", r"\.chunks\b", "sums of <t> over chunks of 4096 elements, added up later"),
    ("<t>~2", r"\w~\d", "<t> computed once more, so that it need not be kept"),
    (
        "parameter",
        r"\bparameter_in\b|_parameter\b",
        "of many parameters the one that a block serves",
    ),
    (
        "r, c",
        r"\[&\]|\bc0\b",
        "the row and the column (the place in the row) of an element; of a tensor taken as one "
        "row, r is 0 and c the place in the tensor",
    ),
    (
        "acc",
        r"\bacc\b",
        "the finished sum of products, before bias and activation",
    ),
    (
        "finished, count",
        r"\bfinished\b",
        "the finished sums that one thread has of one row r: count of them, at the columns from c0 "
        "on; bpc_thread_n is the most there are, q counts them",
    ),
    (
        "rows_in",
        r"\brows_in\b",
        "holds the rows of the batch at hand. A grid is made for the planned batch, {rows} rows: a "
        "block whose rows all lie beyond the batch computes no element, but draws its ticket where "
        "there is one. Sums over a batch of no rows are 0",
    ),
    (
        "table, parts",
        r"\btable\b",
        "one launch for many tensors: a table with a row for each of the `parts` tensors; `part` "
        "is the row that this block works on",
    ),
    (
        "_pack",
        r"_pack\b",
        "neighbouring elements in one thread's registers: `all` is their number in the tensor, "
        "c0 the first of this thread",
    ),
    ("ticket", r"\bticket\b", "counts the blocks that are done, to find the last"),
)

_CONTROL: tuple[tuple[str, str], ...] = (
    (
        "scale",
        "factor of the loss{scale}",
    ),
    (
        "divisor",
        "terms that the step's loss will have{batches}; the host counts them before the step",
    ),
    (
        "weight",
        "terms that the loss did have; by micro_step. update multiplies gradients, which were "
        "divided by divisor, by divisor / weight",
    ),
    ("loss", "sum of the terms, not yet divided; by micro_step"),
    ("base_lr", "learning rate before anything scales it; set for a run"),
    ("warmup", "updates over which the learning rate rises to its base; set for a run"),
    ("total", "updates of the run, for the schedule; set for a run"),
    ("final", "share of the learning rate that is left at the end; set for a run"),
    ("lr", "learning rate of the last step, skipped or not; by update, for the host to read"),
    (
        "norm",
        "length of all gradients together, without scale, before clipping; by update, for the "
        "host to read",
    ),
    ("seed", "of random draws; set for a run"),
    (
        "window",
        "steps so far: those made and those skipped, not those that will be run again (late); 0 at "
        "first, then by update",
    ),
    ("first_row", "rows of the step's batches before this one; the host sets it before a batch"),
    ("updates", "updates so far, without skipped ones; 0 at first, then by update"),
    ("good", "steps since scale changed or a step was skipped; 0 at first, then by update"),
    (
        "found_inf",
        "1 where a gradient or the loss was inf or NaN, or was so in a step before while late is "
        "1, so that no update was made: weights, moments and updates stay; by update, for the host "
        "to read. The host sets it to 0 whenever it changes late",
    ),
    (
        "late",
        "1 while the host starts a step before it has read found_inf of the one before. After a "
        "step with inf or NaN, weights, moments, {counters} stay and found_inf is 1, and so after "
        "all that follow, until the host sees it. It sets late to 0, runs the first of these steps "
        "again, which now counts as skipped, and then those behind it; after one that is finite it "
        "may set late to 1 again",
    ),
)

_MOVED = " against underflow in 16 bits; set for a run, then by update"

_HELPERS: tuple[Word, ...] = (
    (
        "bpc_load, bpc_store",
        r"\bbpc_(load|store)\(",
        "element i of memory from and to a register",
    ),
    (
        "f16, bf16",
        r"\bb?f16\b",
        "floats of 16 bits in memory: float in registers, rounded when they are stored",
    ),
    ("bpc_bit_load", r"\bbpc_bit_load\b", "element i of a mask: bit i % 8 of byte i / 8"),
    ("bpc_round<T>", r"\bbpc_round<", "the value that memory of type T would give back"),
    (
        "bpc_load_pack, _store_pack",
        r"\bbpc_load_pack\b",
        "neighbouring elements, moved 16 bytes at a time; those beyond the end are left out",
    ),
    (
        "bpc_row_sum, _max",
        r"\bbpc_row_(sum|max)\b",
        "one warp reduces f(0) ... f(n - 1) in a fixed order; all lanes take part "
        "and get the result",
    ),
    (
        "bpc_held_sum, _max",
        r"\bbpc_held_(sum|max)\b",
        "the same for a row of n elements that lies in the warp's registers: <t>_held[k] is "
        "element lane % bpc_lanes + bpc_lanes k (bpc_lanes is 16), the same in both halves of the "
        "warp, since sums have the order of 16 lanes; elements from n on are left out",
    ),
    (
        "bpc_held",
        r"\bbpc_held\(",
        "of these registers, element lane + bpc_warp k (bpc_warp is 32): <t>_held[2 k] in the "
        "lower half of the warp, <t>_held[2 k + 1] in the upper",
    ),
    ("bpc_serial_sum", r"\bbpc_serial_sum\b", "one thread adds n numbers in a fixed order"),
    (
        "bpc_gemm",
        r"\bbpc_gemm\b",
        "one block makes a tile of 64 x 64 sums, each one chain of fused multiply-adds over "
        "ascending k, and each thread hands its sums (bpc_thread_n of a row at a time) to the "
        "function at the end of its arguments; what of a tile lies beyond m or n is left out. "
        "Blocks take the tiles of the first 64 rows, from left to right, then those of the next",
    ),
    ("bpc_conv_...", r"\bbpc_conv_\w+<", "one element of a convolution or its gradient"),
    (
        "bpc_find_part",
        r"\bbpc_find_part\b",
        "the row of the table whose blocks include this one",
    ),
    (
        "bpc_last_block",
        r"\bbpc_last_block\b",
        "true in all threads of the block that draws the last ticket: what all other blocks wrote "
        "is then visible to it (fences), and the ticket is 0 again; false in the others",
    ),
    (
        "bpc_uniform",
        r"\bbpc_uniform\b",
        "a random number from 0 to 1 that its arguments alone decide",
    ),
    (
        "bpc_exp, ...",
        r"\bbpc_(exp|log|sqrt|pow|tanh|min|max|isfinite)\(",
        "functions of numbers, with the same bits on every target",
    ),
)

_RULES = (
    "FLOPs: a product has 2 for each term of its sums, the bias is not counted on its own; an "
    "element-wise operation, comparison or choice has 1, functions more; a sum 1 an element."
)


def glossary(text: str, rows: int) -> dict[str, list[str]]:
    """Lines about the names, control numbers and helpers that a text for so many rows uses."""
    names = [(word, pattern, meaning.format(rows=rows)) for word, pattern, meaning in _NAMES]
    moves, adds = " as control.scale" in text, "micro_step_add" in text
    given = {
        "scale": _MOVED if moves else "; this network needs none, it is 1",
        "counters": "updates, window and scale" if moves else "updates and window",
        "batches": ", over all its batches" if adds else "",
    }
    control = [
        (f"control_{key}", rf"\bcontrol[._]{key}(_in|_out)?\b", meaning.format(**given))
        for key, meaning in _CONTROL
    ]
    return {
        "names": _lines(names, text),
        "control": _lines(control, text),
        "helpers": _lines(_HELPERS, text),
        "rules": textwrap.wrap(_RULES, _WIDTH),
    }


def _lines(words: Sequence[Word], text: str) -> list[str]:
    """`word  meaning` of the words whose pattern is in the text, meanings below each other."""
    used = [(word, meaning) for word, pattern, meaning in words if re.search(pattern, text)]
    room = max((len(word) for word, _ in used), default=0) + 4
    lines: list[str] = []
    for word, meaning in used:
        lines += textwrap.wrap(
            meaning,
            _WIDTH,
            initial_indent=f"{'  ' + word:{room}}",
            subsequent_indent=" " * room,
        )
    return lines


# -- what an entry keeps --------------------------------------------------------------------------


def kept_lines(entry: Entry, program: Program) -> list[str]:
    """What is written straight into tensors that last (<t> is a parameter), and its results."""
    names = sorted(
        (name for name, kind in program.kinds.items() if kind == "parameter"), key=len, reverse=True
    )
    pairs = Counter(
        _with_placeholder(value, home, names)
        for value, home in entry.storage.items()
        if home in program.persistent and value != home
    )
    words = [
        f"{value} as {home}" + (f" ({count} tensors)" if count > 1 else "")
        for (value, home), count in pairs.items()
    ]
    views = entry.graph.views()
    given = [f"{views.get(value, value)} as {role}" for role, value in entry.graph.outputs]
    return [*list_after("   keeps   ", words), *list_after("   gives   ", given)]


def _with_placeholder(value: str, home: str, names: Sequence[str]) -> tuple[str, str]:
    for name in names:
        if name in value and name in home:
            return value.replace(name, "<t>"), home.replace(name, "<t>")
    return value, home
