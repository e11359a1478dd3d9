"""Ten steps of the MNIST network on real images: the simulator, the CPU and PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from bpc.api import compile as compile_net

SPEC = Path(__file__).parents[2] / "specs" / "mnist_mlp.yaml"
STEPS, WARMUP, LR, CLIP = 10, 30, 1e-3, 1.0

Weights = dict[str, NDArray[Any]]


def rows_of(step: int, count: int) -> NDArray[np.int64]:
    """Every batch 128 rows but the last, which is short."""
    rows = np.random.default_rng(step).permutation(count)[:128]
    return rows if step < STEPS else rows[:37]


def run_bpc(device: str) -> tuple[Weights, Weights, list[float]]:
    """Weights before and after, and the loss of each step."""
    net = compile_net(SPEC, device=device)
    start, stepper = net.parameters(), net.stepper(updates=STEPS)
    losses = []
    for step in range(1, STEPS + 1):
        assert stepper.step(rows_of(step, net.description.train_rows))
        losses.append(stepper.loss())
    return start, net.parameters(), losses


def run_torch(start: Mapping[str, NDArray[Any]], dtype: torch.dtype) -> tuple[Weights, list[float]]:
    part = compile_net(SPEC, device="reference").data.train
    named = {k: torch.tensor(v, dtype=dtype, requires_grad=True) for k, v in start.items()}
    weights = list(named.values())
    optimizer = torch.optim.Adam(weights)
    losses = []
    for step in range(1, STEPS + 1):
        rows = rows_of(step, len(part["target"]))
        x = torch.tensor(part["x"][rows], dtype=dtype)
        for k in range(0, len(weights), 2):
            x = x @ weights[k] + weights[k + 1]
            x = torch.relu(x) if k + 2 < len(weights) else x
        loss = F.cross_entropy(x, torch.tensor(part["target"][rows]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.param_groups[0]["lr"] = LR * min(1.0, step / WARMUP)
        optimizer.step()
        losses.append(loss.item())
    return {k: v.detach().numpy() for k, v in named.items()}, losses


def distance(found: Weights, exact: Weights) -> tuple[float, float]:
    """Worst and root mean square difference of a tensor, over its largest weight."""
    worst = mean = 0.0
    for name, want in exact.items():
        off = (found[name].astype(np.float64) - want) / np.abs(want).max()
        worst = max(worst, float(np.abs(off).max()))
        mean = max(mean, float(np.sqrt(np.mean(off * off))))
    return worst, mean


def test_ten_steps_on_real_images() -> None:
    """As close to float64 as PyTorch's float32 is, which sums in an order of its own, times 4."""
    start, sim, losses = run_bpc("sim")
    _, cpu, cpu_losses = run_bpc("cpu")
    assert losses == cpu_losses
    assert all(np.array_equal(sim[name], cpu[name]) for name in cpu)
    exact, exact_losses = run_torch(start, torch.float64)
    narrow, narrow_losses = run_torch(start, torch.float32)
    moved = distance(start, exact)
    here, peer = distance(sim, exact), distance(narrow, exact)
    assert here[0] <= 4 * peer[0]
    assert here[1] <= 4 * peer[1]
    assert max(here) < 1e-2 * max(moved), "rounding is small beside what was learnt"
    off = np.abs(np.subtract(losses, exact_losses) / exact_losses)
    peer_off = np.abs(np.subtract(narrow_losses, exact_losses) / exact_losses)
    assert off.max() <= 4 * max(peer_off.max(), np.finfo(np.float32).eps)
    assert losses[-1] < 0.9 * losses[0]
