"""A real vLLM server on the CPU: the same edit gives the same KLD over HTTP as in process, both reduced to the same support."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BadRequest
from bench.kld import capture, distance, local, model, served, windows
from bench.kld.summary import scores
from tests.lab.kld import tiny
from tests.ports import free_port

VLLM = Path("/var/cache/spark-testbed/vllm-0.32/bin/vllm")
PER_STRATUM, POSITIONS, K = 1, 128, 20
ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_PLUGINS": "",
    "OMP_NUM_THREADS": "1",
}
pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]


class Edited:
    """The real model with an edit at layers 10 to 29, its stock and edited captures in process, and its folder on the disk."""

    def __init__(self, home: Path) -> None:
        self.model, tokenizer = local.load(model.converted(tiny.real_gguf(), print), "float32")
        panel = windows.load()
        self.cut = local.cut(panel, tokenizer, PER_STRATUM, POSITIONS)
        self.fields: dict[str, Any] = {"model": "smollm2", "weights_sha256": None, "tokenizer_sha256": None}
        self.fields |= capture.panel_fields(panel, self.cut)
        self.stock = self.captured("stock")
        tiny.edit(self.model, range(10, 30), 3.0)
        self.edited = self.captured("alpha 3")
        self.folder = home / "edited"
        self.model.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)

    def captured(self, edit: str) -> capture.Capture:
        states = local.final_states(self.model, self.cut, lambda line: None)
        return capture.as_top_k(local.captured(self.model, states, {**self.fields, "edit": edit}), K)


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Edited:
    if not VLLM.exists():
        tiny.missing(str(VLLM), "python -m tests.testbed.vllm_env (as root)")
    return Edited(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def base_url(edited: Edited, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    words = [str(VLLM), "serve", str(edited.folder), "--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--dtype", "float32", "--max-model-len", "8192", "--max-num-seqs", "1", "--enforce-eager"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ENV
    with log.open("w") as file:
        server = subprocess.Popen(words, env=env, stdout=file, stderr=file, start_new_session=True)
        try:
            wait(server, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def wait(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    pytest.fail(f"vLLM did not start: {log.read_text()[-2000:]}")


def test_the_same_edit_gives_the_same_kld(edited: Edited, base_url: str, tmp_path: Path) -> None:
    question = served.Question(base_url, k=K, edit="alpha 3", dtype="float32", per_stratum=PER_STRATUM, positions=POSITIONS)
    over_http = served.capture(question, tmp_path / "served.npz", print)
    assert over_http.meta.windows == edited.stock.meta.windows  # the server's tokenizer cut the very same tokens
    floor = scores(distance.positions(edited.edited, over_http)).mean
    here = scores(distance.positions(edited.stock, edited.edited))
    there = scores(distance.positions(edited.stock, over_http))
    print(f"floor {floor}, in process {here.mean}, over HTTP {there.mean}")
    assert 0.005 < here.mean < 0.1
    assert floor < 1e-5
    assert abs(here.mean - there.mean) <= 1e-5
    assert abs(here.top1_agreement - there.top1_agreement) <= 0.002


def test_too_large_a_k_is_refused_by_the_server(base_url: str, tmp_path: Path) -> None:
    question = served.Question(base_url, k=21, per_stratum=1, positions=8)
    with pytest.raises(BadRequest, match=r"(?s)HTTP 400: .*logprobs.*--max-logprobs"):
        served.capture(question, tmp_path / "x.npz", print)
