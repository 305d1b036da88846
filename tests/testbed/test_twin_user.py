"""Nodes that differ: the worker is reached as another user, on another port, with another home, engine folder and cache.

The engine here is a few lines of Python in the place of `bin/vllm`: this is about who runs where, not about vLLM.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.testbed import twin
from tests.testbed.host import Host, public_key
from tests.testbed.hosts import Testbed
from tests.testbed.shell import PATH
from tests.testbed.twin import User

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(600)]

HOME, UID = "/tmp/ada-home", 4242
SSHD = """\
Port 2222
ListenAddress 10.77.0.2
HostKey {root}/ssh/host_key
PidFile none
AuthorizedKeysFile {home}/.ssh/authorized_keys
PasswordAuthentication no
UsePAM no
StrictModes no
AllowUsers ada
SetEnv PATH={path}
"""
ENGINE = """\
#!/usr/bin/python3
import http.server, os, sys
print("uid", os.getuid(), "home", os.path.expanduser("~"), "in", os.getcwd(), flush=True)
print("cache", os.environ["VLLM_CACHE_ROOT"], "hub", os.environ["HF_HOME"], flush=True)
if "--headless" in sys.argv:
    import time
    time.sleep(3600)
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("0.0.0.0", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""


@dataclass(frozen=True)
class Site:
    """The two hosts, and the settings under which they are used."""

    head: Host
    worker: Host
    settings: dict[str, str]


def _engine(bin_folder: Path, owner: int) -> None:
    bin_folder.mkdir(parents=True, exist_ok=True)
    (bin_folder / "vllm").write_text(ENGINE)
    (bin_folder / "vllm").chmod(0o755)
    _give(bin_folder.parent, owner)


def _give(folder: Path, owner: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner, owner)


def _user_ada(bed: Testbed, worker: Host) -> None:
    """A user whom only the worker knows: its own /etc/passwd lies over the machine's."""
    home = worker.path(HOME)
    (home / ".ssh").mkdir(parents=True, exist_ok=True)
    (home / ".ssh/authorized_keys").write_text(public_key(bed.identity) + "\n")
    _engine(home / "engines/one/bin", UID)
    _give(home, UID)
    line = f"ada:*:{UID}:{UID}::{HOME}:/bin/sh\n"
    worker.path("/tmp/passwd").write_text(Path("/etc/passwd").read_text() + line)
    worker.run("mount", "--bind", "/tmp/passwd", "/etc/passwd")


def _ssh_config(bed: Testbed, worker: Host, folder: Path) -> Path:
    """As a person's own: the second port is in its known_hosts, and the default user is a wrong one."""
    known = folder / "known_hosts"
    known.write_text(bed.known_hosts.read_text() + f"[10.77.0.2]:2222 {public_key(worker.root / 'ssh/host_key')}\n")
    config = folder / "config"
    config.write_text(f"Host *\n  User nobody\n  IdentityFile {bed.identity}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n")
    return config


@pytest.fixture
def site(testbed: Testbed, tmp_path: Path) -> Iterator[Site]:
    testbed.up()
    twin.clear(testbed.hosts)
    head, worker = testbed.hosts
    _engine(head.path("/root/engines/two/bin"), 0)
    _user_ada(testbed, worker)
    config = worker.root / "ssh/sshd_2222"
    config.write_text(SSHD.format(root=worker.root, home=HOME, path=PATH))
    daemon = worker._daemon("sshd2222", ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)])
    worker._expect("sshd2222", lambda: 2222 in twin.listening(worker), 10)
    settings = {
        "RUNTIME": "process",
        "SSH_CONFIG": str(_ssh_config(testbed, worker, tmp_path)),
        "HEAD_SSH": "root@10.77.0.1",
        "HEAD_VENV": "/root/engines/two",
        "WORKER_SSH": "ada@10.77.0.2:2222",
        "WORKER_VENV": "~/engines/one",
        "WORKER_CACHE_ROOT": "~/scratch/cache",
        "WORKER_HF_HOME": "/srv/hub",
        "GLM53_EXTRA_ENV": "",
        "READY_TIMEOUT": "30",
        "CANARY": "0",  # the engine of this test answers /health only
    }
    try:
        yield Site(head, worker, settings)
    finally:
        twin.kill(worker, "-u", str(UID))
        assert daemon.alive()
        worker.stop("sshd2222")
        worker.run("umount", "/etc/passwd")
        twin.clear(testbed.hosts)
        worker.run("rm", "-r", HOME, "/tmp/passwd")


def test_another_user_home_port_and_cache(site: Site, tmp_path: Path) -> None:
    user = User.at(tmp_path / "state")
    up = user.invoke("up", **site.settings)
    assert up.code == 0, up.err
    assert up.wall_s < 20
    rows = [line.split(None, 1) for line in site.worker.run("ps", "-eo", "user,args=").splitlines() if "--headless" in line]
    assert {owner for owner, _ in rows} == {"ada"}
    assert any(f"/usr/bin/python3 {HOME}/engines/one/bin/vllm serve " in command for _, command in rows)
    assert any("/root/engines/two/bin/vllm serve " in line for line in twin.processes(site.head))

    folder = site.worker.path(f"{HOME}/.local/state/spark-lab/twin")
    record = json.loads((folder / "spark-lab-worker.json").read_text())
    assert record["log"].startswith(f"{HOME}/.local/state/spark-lab/twin/logs/")
    (log,) = (folder / "logs").glob("*.log")
    assert log.read_text().splitlines() == [f"uid {UID} home {HOME} in {HOME}", f"cache {HOME}/scratch/cache/vllm hub /srv/hub"]
    assert {path.stat().st_uid for path in (folder / "spark-lab-worker.json", log)} == {UID}
    assert site.worker.path(f"{HOME}/scratch/cache/vllm").is_dir()
    assert not site.worker.path("/root/.local/state/spark-lab/twin/spark-lab-worker.json").exists()

    shown = user.invoke("logs", "--rank", "1", **site.settings)
    assert (shown.code, shown.out.startswith(f"uid {UID} ")) == (0, True)
    seen = json.loads(user.invoke("status", "--json", "--passive", **site.settings).out)
    assert [rank["state"] for rank in seen["ranks"]] == ["running", "running"]
    down = user.invoke("down", **site.settings)
    assert (down.code, "kit twin stopped" in down.err) == (0, True), down.err
    assert twin.remains((site.head, site.worker)) == []
    assert log.exists()
    assert not (folder / "spark-lab-worker.json").exists()


def test_the_lock_is_one_for_all_users_of_a_node(site: Site, tmp_path: Path) -> None:
    """bob's launch holds the worker; ada, who comes later, is refused and told by whom. Afterwards the lock is hers to take.

    The kernel's fs.protected_regular (1 or 2 on most machines) is then in the way of a careless open.
    """
    held = {"token": "t", "owner": "bob (pid 1: invoke up)", "since_unix_s": 0, "until_unix_s": 1e11}
    file = site.worker.path(twin.LOCK)
    file.write_text(json.dumps(held))
    file.chmod(0o666)
    os.chown(file, UID + 1, UID + 1)
    user = User.at(tmp_path / "state")
    refused = user.invoke("down", **site.settings)
    assert (refused.code, "worker: another launch is working on this node: bob (pid 1: invoke up)" in refused.err) == (1, True)
    os.truncate(file, 0)
    free = user.invoke("down", **site.settings)
    assert free.code == 0, free.err
