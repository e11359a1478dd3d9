"""Everything that waits for a GPU, in one command of under eight minutes, unattended.

    python benchmarks/gpu.py [--json] [--minutes 8] [--parts tests,train,time,loop]

Runs tests/gpu, trains the example specs to the same losses as `cpu` (as `reference` without a C++
compiler), and times the MLP step of works.py against PyTorch, eager and compiled, with the loss of
each step as a number, and in `bpc train`'s loop with and without steps ahead. Each part is a
process of its own with a limit; what is done is printed as it comes, the table last. Exits with 1
if a test fails, a loss differs, or a part of bpc gives no answer; a peer that is missing is told.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
sys.path[:0] = [str(ROOT), str(FOLDER)]

SPECS = ("digits_mlp", "small_conv", "synthetic_mlp12")
TRAIN_STEPS = 30
LOSS_TOLERANCE = 1e-4
WARM_UP, ROUNDS, ROUND_STEPS = 30, 10, 50
PEERS = ("bpc", "bpc-no-graph", "torch", "torch-compile", "torch-graphs")
LOOPS = {"bpc-loop": "1", "bpc-loop-waiting": "0"}  # BPC_CUDA_AHEAD
LOOP_STEPS = 1000
LEAST_SECONDS = 10.0  # less is not worth starting a part


@dataclass
class Line:
    """One row of the table. `ok` is None where nothing was to be proven."""

    part: str
    what: str
    ok: bool | None
    result: str
    facts: dict[str, Any] = field(default_factory=dict)


# -- what runs in a process of its own ------------------------------------------------------------


def run_training(spec: str) -> dict[str, Any]:
    """The same steps on the GPU and on the CPU, the last batch of each three a short one."""
    import bpc
    from bpc.errors import ToolError
    from bpc.resources import spec_root
    from bpc.runtime.cpu.toolchain import find_toolchain

    try:
        find_toolchain()
        other = "cpu"
    except ToolError:
        other = "reference"
    found: dict[str, Any] = {}
    for device in ("cuda", other):
        net = bpc.compile(spec_root() / f"{spec}.yaml", device=device)
        stepper, rows, losses = net.stepper(), len(net.data.train["target"]), []
        for at in range(TRAIN_STEPS):
            size = net.device.rows if at % 3 else max(1, net.device.rows // 3)
            stepper.step((np.arange(size) + at * net.device.rows) % rows)
            losses.append(stepper.loss())
        found[device] = losses
        found[f"{device} summary"] = net.device.summary
        net.close()
    pairs = list(zip(found["cuda"], found[other], strict=True))
    worst = max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)
    facts = {"other": other, "worst": worst, "same_bits": found["cuda"] == found[other]}
    return {**facts, "summary": found["cuda summary"], "last_loss": found["cuda"][-1]}


def run_timing(peer: str) -> dict[str, Any]:
    """Milliseconds of a step with its loss as a Python number, and the first losses."""
    from works import WORKS

    work = WORKS["mlp"]
    draw = np.random.default_rng(1)
    data, weights = work.make_data(draw), work.make_weights(draw)
    count = WARM_UP + ROUNDS * ROUND_STEPS
    order = [draw.permutation(len(data["target"]))[: work.batch] for _ in range(count)]
    step, facts = _STEPPERS[peer](work, data, weights)
    batches = iter(order)
    losses = [step(next(batches)) for _ in range(WARM_UP)]
    rounds = [_time_round(step, batches) for _ in range(ROUNDS)]
    return {**facts, "step_ms": 1000 * median(rounds), "losses": losses[:5]}


def run_loop(peer: str) -> dict[str, Any]:
    """Milliseconds of a step of the training loop, which logs and evaluates at its end alone."""
    os.environ["BPC_CUDA_AHEAD"] = LOOPS[peer]
    from works import WORKS

    import bpc

    settings = {"train.log_every": LOOP_STEPS, "train.eval_every": LOOP_STEPS}
    net = bpc.compile(WORKS["mlp"].spec, device="cuda", set=settings)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, steps in (("warm", WARM_UP), ("timed", LOOP_STEPS)):
            found[name] = net.train(steps=steps, run_dir=Path(folder) / name)
    timed = found["timed"]
    step_ms = 1000 * timed["seconds"] / timed["steps"]
    return {"step_ms": step_ms, "median_ms": timed["step_ms_median"], "loss": timed["final"]}


def _time_round(step: Callable[[np.ndarray], float], batches: Iterator[np.ndarray]) -> float:
    started = time.perf_counter()
    for _ in range(ROUND_STEPS):
        step(next(batches))
    return (time.perf_counter() - started) / ROUND_STEPS


def make_bpc(work: Any, data: Any, weights: Any) -> tuple[Any, dict[str, Any]]:
    """Batches are gathered on the host and copied; launches, arena and loss on the device."""
    import bpc

    net = bpc.compile(work.spec, device="cuda")
    net.load_parameters(weights)
    stepper = net.stepper(data)
    device: Any = net.device

    def step(rows: np.ndarray) -> float:
        stepper.step(rows)
        return float(stepper.loss() or "nan")

    for at in range(4):  # captures all graphs
        step(np.arange(device.rows) + at)

    def replay() -> None:
        device.run("micro_step", device.rows)
        device.run("update", device.rows)

    on_device = 1000 * device.gpu.time(replay, 100, device.stream)
    net.load_parameters(weights)
    stepper.reset(10_000)
    kept = ("arena_bytes", "beside_bytes", "pinned_bytes", "architecture", "device")
    facts = {name: device.facts[name] for name in kept}
    return step, {**facts, "device_ms": on_device, "summary": device.summary}


def make_bpc_without_graphs(work: Any, data: Any, weights: Any) -> tuple[Any, dict[str, Any]]:
    os.environ["BPC_CUDA_GRAPH"] = "0"
    return make_bpc(work, data, weights)


def make_torch(
    work: Any, data: Any, weights: Any, mode: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """All data lies on the device from the start, which spares PyTorch the copies; TF32 is off."""
    import torch

    if not torch.cuda.is_available():
        raise ImportError("PyTorch was built without CUDA, or finds no device")
    torch.backends.cuda.matmul.allow_tf32 = False
    model = work.torch_model(weights).cuda()
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    x, target = (torch.from_numpy(data[name]).cuda() for name in ("x", "target"))

    def find_loss(x: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x), target)

    find = torch.compile(find_loss, mode=mode) if mode else find_loss

    def step(rows: np.ndarray) -> float:
        picked = torch.from_numpy(rows).cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = find(x[picked], target[picked])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.detach())

    return step, {"torch": torch.__version__}


_STEPPERS: dict[str, Callable[..., tuple[Any, dict[str, Any]]]] = {
    "bpc": make_bpc,
    "bpc-no-graph": make_bpc_without_graphs,
    "torch": make_torch,
    "torch-compile": lambda *given: make_torch(*given, mode="default"),
    "torch-graphs": lambda *given: make_torch(*given, mode="reduce-overhead"),
}


# -- what starts them -----------------------------------------------------------------------------


@dataclass
class Clock:
    """How much of the whole time is left."""

    end: float

    def limit(self, seconds: float) -> float:
        return min(seconds, self.end - time.monotonic())


def start(command: list[str], limit: float) -> tuple[int | None, str, str]:
    """(exit code or None if it ran too long or was not started, stdout, stderr)."""
    if limit < LEAST_SECONDS:
        return None, "", "no time was left"
    parts = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(parts)}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            env=environment,
            cwd=ROOT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        kept = error.stdout or b""
        text = kept.decode(errors="replace") if isinstance(kept, bytes) else kept
        return None, text, f"stopped after {limit:.0f} s"
    return done.returncode, done.stdout, done.stderr


def ask(kind: str, what: str, limit: float) -> tuple[dict[str, Any] | None, str]:
    """The answer of a part in a process of its own, or None and why there is none."""
    command = [sys.executable, str(FOLDER / "gpu.py"), "--worker", kind, what]
    code, out, errors = start(command, limit)
    answer = out.strip().splitlines()[-1:] if code == 0 else []
    try:
        return json.loads(answer[0]), ""
    except (IndexError, ValueError):
        return None, _last_line(errors) or _last_line(out) or f"exit {code}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def run_tests(clock: Clock) -> Iterator[Line]:
    """tests/gpu, a file at a time, without the options that the project's own runs have."""
    for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py")):
        options = ["-v", "-m", "gpu", "-o", "addopts=", "-o", "filterwarnings=default"]
        options += ["-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
        command = [sys.executable, "-m", "pytest", *options, str(path)]
        code, out, errors = start(command, clock.limit(220))
        print(out[-4000:], file=sys.stderr, flush=True)
        lines = out.splitlines()
        passed = sum(" PASSED" in line for line in lines)
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        ok = code == 0 and passed > 0
        result = _last_line(out if code is not None else errors) or f"exit {code}"
        if code is None:
            result = f"{passed} passed, then {result}"
        yield Line("tests", path.stem, ok, result, {"failed": failed, "passed": passed})


def run_trainings(clock: Clock) -> Iterator[Line]:
    for spec in SPECS:
        found, why = ask("train", spec, clock.limit(60))
        if found is None:
            yield Line("train", spec, False, why)
            continue
        ok = found["worst"] <= LOSS_TOLERANCE
        bits = "same bits" if found["same_bits"] else f"losses within {found['worst']:.1e}"
        result = f"{TRAIN_STEPS} steps as on {found['other']}: {bits}"
        yield Line("train", spec, ok, result, found)


def run_timings(clock: Clock) -> Iterator[Line]:
    wanted: list[float] | None = None
    base: float | None = None
    for peer in PEERS:
        found, why = ask("time", peer, clock.limit(45 if peer in ("bpc", "torch") else 75))
        if found is None:
            own = peer.startswith("bpc")
            yield Line("time", peer, False if own else None, f"no answer: {why}")
            continue
        wanted = wanted or found["losses"]
        base = base or found["step_ms"]
        close = np.allclose(found["losses"], wanted, rtol=1e-3)
        result = f"{found['step_ms']:.3f} ms a step, {found['step_ms'] / base:.2f} x"
        if "device_ms" in found:
            result += f", {found['device_ms']:.3f} ms on the device"
        if not close:
            result += f"; its first losses differ: {found['losses']}"
        yield Line("time", peer, bool(close), result, found)


def run_loops(clock: Clock) -> Iterator[Line]:
    losses = []
    for peer in LOOPS:
        found, why = ask("loop", peer, clock.limit(45))
        if found is None:
            yield Line("loop", peer, False, f"no answer: {why}")
            continue
        losses.append(found["loss"])
        result = f"{found['step_ms']:.3f} ms a step, median {found['median_ms']:.3f} ms"
        yield Line("loop", peer, losses[0] == found["loss"], result, found)


PARTS: dict[str, Callable[[Clock], Iterator[Line]]] = {
    "tests": run_tests,
    "train": run_trainings,
    "time": run_timings,
    "loop": run_loops,
}
WORKERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "train": run_training,
    "time": run_timing,
    "loop": run_loop,
}


def show(lines: list[Line]) -> str:
    marks = {True: "ok", False: "FAILED", None: "-"}
    wide = max(len(line.what) for line in lines)
    return "\n".join(
        f"{line.part:<6} {line.what:<{wide}}  {marks[line.ok]:<6}  {line.result}" for line in lines
    )


def describe_machine() -> dict[str, str]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        gpu = done.stdout.strip() or _last_line(done.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        gpu = str(error)
    return {"gpu": gpu, "python": platform.python_version(), "machine": platform.platform()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="all facts as JSON on stdout")
    parser.add_argument("--minutes", type=float, default=7.5, help="the whole time")
    parser.add_argument("--parts", default=",".join(PARTS), help="of tests, train, time, loop")
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "WHAT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, what = given.worker
        print(json.dumps(WORKERS[kind](what)))
        return 0
    return run_all(given.parts.split(","), given.minutes, given.json)


def run_all(parts: list[str], minutes: float, as_json: bool) -> int:
    clock, lines = Clock(time.monotonic() + 60 * minutes), []
    machine = describe_machine()
    print(machine["gpu"], file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as caches:
        os.environ.setdefault("BPC_CACHE", str(Path(caches) / "bpc"))
        for part in parts:
            for line in PARTS[part](clock):
                lines.append(line)
                print(show([line]), file=sys.stderr, flush=True)
    failed = not lines or any(line.ok is False for line in lines)
    if as_json:
        facts = {"schema_version": 1, "machine": machine, "failed": failed}
        print(json.dumps({**facts, "lines": [asdict(line) for line in lines]}, indent=2))
    else:
        print(show(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
