"""Files that appear whole or not at all; the one place of a run's calls that change files.

A file or folder is written aside, synced, renamed, and then its parent is synced: after a crash
at any moment the name leads to the whole old or the whole new content.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ASIDE = ".aside-"  # names that begin so are leftovers of a crash, to be ignored and removed

Bytes = bytes | memoryview


class Files:
    """The calls of the system; tests put layers in its place that fail."""

    def create(self, path: Path) -> int:
        """Open a file that must not exist yet."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(path, flags, 0o666)

    def write(self, descriptor: int, data: Bytes) -> int:
        """Write some of the data; how many bytes of it."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Bring a file's content to the disk."""
        os.fsync(descriptor)

    def make_folder(self, path: Path) -> None:
        """Make a folder that must not exist yet."""
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder another name; a file replaces what had it."""
        os.replace(old, new)

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name."""
        os.link(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Bring a folder's names to the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Written:
    """What a file holds: its size and the SHA-256 of its content."""

    size: int
    sha256: str


def write_new(files: Files, path: Path, chunks: Iterable[Bytes]) -> Written:
    """Write and sync a file that must not exist yet.

    Raises:
        OSError: what the system says, with the name of the file.
    """
    digest, size = hashlib.sha256(), 0
    descriptor = files.create(path)
    try:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            digest.update(view)
            size += len(view)
            _write_all(files, descriptor, view)
        files.sync(descriptor)
    except OSError as error:
        raise _named(error, path) from None
    finally:
        os.close(descriptor)
    return Written(size, digest.hexdigest())


def replace_file(files: Files, path: Path, chunks: Iterable[Bytes]) -> Written:
    """Make `path` lead to new content, from one moment to the next.

    Raises:
        OSError: what the system says; the old content is still there, unless the failure came
            after the new one had taken its name.
    """
    written = swap_in(files, path, chunks)
    files.sync_folder(path.parent)
    return written


def swap_in(files: Files, path: Path, chunks: Iterable[Bytes]) -> Written:
    """`replace_file`, but a crash may still bring the old content back.

    Raises:
        OSError: what the system says; the old content is still there.
    """
    aside = path.with_name(f"{ASIDE}{path.name}")
    files.remove(aside)
    try:
        written = write_new(files, aside, chunks)
        files.rename(aside, path)
    except OSError as error:
        _try_remove(files, aside)
        raise _named(error, path) from error  # people know nothing of the file aside
    return written


def copy_file(files: Files, old: Path, new: Path) -> None:
    """A second name for a file that never changes, or a copy where the system has no links."""
    try:
        files.link(old, new)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.ENOENT):
            raise
        with old.open("rb") as source:
            write_new(files, new, iter(lambda: source.read(1 << 20), b""))


def remove_tree(files: Files, path: Path) -> None:
    """Remove a folder of files, or a file; what is not there is no fault."""
    if path.is_symlink() or not path.is_dir():
        files.remove(path)
        return
    for inner in path.iterdir():
        remove_tree(files, inner)
    files.remove_folder(path)


def remove_leftovers(files: Files, folder: Path) -> None:
    """Remove what a crash left half-written; that this fails is no reason to stop."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(ASIDE):
                _try_remove(files, path)


def _write_all(files: Files, descriptor: int, view: memoryview) -> None:
    while view:
        count = files.write(descriptor, view)
        if count <= 0:
            raise OSError(errno.EIO, "nothing was written")
        view = view[count:]


def _try_remove(files: Files, path: Path) -> None:
    try:
        remove_tree(files, path)
    except OSError:
        return


def _named(error: OSError, path: Path) -> OSError:
    return OSError(error.errno, error.strerror or str(error), str(path))
