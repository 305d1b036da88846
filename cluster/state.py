"""What the launcher remembers on this machine between calls: the run directory of a kit, and its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import LaunchError


def run_dir(kit: str) -> Path:
    """$XDG_STATE_HOME/spark-lab/KIT: records and logs. Shared by all checkouts of one user, so two cannot fight over a port."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "spark-lab" / kit


@contextlib.contextmanager
def lock(kit: str, name: str = "lock", who: str = "another command is working on") -> Iterator[None]:
    """Hold the kit's lock of that name. Raises LaunchError naming the holder at once when another command has it.

    The kernel drops the lock with the process that holds it, so there is no stale lock to clean up.
    """
    folder = run_dir(kit)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / name).open("a+")
    except OSError as error:
        raise LaunchError(f"cannot use the state folder {folder}: {error}", hint="name another one in XDG_STATE_HOME") from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise LaunchError(f"{who} kit {kit} (pid {file.read().strip() or 'unknown'})", hint="wait for it to finish") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
