"""One peer in a process of its own: `python peers.py PEER WORK DATA.npz THREADS MODE`.

MODE `first` takes one step, prints what it found, and ends; compare.py times it from outside. MODE
`serve` reads a number of steps a line, takes them, and prints seconds and losses as JSON.

Every peer does the same: pick the step's rows out of arrays in memory, forward, cross-entropy,
backward, clip by global norm, Adam, and the loss as a Python number.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from works import GLOBAL_NORM, LEARNING_RATE, WORKS, Arrays, Work

TRIAL_STEPS = 30
INSTALL = {
    "bpc": "pip install -e .",
    "torch": 'pip install "bpc[bench]"',
    "torch-compile": 'pip install "bpc[bench]"',
    "jax": 'pip install "bpc[bench]"',
}

Step = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Problem:
    """A work with its arrays; `order` is int64 [steps, batch], the rows of each step."""

    work: Work
    data: Arrays
    weights: Arrays
    order: np.ndarray
    threads: int


@dataclass(frozen=True)
class Ready:
    """A peer that is set up: one call of `step` trains on one batch and returns its loss."""

    step: Step
    versions: dict[str, str]
    notes: str


def make_bpc(problem: Problem, trial: bool) -> Ready:
    import bpc

    net = bpc.compile(problem.work.spec, device="cpu", threads=problem.threads)
    net.load_parameters(problem.weights)
    stepper = net.stepper(problem.data)

    def step(rows: np.ndarray) -> float:
        stepper.step(rows)
        loss = stepper.loss()
        assert loss is not None
        return loss

    return Ready(step, {"bpc": bpc.__version__}, net.device.summary)


def make_torch(problem: Problem, trial: bool) -> Ready:
    return ready_torch(problem, trial, compiled=False)


def make_torch_compile(problem: Problem, trial: bool) -> Ready:
    return ready_torch(problem, trial, compiled=True)


def ready_torch(problem: Problem, trial: bool, compiled: bool) -> Ready:
    """With a trial, the faster of the two forms of Adam; without one, the fused form."""
    import torch

    torch.set_num_threads(problem.threads)
    form = faster_adam(problem) if trial else "fused"
    what = "model and loss compiled, " if compiled else ""
    notes = f"{what}Adam {form}"
    return Ready(torch_step(problem, form, compiled), {"torch": torch.__version__}, notes)


def faster_adam(problem: Problem) -> str:
    """Both forms take turns; the smaller median wins."""
    steps = {form: torch_step(problem, form, compiled=False) for form in ("fused", "foreach")}
    seconds: dict[str, list[float]] = {form: [] for form in steps}
    for at in range(TRIAL_STEPS):
        for form, step in steps.items():
            started = time.perf_counter()
            step(problem.order[at % len(problem.order)])
            seconds[form].append(time.perf_counter() - started)
    return min(seconds, key=lambda form: float(np.median(seconds[form])))


def torch_step(problem: Problem, form: str, compiled: bool) -> Step:
    import torch

    model = problem.work.torch_model(problem.weights)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, **{form: True})
    x, target = (torch.from_numpy(problem.data[name]) for name in ("x", "target"))

    def find_loss(x: Any, target: Any) -> Any:
        logits = model(x)
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
        )

    find = torch.compile(find_loss) if compiled else find_loss

    def step(rows: np.ndarray) -> float:
        picked = torch.from_numpy(rows)
        optimizer.zero_grad(set_to_none=True)
        loss = find(x[picked], target[picked])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, GLOBAL_NORM)
        optimizer.step()
        return float(loss.detach())

    return step


def make_jax(problem: Problem, trial: bool) -> Ready:
    import jax
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(GLOBAL_NORM), optax.adam(LEARNING_RATE))
    weights: Any = {name: jax.numpy.asarray(value) for name, value in problem.weights.items()}
    held = [weights, optimizer.init(weights)]
    x, target = (jax.numpy.asarray(problem.data[name]) for name in ("x", "target"))

    def find_loss(weights: Any, x: Any, target: Any) -> Any:
        logits = problem.work.jax_model(weights, x)
        flat = logits.reshape(-1, logits.shape[-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(flat, target.reshape(-1))
        return losses.mean()

    # Rows picked inside the jitted function cost less than rows picked by NumPy before it.
    def update(weights: Any, state: Any, x: Any, target: Any, rows: Any) -> Any:
        loss, gradients = jax.value_and_grad(find_loss)(weights, x[rows], target[rows])
        moves, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, moves), state, loss

    run = jax.jit(update, donate_argnums=(0, 1))

    def step(rows: np.ndarray) -> float:
        held[0], held[1], loss = run(held[0], held[1], x, target, rows.astype(np.int32))
        found = float(loss)
        jax.block_until_ready(held)  # the loss may be there before the new weights are
        return found

    versions = {"jax": jax.__version__, "optax": optax.__version__}
    return Ready(step, versions, "one jitted function, arguments donated")


PEERS: dict[str, Callable[[Problem, bool], Ready]] = {
    "bpc": make_bpc,
    "torch": make_torch,
    "torch-compile": make_torch_compile,
    "jax": make_jax,
}


def read_problem(work: str, path: str, threads: int) -> Problem:
    """The arrays that compare.py wrote, in memory."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    parts: dict[str, Arrays] = {"data": {}, "weights": {}}
    for name, array in arrays.items():
        part, _, rest = name.partition("/")
        if rest:
            parts[part][rest] = array
    return Problem(WORKS[work], parts["data"], parts["weights"], arrays["order"], threads)


def stay_on(threads: int) -> None:
    """Use the first `threads` processors only: every peer's pools are then of this size."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def take_steps(ready: Ready, batches: Iterator[np.ndarray], count: int) -> dict[str, Any]:
    """Seconds and loss of each of the next `count` steps."""
    seconds, losses = [], []
    for _ in range(count):
        rows = next(batches)
        started = time.perf_counter()
        loss = ready.step(rows)
        seconds.append(time.perf_counter() - started)
        losses.append(loss)
    return {"seconds": seconds, "losses": losses}


def endless(order: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of each step, from the start again after the last."""
    while True:
        yield from order


def say(**facts: Any) -> None:
    """One JSON object on a line of its own."""
    print(json.dumps(facts), flush=True)


def serve(ready: Ready, batches: Iterator[np.ndarray]) -> None:
    """Answer every line that asks for a number of steps."""
    say(versions=ready.versions, notes=ready.notes)
    for line in sys.stdin:
        found = take_steps(ready, batches, int(line))
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        say(**found, peak_resident_bytes=1024 * peak_kib)


def main(peer: str, work: str, path: str, threads: str, mode: str) -> None:
    """See the top of the file."""
    stay_on(int(threads))
    problem = read_problem(work, path, int(threads))
    try:
        ready = PEERS[peer](problem, mode == "serve")
    except ModuleNotFoundError as error:
        say(missing=f"{error.name} is not installed: {INSTALL[peer]}")
        return
    batches = endless(problem.order)
    if mode == "first":
        say(**take_steps(ready, batches, 1))
    else:
        serve(ready, batches)


if __name__ == "__main__":
    main(*sys.argv[1:])
