"""Logging in to a node by key: identity files, and what the ssh agent holds. A passphrase is nobody's to type here."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko  # type: ignore[import-untyped]

from cluster.known_hosts import fingerprint

_AGENT_S = 2.0  # a left-over agent socket takes the question and never answers


class LogIn(paramiko.AuthStrategy):  # type: ignore[misc]
    """Tries without a key, then the identity files (by the agent, where it holds them), then the agent's other keys."""

    def __init__(self, options: Mapping[str, Any], user: str) -> None:
        super().__init__(ssh_config=options)
        self.user = user
        self.tried: list[str] = []
        self.notes: list[str] = []
        self._agent = paramiko.agent.AgentSSH()

    def authenticate(self, transport: Any) -> Any:
        try:
            return super().authenticate(transport)
        finally:
            self._agent._close()

    def get_sources(self) -> Iterator[Any]:
        yield paramiko.NoneAuth(self.user)
        explicit = [Path(name).expanduser() for name in self.ssh_config.get("identityfile", []) if name.lower() != "none"]
        defaults = [Path(f"~/.ssh/id_{kind}").expanduser() for kind in ("ed25519", "ecdsa", "rsa")]
        held = {key.asbytes(): key for key in self._agent_keys()}
        for path in explicit or [path for path in defaults if path.is_file()]:
            key = held.pop(_public_blob(path), None) or self._load(path)
            if key is not None:
                yield self._source(f"{path} ({fingerprint(key.get_name(), key.asbytes())})", key)
        if self.ssh_config.get("identitiesonly", "no").lower() != "yes":
            for blob, key in held.items():
                yield self._source(f"agent key {fingerprint(key.get_name(), blob)}", key)

    def _source(self, name: str, key: Any) -> Any:
        self.tried.append(name)
        return paramiko.auth_strategy.InMemoryPrivateKey(self.user, key)

    def _load(self, path: Path) -> Any:
        try:
            return paramiko.PKey.from_path(path)
        except TypeError:  # how the crypto library says that a passphrase is missing
            self.notes.append(f"{path} needs a passphrase: ssh-add {path}")
        except Exception as error:  # a dozen kinds, by format and library version
            self.notes.append(f"{path} cannot be read: {error}")

    def _agent_keys(self) -> Sequence[Any]:
        name = self.ssh_config.get("identityagent", "SSH_AUTH_SOCK")
        path = os.environ.get(name.lstrip("$"), "") if name.lstrip("$") == "SSH_AUTH_SOCK" else os.path.expanduser(name)
        if not path or path.lower() == "none":
            return []
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_AGENT_S)
            connection.connect(path)
            self._agent._connect(connection)
            connection.settimeout(None)  # signing may wait for a person; the connect limit is on it
        except Exception as error:
            self.notes.append(f"the ssh agent at {path} was left out: {str(error) or type(error).__name__}")
            return []
        keys: Sequence[Any] = self._agent.get_keys()
        return keys


def _public_blob(path: Path) -> bytes:
    """The public half of an identity file, from `PATH.pub` or PATH itself; empty when neither holds it."""
    for file in (Path(f"{path}.pub"), path):
        with suppress(OSError, ValueError, IndexError):
            return base64.b64decode(file.read_text().split()[1], validate=True)
    return b""
