"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> Path:
    """Write a file beside its place and rename it; the folder is made.

    Raises:
        OSError: the system refuses; a former file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        scratch.chmod(0o644 & ~_umask())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return path


def to_json(data: Any) -> str:
    """Plain data as text: keys in the order given, lists of scalars on one line."""
    return _render(data, "") + "\n"


def _render(data: Any, by: str) -> str:
    inner = by + "  "
    if isinstance(data, dict) and data:
        items = [f"{inner}{json.dumps(key)}: {_render(value, inner)}" for key, value in data.items()]
        flat = "{" + ", ".join(item.strip() for item in items) + "}"
        fits = all(not isinstance(value, dict | list) for value in data.values())
        if fits and len(flat) + len(by) <= 100:
            return flat
        return "{\n" + ",\n".join(items) + f"\n{by}}}"
    if isinstance(data, list) and any(isinstance(item, dict | list) for item in data):
        return "[\n" + ",\n".join(inner + _render(item, inner) for item in data) + f"\n{by}]"
    return json.dumps(data, allow_nan=False, ensure_ascii=False)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
