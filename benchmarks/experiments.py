"""See reported experiments again: figures, plots and the tables of docs/experiments.md.

    python benchmarks/experiments.py                          # all of them
    python benchmarks/experiments.py warmup clipping --seeds 5
    python benchmarks/experiments.py --stored                 # plots and page from stored figures

Each experiment leaves NAME.json and NAME.svg in the folder `--out`; beside the folder, the page of
the same name gets their tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # so that a clone runs without being installed
    sys.path.insert(0, str(ROOT))

import experiment_plans as plans  # noqa: E402
import experiment_training as training  # noqa: E402
from experiment_page import embed  # noqa: E402

Sheet = dict[str, Any]
SCHEMA_VERSION = 1
EXPERIMENTS: dict[str, Callable[[int], Sheet]] = {
    "initialisations": training.initialisations,
    "activations": training.activations,
    "learning_rates": training.learning_rates,
    "warmup": training.warmup,
    "clipping": training.clipping,
    "norm_order": training.norm_order,
    "checkpoints": plans.checkpoints,
    "mask_bytes": plans.mask_bytes,
    "worked": plans.worked,
}
EXACT = ("mask_bytes", "worked")  # nothing is drawn, so that one run says all


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_arguments(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    sheets: dict[str, Sheet] = {}
    for name in options.names or EXPERIMENTS:
        sheets[name] = load(options.out, name) if options.stored else run(name, options.seeds)
        store(options.out, name, sheets[name], draw=not options.no_plots)
    write_page(options.out)
    if options.json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, "experiments": sheets}))
    return 0


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--json", action="store_true", help="print all figures as one object")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "experiments")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each case (3)")
    parser.add_argument("--stored", action="store_true", help="run nothing, use what is stored")
    parser.add_argument("--no-plots", action="store_true", help="without matplotlib")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in EXPERIMENTS]:
        parser.error(f"there is no experiment {unknown[0]}; known are {', '.join(EXPERIMENTS)}")
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}, at least 1 is needed")
    return options


def run(name: str, seeds: int) -> Sheet:
    """One experiment's sheet: seeds, seconds, spec, columns, rows, curves, axes."""
    start = time.perf_counter()
    sheet = EXPERIMENTS[name](seeds)
    seconds = round(time.perf_counter() - start, 1)
    print(f"{name}: {seconds} s", file=sys.stderr, flush=True)
    return {"name": name, "seeds": 1 if name in EXACT else seeds, "seconds": seconds, **sheet}


def load(folder: Path, name: str) -> Sheet:
    sheet: Sheet = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return sheet


def store(folder: Path, name: str, sheet: Sheet, draw: bool) -> None:
    text = json.dumps(sheet, indent=1, allow_nan=False)
    (folder / f"{name}.json").write_text(compact(text) + "\n", encoding="utf-8")
    if draw:
        from experiment_plots import draw as draw_plot

        draw_plot(name, sheet, folder / f"{name}.svg")


def compact(text: str) -> str:
    """Lists of numbers on one line each, so that a difference shows whole curves."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        bare = line.strip()
        if inside:
            lines[-1] += bare + (" " if bare.endswith(",") else "")
            inside = not bare.startswith("]")
        else:
            lines.append(line)
            inside = bare.endswith("[") and not bare.startswith('"rows"')
    return "\n".join(line.rstrip() for line in lines)


def write_page(folder: Path) -> None:
    """The page beside the folder, with the tables of all stored figures."""
    page = folder.with_suffix(".md")
    if page.exists():
        sheets = {path.stem: load(folder, path.stem) for path in sorted(folder.glob("*.json"))}
        text = page.read_text(encoding="utf-8")
        page.write_text(embed(text, sheets), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
