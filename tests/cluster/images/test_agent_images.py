"""The node side with a scripted `docker` on the PATH: what a real one of another version would do, or a registry with a login.

Everything that Debian's docker does by itself is tested on the testbed.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cluster.agent_images
import cluster.agent_ship
from cluster.agent_client import ask_agent
from cluster.errors import LaunchError
from cluster.transport import LocalTransport
from tests.cluster.support import default_interrupt, eventually, lives

Docker = Callable[[str], Path]
agent_images: Any = cluster.agent_images
agent_ship: Any = cluster.agent_ship


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Put a shell script in docker's place; every call is noted in the file that it returns."""

    def install(script: str) -> Path:
        calls, path = tmp_path / "calls", tmp_path / "bin/docker"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return calls

    return install


def request(folder: Path, **more: Any) -> dict[str, Any]:
    return {"name": "glm:1", "status": f"{folder}/status.json", "log": f"{folder}/logs/1-image.log", **more}


def ask(folder: Path, action: str, **more: Any) -> dict[str, Any]:
    return ask_agent(LocalTransport(), request(folder, action=action, **more))


SHIP = {"source": None, "targets": {"worker": None}, "image": "glm:1", "own": "spark-lab/ship:0", "platform": "linux/arm64"}


def test_one_platform_is_saved_where_docker_can(docker: Docker, tmp_path: Path) -> None:
    calls = docker(f"case $1 in save) echo archive;; load) cat > {tmp_path}/loaded;; esac")
    answer = ask(tmp_path, "ship_send", **SHIP)
    assert (answer["bytes"], answer["failed"]) == (8, {})
    assert calls.read_text().splitlines() == [
        "tag glm:1 spark-lab/ship:0",
        "save --platform linux/arm64 spark-lab/ship:0",
        "load --quiet",
        "rmi spark-lab/ship:0",
    ]
    assert (tmp_path / "loaded").read_text() == "archive\n"
    assert not (tmp_path / "status.json").exists()


def test_the_whole_is_saved_where_docker_cannot(docker: Docker, tmp_path: Path) -> None:
    calls = docker(
        'case $1$2 in save--platform) echo "unknown flag: --platform" >&2; exit 125;; save*) echo all;; load*) cat >/dev/null;; esac'
    )
    assert ask(tmp_path, "ship_send", **SHIP)["bytes"] == 4
    assert "save spark-lab/ship:0\n" in calls.read_text()


def test_a_save_that_breaks_off_is_no_image(docker: Docker, tmp_path: Path) -> None:
    """The loads must not see an orderly end, and the name for the way is taken back."""
    calls = docker('case $1 in save) echo part; echo "blob not found" >&2; exit 1;; load) cat >/dev/null; echo ended >> $0.loaded;; esac')
    with pytest.raises(LaunchError, match="docker save ended with 1 after 5 bytes: blob not found"):
        ask(tmp_path, "ship_send", **SHIP)
    assert calls.read_text().splitlines()[-1] == "rmi spark-lab/ship:0"
    assert not (tmp_path / "bin/docker.loaded").exists()


def test_a_target_that_fails_does_not_keep_the_others(docker: Docker, tmp_path: Path) -> None:
    """`bad` is reached by an ssh that ends at once; the image is larger than every pipe."""
    docker("case $1 in save) head -c 5000000 /dev/zero;; load) wc -c > $0.loaded;; esac")
    ssh = tmp_path / "bin/ssh"
    ssh.write_text('#!/bin/sh\n[ "$1" = -G ] && { echo hostname x; echo port 22; exit; }\necho "no way" >&2; exit 255\n')
    ssh.chmod(0o755)
    targets = {"bad": {"words": ["x"], "ip": None}, "good": None}
    answer = ask(tmp_path, "ship_send", **{**SHIP, "targets": targets})
    assert (answer["bytes"], answer["failed"]) == (5000000, {"bad": "no way"})
    assert (tmp_path / "bin/docker.loaded").read_text().strip() == "5000000"


def test_a_running_command_is_watched_and_ended(docker: Docker, tmp_path: Path) -> None:
    docker("case $1 in pull) echo layer 1; sleep 60;; esac")
    ended: list[dict[str, Any]] = []
    pulling = threading.Thread(target=lambda: ended.append(ask(tmp_path, "images_pull", image="x/y:1", tag="x/y:1")))
    pulling.start()
    eventually(lambda: (tmp_path / "logs/1-image.log").exists() and (tmp_path / "logs/1-image.log").read_text() == "layer 1\n")
    assert ask(tmp_path, "images_watch") == {"running": True, "bytes": 0, "line": "layer 1"}
    begin = time.monotonic()
    assert ask(tmp_path, "images_cancel") == {"left": []}
    pulling.join(10)
    assert time.monotonic() - begin < 5
    assert ended[0]["code"] != 0
    assert ask(tmp_path, "images_watch") == {"running": False, "bytes": 0, "line": "layer 1"}


def test_ctrl_c_in_a_terminal_ends_the_command_too(docker: Docker, tmp_path: Path) -> None:
    """The terminal tells the whole foreground group; the command's own session is not in it."""
    docker(f"echo $$ > {tmp_path}/pid; exec sleep 60")
    given = request(tmp_path, action="images_pull", image="x/y:1", tag="x/y:1")
    code = f"from cluster import agent_images as a; from cluster.agent import main; main({given!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=default_interrupt
    ) as asked:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        os.killpg(asked.pid, signal.SIGINT)
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not lives(pid))


def test_stored_logins_are_named_and_not_read(docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker('case $1 in pull) echo "denied: denied" >&2; exit 1;; esac')
    config = {"auths": {"ghcr.io": {"auth": "c2VjcmV0"}}, "credHelpers": {"quay.io": "x"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    answer = ask(tmp_path, "images_pull", image="ghcr.io/x/y:1", tag="ghcr.io/x/y:1")
    assert (answer["code"], answer["lines"], answer["logged_in"]) == (1, ["denied: denied"], ["ghcr.io", "quay.io"])
    assert "c2VjcmV0" not in json.dumps(answer)
    (tmp_path / "config.json").write_text("{")
    assert agent_images.stored_logins() == []


def test_what_arrives_with_other_layers_gets_no_name(docker: Docker, tmp_path: Path) -> None:
    calls = docker("""case $2 in inspect) echo '[{"Id": "sha256:1", "RootFS": {"Layers": ["other"]}}]';; esac""")
    with pytest.raises(LaunchError, match="what arrived as spark-lab/ship:0 has other layers than the head's image"):
        ask(tmp_path, "images_adopt", own="spark-lab/ship:0", tag="glm:1", layers=["a"])
    assert calls.read_text().splitlines() == ["image inspect spark-lab/ship:0", "rmi spark-lab/ship:0"]


def test_docker_that_does_not_answer(docker: Docker, tmp_path: Path) -> None:
    docker("echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(LaunchError, match="docker does not answer: Cannot connect"):
        ask(tmp_path, "images_look", images=["glm:1"])


def test_an_archive_is_read_without_docker(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"rootfs": {"diff_ids": ["sha256:a", "sha256:b"]}}))
    (tmp_path / "manifest.json").write_text(json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": []}]))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("config.json", "manifest.json"):
            tar.add(tmp_path / name, name)
    assert ask(tmp_path, "images_archive", archive=f"{tmp_path}/x.tar")["images"] == [{"names": [], "layers": ["sha256:a", "sha256:b"]}]
    whole = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(whole[:700])
    with pytest.raises(LaunchError, match=r"x\.tar is no archive of `docker save`"):
        ask(tmp_path, "images_archive", archive=f"{tmp_path}/x.tar")


# the real OpenSSH client reads these configurations


@pytest.mark.parametrize(
    ("config", "ip", "expected"),
    [
        ("Host wk\n HostName 192.168.1.5\n", "10.0.0.2", ["HostName=10.0.0.2", "HostKeyAlias=192.168.1.5"]),
        ("Host wk\n HostName 192.168.1.5\n Port 2222\n", "10.0.0.2", ["HostName=10.0.0.2", "HostKeyAlias=[192.168.1.5]:2222"]),
        ("Host wk\n HostName 192.168.1.5\n HostKeyAlias spark\n", "10.0.0.2", ["HostName=10.0.0.2", "HostKeyAlias=spark"]),
        ("Host wk\n HostName 10.0.0.2\n", "10.0.0.2", []),
        ("Host wk\n HostName 192.168.1.5\n", None, []),
        ("Host wk\n HostName 192.168.1.5\n ProxyJump door\n", "10.0.0.2", []),  # who needs a door is not on the fabric
    ],
)
def test_the_fabric_address_with_the_host_key_that_is_known(tmp_path: Path, config: str, ip: str | None, expected: list[str]) -> None:
    (tmp_path / "config").write_text(config)
    argv = agent_ship.ssh_to({"words": ["-F", str(tmp_path / "config"), "wk"], "ip": ip})
    assert [word for word in argv if word.startswith(("HostName=", "HostKeyAlias="))] == expected
    assert argv[-3:] == ["-F", str(tmp_path / "config"), "wk"]
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ServerAliveInterval=5"} <= set(argv)
    seen = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=True).stdout.splitlines()
    assert not ip or "door" in config or f"hostname {ip}" in seen  # ssh takes the words as they are meant


def test_words_for_a_remote_shell_are_quoted() -> None:
    assert agent_ship.at([], "docker", "tag", "a b", "c") == ["docker", "tag", "a b", "c"]
    assert agent_ship.at(["ssh", "x"], "docker", "tag", "a b", "c") == ["ssh", "x", "docker tag 'a b' c"]
