"""Small images on the hosts, a registry on the bridge, and a checkout of this repository with a Dockerfile of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.images.identity import Image, read
from tests.testbed import image, twin
from tests.testbed.host import BRIDGE_ADDRESS, Host
from tests.testbed.shell import PATH, How, wait_until

REGISTRY = f"{BRIDGE_ADDRESS}:5000"  # the hosts' dockerd may speak plain HTTP to it
NAME = "picture:1"  # the image that these tests move about
ENGINE = """\
#!/usr/bin/python3
import http.server, os, sys, time
model = os.path.join(sys.argv[2], "model.safetensors")
print("offline", os.environ["HF_HUB_OFFLINE"], "bytes", os.path.getsize(model) if os.path.exists(model) else None, flush=True)
if "--headless" in sys.argv:
    time.sleep(3600)
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("0.0.0.0", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
# `up` with an image whose engine is the few lines above: this is about images, not about vLLM
SERVED = {
    "IMAGE_ENTRYPOINT": "/engine",
    "EXTRA_MOUNTS": "",
    "MODEL": "/usr/share",
    "GLM53_EXTRA_ENV": "",
    "READY_TIMEOUT": "60",
    "SKIP_DOWNLOAD": "1",
    "SKIP_SYNC": "1",
    "CANARY": "0",  # this engine answers /health only
}


def make(host: Host, name: str = NAME, mib: int = 1, *lines: str, content: str = "one") -> Image:
    """Build an image of one more layer, `mib` MiB of noise, on top of deb:1; with further Dockerfile lines."""
    engine = json.dumps(["python3", "-c", f"open('/engine','w').write({ENGINE!r})"])
    steps = [f"FROM {image.TAG}", f"RUN {engine}", "RUN chmod 755 /engine", f"RUN echo {content} > /content"]
    steps.append(f"RUN head -c {mib << 20} /dev/urandom > /noise")
    text = "\n".join([*steps, *lines]) + "\n"
    host.run("docker", "build", "--quiet", "--no-cache", "--tag", name, "-", how=How(stdin=text, timeout_s=120))
    made = look(host, name)
    assert made is not None
    return made


def look(host: Host, name: str = NAME) -> Image | None:
    done = host.attempt("docker", "image", "inspect", name)
    return read(name, json.loads(done.stdout)[0]) if done.status == 0 else None


def names(host: Host) -> set[str]:
    """Every name of an image on the host."""
    found = set(host.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split())
    return {name for name in found if not name.endswith(":<none>")}


def clear(*hosts: Host) -> None:
    """Only deb:1 stays, and no container, record or lock."""
    twin.clear(hosts)
    for host in hosts:
        for name in names(host) - {image.TAG}:
            host.attempt("docker", "rmi", "--force", name)
        for name in set(host.run("docker", "images", "--no-trunc", "--format", "{{.ID}}").split()) - {image.image_id(host)}:
            host.attempt("docker", "rmi", "--force", name)
        assert names(host) <= {image.TAG}
        host.path(f"{twin.STATE}/image-send.json").unlink(missing_ok=True)
        image.load(host)


def shipped_bytes(head: Host) -> int:
    """How far a ship that runs on the head is."""
    with contextlib.suppress(OSError, ValueError):
        seen: dict[str, Any] = json.loads(head.path(f"{twin.STATE}/image-send.json").read_text())
        return int(seen["bytes"])
    return 0


# a registry


def registry_binary() -> str | None:
    """Debian's package docker-registry, if it is here."""
    return shutil.which("docker-registry", path=f"{PATH}:{os.environ['PATH']}")


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry on this machine that the hosts reach; what it holds lies in `folder` and outlives it."""
    binary = registry_binary()
    assert binary
    config = folder / "registry.yml"
    config.write_text(f'version: 0.1\nstorage: {{filesystem: {{rootdirectory: "{folder}/data"}}}}\nhttp: {{addr: "{REGISTRY}"}}\n')
    with (folder / "registry.log").open("ab") as log:
        process = subprocess.Popen([binary, "serve", str(config)], stdout=log, stderr=log)
    try:
        assert wait_until(_answers, 20), (folder / "registry.log").read_text()
        yield REGISTRY
    finally:
        process.kill()
        process.wait()


def _answers() -> bool:
    host, _, port = REGISTRY.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


# a checkout


@dataclass(frozen=True)
class Checkout:
    """This repository's code in another folder, under git, with a Dockerfile and an overlay of the test's own."""

    root: Path
    env: Mapping[str, str]

    @classmethod
    def make(cls, folder: Path, dockerfile: str) -> Checkout:
        for name in ("cluster", "bench", "cli", "ablit", "kits"):
            shutil.copytree(twin.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tasks.py", ".gitignore"):
            shutil.copy(twin.ROOT / name, folder / name)
        (folder / "overlay").mkdir()
        (folder / "overlay/patch.py").write_text("one = 1\n")
        (folder / "Dockerfile").write_text(dockerfile)
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        return cls(folder, twin.User.at(folder / "state").env)

    def invoke(self, *words: str, **settings: str) -> twin.Done:
        begin = time.monotonic()
        argv, env = [sys.executable, "-m", "invoke", *words], {**self.env, **settings}
        done = subprocess.run(argv, cwd=self.root, env=env, capture_output=True, text=True, timeout=150)
        return twin.Done(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)
