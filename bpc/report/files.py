"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from errno import EISDIR
from pathlib import Path
from typing import Any

WIDTH = 180  # columns of a JSON line, at most, where it can be broken


def write_text(path: Path, text: str) -> Path:
    """Write a file beside its place and rename it; the folder is made.

    Raises:
        OSError: the system refuses; a former file is unchanged.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_beside(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:  # people know nothing of the file beside it
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def _write_beside(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        scratch.chmod(0o644 & ~_umask())
        os.replace(scratch, path)
    except BaseException:  # of whatever kind: nothing half written stays
        scratch.unlink(missing_ok=True)
        raise


def to_json(data: Any) -> str:
    """Plain data as text: keys in the order given, what fits into one line on one line."""
    return _render(data, "") + "\n"


def _render(data: Any, by: str) -> str:
    flat = json.dumps(data, allow_nan=False, ensure_ascii=False)
    if not isinstance(data, dict | list):
        return flat
    if len(by) + len(flat) <= WIDTH and not _is_nested(data):
        return flat
    inner = by + "  "
    if isinstance(data, dict):
        items = [f"{json.dumps(key)}: {_render(value, inner)}" for key, value in data.items()]
        opened, closed = "{", "}"
    else:
        items = [_render(item, inner) for item in data]
        opened, closed = "[", "]"
    return f"{opened}\n" + ",\n".join(inner + item for item in items) + f"\n{by}{closed}"


def _is_nested(data: dict[str, Any] | list[Any]) -> bool:
    """Whether a part has parts that have parts, or the parts of a list are mappings."""
    if isinstance(data, list):
        return any(isinstance(part, dict | list) for part in data)
    inner = [part for part in data.values() if isinstance(part, dict | list)]
    return any(_is_nested(part) for part in inner)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
