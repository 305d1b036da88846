"""Who measured: this tool's version, commit and sources. And what must not leave the machine."""

from __future__ import annotations

import functools
import getpass
import hashlib
import ipaddress
import platform
import re
import socket
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from bench.receipt import Tool

ROOT = Path(__file__).resolve().parent.parent
_MAYBE_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)|(?<!\w)[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*")


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def sources_sha256() -> str:
    """One hash over the package's Python and workload files: two receipts with the same value were made by the same code."""
    folder = Path(__file__).resolve().parent
    files = sorted([*folder.glob("**/*.py"), *folder.glob("workloads/*.toml")])
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def tool() -> Tool:
    """The measuring side of a receipt. The commit is None outside a git checkout."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return Tool(
        name="spark-lab",
        version=tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
        git_commit=_git("rev-parse", "HEAD"),
        git_dirty=None if changed is None else bool(changed),
        bench_sha256=sources_sha256(),
        client="spark-lab lean",
        python=platform.python_version(),
    )


def without_private(value: Any) -> Any:
    """Plain data in which the user's name, home folder, host name and every IP address is replaced by `(removed)`."""
    if isinstance(value, dict):
        return {key: without_private(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_private(inner) for inner in value]
    if not isinstance(value, str):
        return value
    for private in _private_words():
        value = re.sub(rf"(?<!\w){re.escape(private)}(?!\w)", "(removed)", value)
    return _MAYBE_ADDRESS.sub(_without_address, value)


def _without_address(found: re.Match[str]) -> str:
    try:
        ipaddress.ip_address(found[0])
    except ValueError:
        return found[0]
    return "(removed)"


@functools.cache
def _private_words() -> tuple[str, ...]:
    """Longest first, so that the home folder goes before the user's name inside it."""
    host = socket.gethostname()
    words = {str(Path.home()), host, host.split(".")[0], _user()} - {"", "/", "localhost"}
    return tuple(sorted(words, key=len, reverse=True))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
