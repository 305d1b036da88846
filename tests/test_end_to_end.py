"""The main job on the real model, as a user runs it: up, bench, receipt.check, table, ask, down."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.model
T = TypeVar("T")


@dataclass(frozen=True)
class User:
    """One user: own state folder and port. The model cache is the real one, so that the download happens once."""

    env: dict[str, str]
    out: Path

    def invoke(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True, env=self.env, timeout=150)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    folder = tmp_path_factory.mktemp("user")
    port = free_port()
    someone = User({**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PORT": str(port), "KIT": "local"}, folder / "receipts")
    started = someone.invoke("up")
    assert started.returncode == 0, started.stderr
    yield someone
    stopped = someone.invoke("down")
    assert stopped.returncode == 0, stopped.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "something still listens after down"


def slots(user: User) -> list[dict[str, Any]]:
    """What the server says of each request it may work on, also while it computes."""
    with urllib.request.urlopen(f"http://127.0.0.1:{user.env['PORT']}/slots", timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def wait_for(seen: Callable[[], T]) -> T:
    """The first result that is true; fails after 60 s."""
    deadline = time.monotonic() + 60
    while not (found := seen()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def receipt(user: User) -> Path:
    done = user.invoke("bench", "--phase", "prose", "--runs", "2", "--max-tokens", "48", "--out", str(user.out))
    assert done.returncode == 0, done.stderr
    (path,) = user.out.glob("*.json")
    return path


def test_the_receipt_holds_what_the_local_engine_can_know(receipt: Path) -> None:
    plain = json.loads(receipt.read_text())
    assert plain["valid"]
    assert plain["protocol"]["dialect"] == "llamacpp"
    assert plain["summary"]["token_sources"] == ["chunk_timings"]
    assert plain["summary"]["runs"] == 2
    assert [run["isolation"]["held"] for run in plain["runs"]] == [True, True]
    assert plain["system"]["kit"] == "local"
    assert plain["system"]["engine"].startswith("xllamacpp ")
    assert plain["system"]["weights"]["sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert plain["system"]["settings"]["spec_method"] == "ngram"
    assert {probe["id"]: probe["passed"] for probe in plain["coherence"]} == {"capital": True, "count": True, "sky": True}


def test_nothing_private_is_in_the_receipt(receipt: Path) -> None:
    system = json.dumps(json.loads(receipt.read_text())["system"])
    for private in (str(Path.home()), socket.gethostname(), "127.0.0.1"):
        assert private not in system


def test_it_checks_and_makes_a_table(user: User, receipt: Path) -> None:
    checked = user.invoke("receipt.check", str(receipt))
    assert (checked.returncode, checked.stderr) == (0, "")
    shown = user.invoke("table", str(receipt))
    assert shown.returncode == 0
    assert f"| {json.loads(receipt.read_text())['id']} |" in shown.stdout


def test_the_command_of_the_server_is_in_the_receipt_without_its_paths(receipt: Path) -> None:
    argv = json.loads(receipt.read_text())["system"]["argv"]
    assert argv[1:3] == ["-m", "cluster.engines.llama_server"]
    assert argv[argv.index("--model") + 1] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert argv[argv.index("--host") + 1] == "-"
    assert argv[argv.index("--threads") + 1] == "1"
    assert not [word for word in argv if "/" in word]


def test_ctrl_c_during_a_measurement_leaves_the_server_alone(user: User, tmp_path: Path) -> None:
    words = ["bench", "--phase", "prefill", "--depths", "3000", "--runs", "3", "--out", str(tmp_path)]
    child = subprocess.Popen([sys.executable, "-m", "invoke", *words], cwd=ROOT, env=user.env, stderr=subprocess.PIPE, text=True)
    (long,) = wait_for(lambda: [slot for slot in slots(user) if slot["is_processing"] and slot["n_prompt_tokens"] > 400])
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 3
    assert "INVALID, kept apart" in said
    assert "Traceback" not in said
    (path,) = (tmp_path / "invalid").glob("*.json")
    assert not json.loads(path.read_text())["valid"]
    assert user.invoke("receipt.check", str(path)).returncode == 0
    wait_for(lambda: not any(slot["is_processing"] for slot in slots(user)))
    assert long["n_prompt_tokens"] < 600  # 512 at a time: so soon the server sees that a client has gone
    status = user.invoke("status")
    assert status.returncode == 0, status.stdout + status.stderr


def test_ask_answers(user: User) -> None:
    done = user.invoke("ask", "Name the capital city of France.", "--max-tokens", "24")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 5
    assert "tok/s" in done.stderr


def test_bench_without_a_server_of_ours_still_measures_by_url(user: User, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{user.env['PORT']}"
    done = user.invoke("bench", "--base-url", url, "--runs", "1", "--max-tokens", "16", "--phase", "structured", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["system"]["kit"] is None
