"""A person on a head who downloads a model from a Hub on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.support import ROOT, clean_environ
from tests.fakes.hub import Hub
from tests.fakes.snapshot import REPO, REVISION

TOKEN = "hf_s3cret"


@dataclass
class Done:
    code: int
    err: str


@dataclass
class Head:
    """A person on the head: home, cache and state are folders of the test's own."""

    folder: Path
    hub: Hub

    def command(self, **settings: str) -> tuple[list[str], dict[str, str]]:
        fixed = {
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "HEAD_IP": "127.0.0.1",
            "WORKER_IP": "127.0.0.2",
            "HF_ENDPOINT": self.hub.url,
            "NO_PROXY": "127.0.0.1",
            "MODEL": REPO,
            "MODEL_REVISION": REVISION,
            "SPEC_METHOD": "none",
            "HF_TOKEN": "",
        }
        command = [sys.executable, "-m", "tests.cluster.weights.downloading"]
        env = {
            name: value
            for name, value in clean_environ(**{**fixed, **settings}).items()
            if not name.startswith("HF_HUB") or name in settings
        }
        return command, env

    def download(self, **settings: str) -> Done:
        command, env = self.command(**settings)
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr
        assert TOKEN not in done.stderr + done.stdout
        return Done(done.returncode, done.stderr)

    @property
    def snapshot(self) -> Path:
        return self.folder / ".cache/huggingface/hub/models--lab--tiny/snapshots" / REVISION

    def content(self) -> dict[str, bytes]:
        paths = [path for path in sorted(self.snapshot.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.snapshot)): path.read_bytes() for path in paths}

    def manifest(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / f"state/spark-lab/manifests/lab--tiny@{REVISION}.json").read_text())
        return found
