"""Reading OpenSSH client configuration, with the `Include` that paramiko leaves out."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko  # type: ignore[import-untyped]

from cluster.errors import Unreachable
from cluster.transport import SshTarget


def paths(options: Mapping[str, Any], key: str, default: str) -> list[Path]:
    words = shlex.split(options.get(key, default))
    return [Path(word.replace("%d", "~")).expanduser() for word in words if word.lower() != "none"]


def _config_lines(path: Path, base: Path, depth: int = 0) -> Iterator[str]:
    """The lines of an ssh config with `Include`, which paramiko ignores. A Host block inside one is not bound to the block around it."""
    block = "Host *"
    for line in path.read_text(errors="replace").splitlines():
        word, *rest = line.split(None, 1) or [""]
        if word.lower() in ("host", "match"):
            block = line
        if word.lower() != "include" or depth > 8:
            yield line
            continue
        for name in shlex.split("".join(rest)):
            for found in filter(os.path.isfile, sorted(glob.glob(str(base / os.path.expanduser(name))))):
                yield from _config_lines(Path(found), base, depth + 1)
        yield block


def read(target: SshTarget) -> Any:
    """paramiko's configuration, from `target.ssh_config` or else from the user's and the system's file. Raises Unreachable."""
    user, system = Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")
    files = [Path(target.ssh_config).expanduser()] if target.ssh_config else [path for path in (user, system) if path.is_file()]
    parsed = paramiko.SSHConfig()
    for path in files:
        try:
            parsed.parse(_config_lines(path, system.parent if path == system else user.parent))
        except (OSError, ValueError, paramiko.SSHException) as error:
            raise Unreachable(f"the ssh config {path} cannot be used: {error}", f"ssh -F {path} -G {target.host}") from error
    return parsed
