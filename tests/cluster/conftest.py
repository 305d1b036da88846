"""Two real sshd per module, and a user of theirs with a home and keys of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.sshd import Client, Sshd, new_client, two_servers

Servers = tuple[Path, tuple[Sshd, Sshd]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    yield from two_servers(tmp_path_factory.mktemp("sshd"))


@pytest.fixture
def client(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return new_client(tmp_path / "me", *servers)
