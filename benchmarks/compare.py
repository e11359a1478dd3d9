"""Time one training step of bpc, PyTorch, torch.compile and JAX side by side.

    python benchmarks/compare.py mlp [--json] [--steps 200] [--threads 2] [--peers bpc,torch]

Peers live in processes of their own and take turns in short rounds, so that drift and neighbours
hit all alike. Their first losses, from the same weights and batches, must agree.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from peers import PEERS
from works import FOLDER, WORKS, Work

SCHEMA_VERSION = 1
ROUND_STEPS = 20
WARM_UP_STEPS = 40
CHECKED_STEPS = 5
LOSS_TOLERANCE = 1e-4
ORDER_STEPS = 320
PAUSE_SECONDS = 0.05  # between rounds: pools of threads stop spinning
SEED = 1
VECTORS = (("amx_tile", "AVX-512 and AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))


class PeerError(Exception):
    """A peer ended without an answer; the text is the end of what it wrote."""


@dataclass
class Found:
    """What was measured of one peer. Seconds; `losses` from the first step on."""

    peer: str
    missing: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_resident_bytes: int | None = None
    first_cold: float | None = None
    first_warm: float | None = None


@dataclass(frozen=True)
class Run:
    """What all peers of a run have in common."""

    work: str
    arrays: Path
    folder: Path
    threads: int

    def command(self, peer: str, mode: str) -> list[str]:
        script = str(FOLDER / "peers.py")
        return [sys.executable, script, peer, self.work, str(self.arrays), str(self.threads), mode]

    def environment(self, peer: str) -> dict[str, str]:
        """The same threads for all, caches in a folder of this run, no tuning from outside."""
        dropped = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        caches = self.folder / peer
        pools = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
        return {
            **kept,
            **{f"{pool}_NUM_THREADS": str(self.threads) for pool in pools},
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=" + str(self.threads > 1).lower(),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "BPC_CACHE": str(caches / "bpc"),
            "PYTHONPATH": os.pathsep.join(
                part for part in (str(FOLDER.parent), kept.get("PYTHONPATH")) if part
            ),
        }


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_arrays(work: Work, path: Path) -> None:
    """Data, weights and the rows of each step, the same for every peer."""
    draw = np.random.default_rng(SEED)
    data, weights = work.make_data(draw), work.make_weights(draw)
    rows = len(data["target"])
    epochs = -(-ORDER_STEPS * work.batch // rows)
    flat = np.concatenate([draw.permutation(rows) for _ in range(epochs)])
    order = flat[: ORDER_STEPS * work.batch].reshape(ORDER_STEPS, work.batch)
    named = {f"data/{name}": array for name, array in data.items()}
    named |= {f"weights/{name}": array for name, array in weights.items()}
    np.savez(path, order=order.astype(np.int64), **named)


# -- time to the first step -----------------------------------------------------------------------


def time_first_step(run: Run, peer: str) -> tuple[float, dict[str, Any]]:
    """Seconds from the start of a process to its word that one step is done."""
    with tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        child = subprocess.Popen(
            run.command(peer, "first"),
            env=run.environment(peer),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert child.stdout is not None
        with child.stdout:
            line = child.stdout.readline()
            seconds = time.perf_counter() - started
        child.wait()
        return seconds, parse_answer(line, peer, errors)


def time_first_steps(run: Run, found: Found, repeats: int) -> None:
    """Cold: the caches are empty. Warm: the median of `repeats` processes after that one."""
    tell(f"{found.peer}: first step")
    cold, answer = time_first_step(run, found.peer)
    found.missing = answer.get("missing")
    if found.missing is None:
        found.first_cold = cold
        found.first_warm = median(time_first_step(run, found.peer)[0] for _ in range(repeats))


def parse_answer(line: str, peer: str, errors: Any) -> dict[str, Any]:
    if not line:
        errors.seek(0)
        raise PeerError(f"{peer} ended without an answer:\n{errors.read()[-2000:]}")
    answer: dict[str, Any] = json.loads(line)
    return answer


# -- rounds of steps ------------------------------------------------------------------------------


class Server:
    """A peer's process, kept alive between rounds."""

    def __init__(self, run: Run, peer: str, errors: Any):
        self.peer, self._errors = peer, errors
        self.process = subprocess.Popen(
            run.command(peer, "serve"),
            env=run.environment(peer),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self.facts = self._read()

    def take(self, steps: int) -> dict[str, Any]:
        """Seconds and losses of the next steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return parse_answer(self.process.stdout.readline(), self.peer, self._errors)

    def close(self) -> None:
        """The end of its input ends the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextmanager
def serving(run: Run, peer: str) -> Iterator[Server]:
    with tempfile.TemporaryFile("w+") as errors:
        server = Server(run, peer, errors)
        try:
            yield server
        finally:
            server.close()


def time_steps(run: Run, peers: Sequence[Found], steps: int) -> None:
    """Warm every peer up, then let them take turns until each has taken `steps` timed steps."""
    with ExitStack() as stack:
        servers = []
        for found in peers:
            tell(f"{found.peer}: warm-up")
            server = stack.enter_context(serving(run, found.peer))
            found.facts = server.facts
            found.losses = server.take(max(CHECKED_STEPS, min(WARM_UP_STEPS, steps)))["losses"]
            servers.append(server)
        for done in range(0, steps, ROUND_STEPS):
            tell(f"steps {done} of {steps}")
            for found, server in zip(peers, servers, strict=True):
                time.sleep(PAUSE_SECONDS)
                answer = server.take(min(ROUND_STEPS, steps - done))
                found.seconds += answer["seconds"]
                found.losses += answer["losses"]
                found.peak_resident_bytes = answer["peak_resident_bytes"]


# -- what comes of it -----------------------------------------------------------------------------


def find_mismatch(peers: Sequence[Found]) -> str | None:
    """The first loss that is not what the first peer found, in words."""
    for other in peers[1:]:
        pairs = zip(peers[0].losses[:CHECKED_STEPS], other.losses[:CHECKED_STEPS], strict=True)
        for step, (one, two) in enumerate(pairs, 1):
            if not math.isclose(one, two, rel_tol=LOSS_TOLERANCE):
                names = f"{peers[0].peer} {one:.7g}, {other.peer} {two:.7g}"
                return f"losses of step {step} differ: {names}"
    return None


def make_row(found: Found) -> dict[str, Any]:
    if found.missing is not None:
        return {"peer": found.peer, "missing": found.missing}
    low, middle, high = quantiles((1000 * s for s in found.seconds), n=4, method="inclusive")
    return {
        "peer": found.peer,
        "step_ms_median": middle,
        "step_ms_quartiles": [low, high],
        "first_step_seconds": found.first_cold,
        "first_step_warm_seconds": found.first_warm,
        "peak_resident_bytes": found.peak_resident_bytes,
        "steps": len(found.seconds),
        "first_losses": found.losses[:CHECKED_STEPS],
        **found.facts,
    }


def find_ratio(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """bpc's median over that of the fastest peer."""
    times = {row["peer"]: row["step_ms_median"] for row in rows if "missing" not in row}
    own = times.pop("bpc", None)
    return own / min(times.values()) if own is not None and times else None


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole run as the object that `--json` prints."""
    work, load = WORKS[arguments.work], os.getloadavg()[0]
    peers = [Found(peer) for peer in arguments.peers]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Run(arguments.work, folder / "arrays.npz", folder, arguments.threads)
        write_arrays(work, run.arrays)
        # Installed packages have their bytecode; give a checkout's the same.
        compileall.compile_dir(FOLDER.parent / "bpc", quiet=2)
        for found in peers:
            time_first_steps(run, found, arguments.repeats)
        present = [found for found in peers if found.missing is None]
        time_steps(run, present, arguments.steps)
    error = find_mismatch(present)
    rows = [make_row(found) for found in peers]
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "compare",
        "ok": error is None,
        **({"error": error} if error else {}),
        "work": arguments.work,
        "summary": work.summary,
        "processor": processor_name(),
        "threads": arguments.threads,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load_average_before": load,
        "rows": rows,
        "ratio_to_fastest": find_ratio(rows),
    }


def processor_name() -> str:
    """The processor as the system calls it, and its widest vectors."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags", "").split()
    vectors = [name for flag, name in VECTORS if flag in flags][:1]
    return ", ".join([facts.get("model name", platform.machine()), *vectors])


# -- for people -----------------------------------------------------------------------------------


def format_table(result: Mapping[str, Any]) -> str:
    """A table in Markdown, and below it what it comes to."""
    head = f"{result['work']}: {result['summary']}; {result['threads']} threads"
    load = f"load average before the run {result['load_average_before']:.1f}"
    place = f"{result['date']}, {result['processor']}, {load}"
    lines = [
        *(head, place, ""),
        "| peer | step, ms | quartiles | first step, s | warm, s | resident, MiB | versions |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        *(format_row(row) for row in result["rows"]),
    ]
    if result["ratio_to_fastest"] is not None:
        lines += ["", f"bpc takes {result['ratio_to_fastest']:.2f} of the fastest peer's step"]
    if "error" in result:
        lines += ["", f"error: {result['error']}"]
    return "\n".join(lines)


def format_row(row: Mapping[str, Any]) -> str:
    if "missing" in row:
        return f"| {row['peer']} | missing | | | | | {row['missing']} |"
    low, high = row["step_ms_quartiles"]
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    cells = [
        row["peer"],
        f"{row['step_ms_median']:.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{row['first_step_seconds']:.2f}",
        f"{row['first_step_warm_seconds']:.2f}",
        f"{row['peak_resident_bytes'] / 2**20:.0f}",
        f"{versions}; {row['notes']}",
    ]
    return f"| {' | '.join(cells)} |"


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--steps", type=at_least(2), default=200, help="timed steps of each peer")
    parser.add_argument("--threads", type=at_least(1), default=2, help="threads of each peer")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="warm starts of each peer")
    parser.add_argument("--peers", type=peer_names, default=list(PEERS), help=",".join(PEERS))
    return parser.parse_args(words)


def at_least(least: int) -> Any:
    """A reader of whole numbers for argparse."""

    def count(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"at least {least} is needed, found {text}")
        return number

    return count


def peer_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {unknown[0]!r}; known are {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def main() -> int:
    arguments = parse_arguments()
    try:
        result = compare(arguments)
    except PeerError as error:
        tell(str(error))
        return 1
    print(json.dumps(result, indent=2) if arguments.json else format_table(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
