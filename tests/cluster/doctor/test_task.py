"""`invoke doctor` as a user calls it, on this machine."""

import json
import socket
from pathlib import Path

import pytest

from tests.cluster.support import Lab
from tests.ports import free_port


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, free_port())


def test_the_local_kit_is_healthy(lab: Lab) -> None:
    done = lab.run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kit local: 0 errors, 0 warnings, 1 info\ninfo  memory  local  ")
    assert list(lab.state.iterdir()) == []


def test_json_and_exit_code_with_an_error(lab: Lab) -> None:
    """A held port on this machine."""
    with socket.create_server(("127.0.0.1", lab.port)):
        done = lab.run("doctor", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["kit"] == "local"
    first = told["findings"][0]
    assert (first["id"], first["level"], first["where"]) == ("port-held", "error", "local")
    assert set(first) == {"id", "level", "where", "what", "why", "try"}


def test_without_addresses_the_settings_are_the_finding(lab: Lab) -> None:
    done = lab.run("doctor", "--json", KIT="spark2")
    assert done.returncode == 1, done.stderr
    found = {(row["id"], row["what"].partition(":")[0]) for row in json.loads(done.stdout)["findings"]}
    assert ("settings-refused", "addresses-missing") in found
    assert "Traceback" not in done.stderr


def test_nodes_that_are_not_there_are_findings(lab: Lab) -> None:
    """TEST-NET addresses of nobody; both nodes are reported, nothing is raised."""
    nobody = {"KIT": "spark2", "HEAD_IP": "127.0.0.2", "HEAD_SSH": "127.0.0.1:1", "WORKER_IP": "127.0.0.3", "WORKER_SSH": "127.0.0.1:1"}
    done = lab.run("doctor", "--json", **nobody)
    assert done.returncode == 1, done.stderr
    found = [(row["id"], row["where"]) for row in json.loads(done.stdout)["findings"] if row["id"] == "node-unreachable"]
    assert found == [("node-unreachable", "head"), ("node-unreachable", "worker")]
    assert "Traceback" not in done.stderr
