"""runc-clipped asks for no more than this process may give, and leaves everything else alone."""

import importlib.machinery
import importlib.util
import resource
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def clipped(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = Path(__file__).parent / "bin/runc-clipped"
    loader = importlib.machinery.SourceFileLoader("runc_clipped", str(path))
    spec = importlib.util.spec_from_loader("runc_clipped", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_rlimits_come_down_to_ours(clipped: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {resource.RLIMIT_MEMLOCK: (4096, 8192), resource.RLIMIT_NOFILE: (-1, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", ours.__getitem__)
    endless = 2**64 - 1
    wanted = [
        {"type": "RLIMIT_MEMLOCK", "hard": endless, "soft": endless},
        {"type": "RLIMIT_MEMLOCK", "hard": 100, "soft": 50},
        {"type": "RLIMIT_NOFILE", "hard": 7, "soft": 7},
        {"type": "RLIMIT_UNHEARD_OF", "hard": 7, "soft": 7},
    ]
    assert clipped.clip({"rlimits": wanted})["rlimits"] == [
        {"type": "RLIMIT_MEMLOCK", "hard": 8192, "soft": 8192},
        *wanted[1:],
    ]


def test_capabilities_come_down_to_ours(clipped: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipped, "bounding_set", lambda: {"CAP_CHOWN"})
    process: dict[str, Any] = {"args": ["sh"], "capabilities": {"bounding": ["CAP_SYS_RESOURCE", "CAP_CHOWN"]}}
    assert clipped.clip(process) == {"args": ["sh"], "capabilities": {"bounding": ["CAP_CHOWN"]}, "rlimits": []}


def test_numbers_of_capabilities(clipped: ModuleType) -> None:
    """As in linux/capability.h."""
    numbers = {name: number for number, name in enumerate(clipped.CAPABILITIES)}
    assert (numbers["CHOWN"], numbers["SYS_ADMIN"], numbers["SYS_RESOURCE"]) == (0, 21, 24)
    assert (numbers["AUDIT_READ"], numbers["CHECKPOINT_RESTORE"]) == (37, 40)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["--root", "/r", "create", "--bundle", "/b", "id"], Path("/b")),
        (["create", "--bundle=/b", "id"], Path("/b")),
        (["run", "-b", "/b", "id"], Path("/b")),
        (["run", "id"], Path()),
        (["delete", "--force", "id"], None),
    ],
)
def test_which_calls_carry_a_bundle(clipped: ModuleType, words: list[str], folder: Path | None) -> None:
    assert clipped.bundle(words) == folder
