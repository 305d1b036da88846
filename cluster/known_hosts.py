"""Reading known_hosts files: which lines are about a host. Pure but for the reading."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KnownKey:
    """One known_hosts line about the wanted host."""

    where: str
    path: Path
    kind: str
    blob: bytes
    revoked: bool


def known_keys(files: Sequence[Path], name: str) -> list[KnownKey]:
    """The lines about `name` (`host` or `[host]:port`): plain, hashed, by pattern, and @revoked. @cert-authority lines are passed over."""
    return [key for path in files if path.is_file() for key in _known_in(path, name)]


def _known_in(path: Path, name: str) -> Iterator[KnownKey]:
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", "@revoked") or not _names_match(words[0], name):
            continue
        with suppress(ValueError):
            yield KnownKey(f"{path} line {number}", path, words[1], base64.b64decode(words[2]), bool(marker))


def _names_match(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        with suppress(ValueError):
            salt, digest = (base64.b64decode(part) for part in names[3:].split("|"))
            return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
        return False
    matches = [pattern.startswith("!") for pattern in names.lower().split(",") if _glob_match(pattern.lstrip("!"), name.lower())]
    return bool(matches) and not any(matches)


def _glob_match(pattern: str, name: str) -> bool:
    """`*` and `?` only: the brackets of `[host]:port` are no character class, as they would be to fnmatch."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def fingerprint(kind: str, blob: bytes) -> str:
    """Type and hash of a public key, as `ssh-keygen -l` writes them."""
    return f"{kind} SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"
