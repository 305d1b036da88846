"""The whole path for real: `invoke up` over ssh, Docker and vLLM with two ranks; status, logs, bench; `down` leaves nothing.

In containers it serves EXL3 experts with the plugin, and as processes the dense twin without it: the two must say the same.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import exl3, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.twin import Done, User

# The first test's time includes the boot, and on a new machine the making of vLLM's environment.
pytestmark = [pytest.mark.testbed, pytest.mark.timeout(1200)]

URL = f"http://10.77.0.1:{twin.PORT}"
BOOT_S = 240.0  # one boot takes 45 to 110 s on two cores


@pytest.fixture(scope="module")
def ready(testbed: Testbed) -> Testbed:
    """Hosts on which a launch can begin, and nothing on them."""
    twin.prepare(testbed)
    exl3.ensure()
    twin.clear(testbed.hosts)
    return testbed


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    user = User.at(tmp_path_factory.mktemp("user"))
    return User({**user.env, **exl3.SETTINGS})


@pytest.fixture(scope="module")
def booted(ready: Testbed, user: User) -> Iterator[Done]:
    """The one boot in containers that the tests of this file share."""
    yield user.invoke("up")
    twin.clear(ready.hosts)


@pytest.fixture(scope="module")
def served(booted: Done) -> None:
    """A kit that is up, or a failure with what `up` said."""
    if booted.code != 0:
        pytest.fail(f"up ended with {booted.code}\n{booted.err}")


def test_up_ends_ready_and_says_where(booted: Done) -> None:
    print(f"up: {booted.wall_s:.1f} s")
    assert booted.code == 0, booted.err
    assert "started on worker\n" in booted.err
    assert "started on head\n" in booted.err
    assert f": {URL}/v1, model tiny-moe" in booted.err
    assert booted.out == ""
    assert booted.wall_s < BOOT_S


@pytest.mark.usefixtures("served")
def test_up_again_says_that_it_runs(user: User, ready: Testbed) -> None:
    before = [host.run("docker", "ps", "--quiet", "--no-trunc") for host in ready.hosts]
    again = user.invoke("up")
    assert again.code == 0, again.err
    assert f"kit twin is already running: {URL}/v1, model tiny-moe" in again.err
    assert again.wall_s < 6
    assert [host.run("docker", "ps", "--quiet", "--no-trunc") for host in ready.hosts] == before


@pytest.mark.usefixtures("served")
def test_up_with_other_settings_shows_the_difference(user: User, ready: Testbed) -> None:
    other = user.invoke("up", MAX_NUM_SEQS="3")
    assert other.code == 2
    assert "  MAX_NUM_SEQS: 4 -> 3\n" in other.err
    assert "  try: invoke restart" in other.err
    assert [twin.containers(host) for host in ready.hosts] == [["spark-lab-head"], ["spark-lab-worker"]]
    assert [twin.lock(host) for host in ready.hosts] == [None, None]


@pytest.mark.usefixtures("served")
def test_status_shows_both_ranks_soon(user: User) -> None:
    done = user.invoke("status", "--json")
    print(f"status: {done.wall_s:.2f} s")
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    assert (seen["kit"], seen["state"], seen["process"], seen["api"], seen["engine"]) == ("twin", "ready", True, True, True)
    assert [(rank["rank"], rank["role"], rank["state"]) for rank in seen["ranks"]] == [(0, "head", "running"), (1, "worker", "running")]
    assert {rank["record"]["boot"] for rank in seen["ranks"]} == {seen["record"]["boot"]}
    assert done.wall_s < 2


@pytest.mark.usefixtures("served")
def test_logs_of_the_headless_rank(user: User) -> None:
    done = user.invoke("logs", "--rank", "1", "--lines", "200")
    assert done.code == 0, done.err
    assert "vllm" in done.out.lower()
    assert "headless" in done.out
    assert len(done.out.splitlines()) <= 200


@pytest.mark.usefixtures("served")
def test_containers_have_the_production_flags(ready: Testbed) -> None:
    for host, name in zip(ready.hosts, twin.NAMES, strict=True):
        found = json.loads(host.run("docker", "container", "inspect", name))[0]
        flags = found["HostConfig"]
        assert (flags["NetworkMode"], flags["IpcMode"], flags["ShmSize"]) == ("host", "host", 32 << 30)
        assert {limit["Name"]: limit["Hard"] for limit in flags["Ulimits"]} == {"memlock": -1, "stack": 67108864}
        assert [word.removeprefix("CAP_") for word in flags["CapAdd"]] == ["IPC_LOCK"]
        assert (flags["Init"], flags["Privileged"], flags["RestartPolicy"]["Name"]) == (True, False, "no")
        assert flags["DeviceRequests"][0]["Count"] == -1
        assert flags["DeviceRequests"][0]["Capabilities"] == [["gpu"]]
        assert [device["PathOnHost"] for device in flags["Devices"]] == ["/dev/infiniband"]
        assert found["Config"]["StopTimeout"] == 60
        record = json.loads(found["Config"]["Labels"]["spark-lab.record"])
        assert (record["kit"], record["role"]) == ("twin", name.removeprefix("spark-lab-"))
        assert '"ociVersion"' in host.path("/run/nvidia-hook.log").read_text()  # --gpus reached the runtime


def _ask(text: str) -> str:
    body = {"model": "tiny-moe", "messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    content: str = exl3.post(f"{URL}/v1/chat/completions", body)["choices"][0]["message"]["content"]
    return content


def _answers() -> list[exl3.Answer]:
    return [exl3.ask(URL, "tiny-moe", prompt) for prompt in exl3.PROMPTS]


@pytest.fixture(scope="module")
def packed(served: None) -> list[exl3.Answer]:
    """What the EXL3 model says, kept for the comparison with its dense twin, which is served when this one is down."""
    return _answers()


@pytest.mark.usefixtures("packed")
def test_every_rank_runs_the_experts_in_exl3(user: User) -> None:
    for rank in ("0", "1"):
        assert "EXL3 experts run by the torch path" in user.invoke("logs", "--rank", rank, "--lines", "2000").out


@pytest.mark.usefixtures("served")
def test_two_greedy_answers_are_equal() -> None:
    first = _ask("Hello")
    assert len(first) > 8
    assert _ask("Hello") == first
    assert _ask("Something else") != first


@pytest.fixture(scope="module")
def receipt(served: None, user: User, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    out = tmp_path_factory.mktemp("receipts")
    words = "bench --kit twin --phase structured --runs 2 --max-tokens 32 --skip-coherence --out"
    for _ in range(4):
        done = user.invoke(*words.split(), str(out))
        if "the client fell behind" not in done.err:  # other tests have the cores too; such a receipt is kept apart, and it says so
            break
    return done, next(out.glob("*.json"), Path("none"))


def test_bench_writes_a_valid_receipt(receipt: tuple[Done, Path], user: User) -> None:
    """A random model's text may fail the gates on the answers' text, and nothing else may."""
    done, path = receipt
    assert done.code in (0, 1), done.err
    plain = json.loads(path.read_text())
    assert (plain["valid"], plain["invalid_because"]) == (True, [])
    assert plain["protocol"]["dialect"] == "vllm"
    assert plain["summary"]["token_sources"] == ["chunk_usage"]
    assert [run["isolation"]["held"] for run in plain["runs"]] == [True, True]
    assert [run["isolation"]["own_generation"] for run in plain["runs"]] == [True, True]
    assert plain["system"]["kit"] == "twin"
    faults = {word.strip() for gate in plain["failed_gates"] for word in gate.partition(":")[2].split(",")}
    assert faults <= {"broken_utf8", "nan", "empty"}
    assert done.code == bool(faults)
    assert user.invoke("receipt.check", str(path)).code == 0


def test_nothing_private_is_in_the_receipt(receipt: tuple[Done, Path]) -> None:
    text = receipt[1].read_text()
    private = ("10.77.", "spark1", "spark2", "/var/", "/root", "/usr/", "/home", str(twin.ROOT), "ssh_config")
    assert [word for word in private if word in text] == []


@pytest.mark.usefixtures("served")
def test_down_leaves_nothing(user: User, ready: Testbed) -> None:
    """The last test of the shared boot. The logs of both ranks outlive their containers."""
    before = [len(twin.logs(host, name)) for host, name in zip(ready.hosts, twin.NAMES, strict=True)]
    done = user.invoke("down")
    print(f"down: {done.wall_s:.1f} s")
    assert done.code == 0, done.err
    assert "kit twin stopped" in done.err
    assert twin.remains(ready.hosts) == []
    for host, name, count in zip(ready.hosts, twin.NAMES, before, strict=True):
        kept = twin.logs(host, name)
        assert len(kept) == min(count + 1, 10)
        assert "vllm" in kept[-1].read_text(errors="replace").lower()
    assert "Application startup complete" in twin.logs(ready.hosts[0], twin.NAMES[0])[-1].read_text(errors="replace")
    assert user.invoke("status").code == 1
    shown = user.invoke("logs", "--rank", "1")
    assert (shown.code, "vllm" in shown.out.lower()) == (0, True)
    again = user.invoke("down")
    assert (again.code, "kit twin was not running" in again.err) == (0, True)


# --- the other runtime: a process in a virtual environment, no container; and the dense model, in an environment without the plugin ---

VENVS = {"RUNTIME": "process", "HEAD_VENV": str(twin.VENV), "WORKER_VENV": str(twin.VENV), "MODEL": str(exl3.DENSE), "QUANTIZATION": ""}


def _record(host: Host, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(host.path(f"/root/.local/state/spark-lab/twin/{name}.json").read_text())
    return content


def assert_alike(packed: list[exl3.Answer], dense: list[exl3.Answer]) -> None:
    """Two hosts each with half of every expert say token by token what the dense twin says."""
    for found, wanted in zip(packed, dense, strict=True):
        assert min(wanted.leads) > 10 * exl3.NEAR, "the model is too close to a tie to tell"
        assert found.ids == wanted.ids
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=exl3.NEAR)
    assert packed[0].ids != packed[1].ids


def test_process_runtime_up_status_down(ready: Testbed, user: User, packed: list[exl3.Answer]) -> None:
    begin = time.monotonic()
    user.invoke("down")  # where this test runs alone, what `packed` asked is still up
    try:
        up = user.invoke("up", **VENVS)
        assert up.code == 0, up.err
        seen = json.loads(user.invoke("status", "--json", **VENVS).out)
        assert (seen["state"], [rank["state"] for rank in seen["ranks"]]) == ("ready", ["running", "running"])
        assert [twin.containers(host) for host in ready.hosts] == [[], []]
        assert [_record(host, name)["rank"] for host, name in zip(ready.hosts, twin.NAMES, strict=True)] == [0, 1]
        assert_alike(packed, _answers())
        logs = user.invoke("logs", "--rank", "1", **VENVS)
        assert (logs.code, "vllm" in logs.out.lower()) == (0, True)
        down = user.invoke("down", **VENVS)
        assert (down.code, "kit twin stopped" in down.err) == (0, True), down.err
        assert twin.remains(ready.hosts) == []
        assert [file.name for host in ready.hosts for file in host.path("/root/.local/state/spark-lab/twin").glob("spark-lab-*")] == []
    finally:
        twin.clear(ready.hosts)
    print(f"process runtime, up to down: {time.monotonic() - begin:.1f} s")
