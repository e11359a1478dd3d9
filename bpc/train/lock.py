"""One process at a time trains into a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from bpc.errors import UsageError
from bpc.train.faults import IN_USE

LOCK_FILE = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class _Owner:
    """Who holds a lock. A process number is used again, with another start."""

    host: str
    pid: int
    start: str

    @classmethod
    def this(cls) -> _Owner:
        return cls(socket.gethostname(), os.getpid(), _start_of(os.getpid()))

    @classmethod
    def read(cls, path: Path) -> _Owner | None:
        """What a lock file says; None if nothing or nonsense."""
        try:
            words = path.read_bytes()[:400].decode("ascii", "replace").split()
        except OSError:
            return None
        if len(words) != 3 or not (words[1].isascii() and words[1].isdigit()):
            return None
        return cls(words[0], int(words[1][:9]), words[2])

    def is_alive(self) -> bool:
        """Whether the process runs; on another machine nobody can tell, so yes."""
        return self.host != socket.gethostname() or _start_of(self.pid) == self.start

    def encode(self) -> bytes:
        return f"{self.host} {self.pid} {self.start}\n".encode()


class FolderLock:
    """Held from its making to `release`, or to the end of the process, however it ends.

    The system's own lock on the file decides, which no dead process holds; where a file system
    has none, the process that the file names does.
    """

    def __init__(self, folder: Path):
        """Take the lock.

        Raises:
            UsageError: another process has it.
            OSError: the folder cannot be written.
        """
        self._path = folder / LOCK_FILE
        self._descriptor = self._take(folder)

    def release(self) -> None:
        """Let others in."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, folder: Path) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _lock(descriptor, self._path, folder)
                if _is_at(descriptor, self._path):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, _Owner.this().encode(), 0)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last holder removed it between our opening and locking it


def is_locked(folder: Path) -> bool:
    """Whether a process trains into the folder now."""
    if not (folder / LOCK_FILE).is_file():
        return False
    try:
        FolderLock(folder).release()
    except UsageError:
        return True
    return False


def _lock(descriptor: int, path: Path, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = _Owner.read(path)
        if error.errno in _NO_LOCKS and (owner is None or not owner.is_alive()):
            return
        if error.errno not in (*_NO_LOCKS, errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise _refuse(folder, owner) from None


def _refuse(folder: Path, owner: _Owner | None) -> UsageError:
    who = f"process {owner.pid} on {owner.host}" if owner else "another process"
    error = UsageError.at(
        IN_USE,
        f"{folder} is in use: {who} trains into it",
        None,
        help="wait for it, stop it, or name another folder",
    )
    assert isinstance(error, UsageError)
    return error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _start_of(pid: int) -> str:
    """When a process started, in ticks since the machine did; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # The second field is the command in brackets, which may hold anything; start is the 22nd.
    fields = text.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
