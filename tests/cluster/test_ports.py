"""Who holds a port: real listeners of ours and of others, IPv4 and IPv6, and what `up` says about them."""

import getpass
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cluster import lifecycle, session, settings, status
from cluster.errors import LaunchError
from cluster.probe import Probe
from tests.cluster.support import Node, eventually, kill_session
from tests.ports import free_port

SERVE = "from http.server import *; import sys; HTTPServer(('127.0.0.1', int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.clean_up()


def listener(address: str) -> socket.socket:
    """A socket of this process that listens on a free port of `address`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {address} here: {error}")


def test_free_port_has_no_holder(node: Node) -> None:
    assert node.probe(free_port())["holder"] is None


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::"])
def test_holder_that_is_not_ours(node: Node, address: str) -> None:
    with closing(listener(address)) as sock:
        seen = node.probe(sock.getsockname()[1])
    assert seen["holder_is_ours"] is False
    assert (seen["holder"]["pid"], seen["holder"]["sid"]) == (os.getpid(), os.getsid(0))
    assert seen["holder"]["user"] == getpass.getuser()
    assert "pytest" in seen["holder"]["command"]


def test_connected_socket_is_no_listener(node: Node) -> None:
    with closing(listener("127.0.0.1")) as server, socket.create_connection(server.getsockname()[:2]) as client:
        assert node.probe(client.getsockname()[1])["holder"] is None


def test_holder_that_is_ours(node: Node) -> None:
    port = free_port()
    record = node.python(SERVE, str(port), port=port)["record"]
    eventually(lambda: node.probe()["holder"])  # without a port it looks at the record's
    seen = node.probe()
    assert seen["holder_is_ours"] is True
    assert seen["holder"]["sid"] == record["pid"]
    assert seen["holder"]["pid"] in seen["pids"]
    assert seen["holder"]["command"].endswith(f" {port}")


def test_holder_with_our_dead_record_is_not_ours(node: Node) -> None:
    node.python("pass")
    node.ended()
    with closing(listener("127.0.0.1")) as sock:
        assert node.probe(sock.getsockname()[1])["holder_is_ours"] is False


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[session.Cluster]:
    """The local kit on a free port, its state in a folder of its own, nothing running."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with session.opened(settings.load({"kit": "local", "port": str(free_port())}, {}, tmp_path / "none")) as opened:
        yield opened


def test_status_of_nothing(cluster: session.Cluster) -> None:
    seen = status.look(cluster)
    assert (seen.state, seen.process, seen.api, seen.engine, seen.detail, seen.ready) == ("stopped", False, False, None, "", False)


def test_foreign_holder_is_named_and_left_alone(cluster: session.Cluster) -> None:
    port = cluster.effective.settings.port
    with subprocess.Popen([sys.executable, "-c", SERVE, str(port)], start_new_session=True) as stranger:
        try:
            eventually(lambda: cluster.probes()[0]["local"].holder)
            assert status.look(cluster).detail == f"port {port} is held by pid {stranger.pid}, not ours"
            with pytest.raises(LaunchError, match=rf"local: port {port} is in use by pid {stranger.pid} of \S+: .*HTTPServer"):
                lifecycle.up(cluster, lambda _: None)
            lifecycle.down(cluster, lambda _: None)
            assert stranger.poll() is None
        finally:
            kill_session(stranger.pid)


ENDINGS = {
    None: "ended without an exit code: killed together with its session, or the machine restarted",
    0: "exit 0",
    1: "exit 1",
    128: "exit 128",
    137: "killed by SIGKILL",
    139: "killed by SIGSEGV",
    255: "exit 255",
}


@pytest.mark.parametrize(("code", "words"), ENDINGS.items())
def test_ending_in_words(code: int | None, words: str) -> None:
    assert Probe("local", {"pid": 1}, (), code, False, None, False, (), None, None).ending() == words
