"""`up` with ABLIT=1 on two hosts, in the image of the Dockerfile's stage `cpu`: the plugin's selfcheck in the containers, EXL3 experts with
attention edited at load, and the launcher's comparison of both ranks' reports; and what is refused."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import cpu_image, images, plugin, twin, vllm_env
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.images import NAME, SERVED, look
from tests.testbed.shell import ENV
from tests.testbed.twin import TAKEN_BACK_S, User, clean, refused

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(1200)]

URL = f"http://10.77.0.1:{twin.PORT}/v1/completions"
PROMPTS = ([7, 101, 33, 250, 12, 400], list(range(300, 340)))
NEAR = 5e-5  # of log-probabilities: fp32 in another order
OWN = "HOME=/tmp VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1 VLLM_CPU_OMP_THREADS_BIND={rank}"  # as kits/twin.toml has it
NOTE = f"{twin.STATE}/selfcheck.json"


def variables(**more: str) -> str:
    folder = plugin.FOLDER
    edit = {"ABLIT_LAYERS": "0-1", "ABLIT_DIRECTION": f"{folder}/direction.safetensors"}
    return " ".join([OWN, *(f"{name}={value}" for name, value in {**edit, **more}.items())])


@pytest.fixture(scope="module")
def hosts(testbed: Testbed) -> Iterator[tuple[Host, ...]]:
    plugin.ensure()
    twin.prepare(testbed)
    images.clear(*testbed.hosts)
    for host in testbed.hosts:
        host.path(NOTE).unlink(missing_ok=True)
    cpu_image.build(testbed.hosts[0])
    yield testbed.hosts
    images.clear(*testbed.hosts)


@pytest.fixture
def user(tmp_path: Path) -> User:
    edited = {
        "IMAGE": cpu_image.NAME,
        "QUANTIZATION": "exl3",
        "MODEL": f"{plugin.FOLDER}/models/exl3",
        "ABLIT": "1",
        "GLM53_EXTRA_ENV": variables(),
    }
    return User({**User.at(tmp_path).env, **edited})


def completion(ids: list[int]) -> dict[str, Any]:
    body = {
        "model": "tiny-moe",
        "prompt": ids,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "return_token_ids": True,
    }
    request = urllib.request.Request(URL, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        choice: dict[str, Any] = json.loads(answer.read())["choices"][0]
    return {"ids": choice["token_ids"], "logprobs": choice["logprobs"]["token_logprobs"]}


def edited_before(out: Path) -> list[dict[str, Any]]:
    """The dense twin whose checkpoint was edited, on one rank and without the plugin."""
    case = {"model": f"{plugin.FOLDER}/models/dense", "environment": {}, "prompts": PROMPTS}
    words = [str(vllm_env.ensure().python), "-m", "tests.overlay.edited", json.dumps([case]), str(out)]
    env = ENV | {"PYTHONPATH": str(plugin.ROOT), "HOME": "/tmp"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False, env=env, cwd=plugin.ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (found,) = json.loads(out.read_text())
    assert isinstance(found, list)
    return found


def test_an_image_without_the_plugin_is_not_started(user: User, hosts: tuple[Host, ...]) -> None:
    done = user.invoke("up", IMAGE="deb:1")
    said = ("the image deb:1 has no plugin vllm-glm-exl3 (on head, worker)", "No module named", "--skip-selfcheck starts without it")
    refused(done, *said, within_s=TAKEN_BACK_S)
    assert "started on" not in done.err
    clean(hosts)
    assert not hosts[0].path(NOTE).exists()


def test_edited_experts_answer_as_the_edited_checkpoint(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    with user.begin("up", READY_TIMEOUT="900") as process:
        _, said = process.communicate(timeout=1000)
    assert process.returncode == 0, said
    assert [look(host, cpu_image.NAME) is not None for host in hosts] == [True, True]
    passed, started = "selfcheck: every execution path computes what its reference does", "started on worker"
    assert said.index(passed) < said.index(started)
    line = "edited at load: model layers 0-1, proj alpha 3, source {}, the same on all 2 ranks; signed ratio -2.0000 to -2.0000"
    assert re.search(re.escape(line).replace(r"\{\}", "[0-9a-f]{16}"), said), said
    ranks = json.loads(user.invoke("status", "--json", "--passive").out)["ranks"]
    noted = [rank["record"]["ablation"][0] for rank in ranks]
    assert [(edit["rank"], edit["world"], edit["layers"]) for edit in noted] == [(0, 2, "0-1"), (1, 2, "0-1")]
    found = [completion(ids) for ids in PROMPTS]
    assert user.invoke("down").code == 0
    clean(hosts)
    for one, other in zip(found, edited_before(tmp_path / "out.json"), strict=True):
        assert min(other["leads"]) > 10 * NEAR, "the model is too close to a tie to tell"
        assert one["ids"] == other["ids"]
        assert one["logprobs"] == pytest.approx(other["logprobs"], abs=NEAR)


def test_what_passed_is_not_run_again(user: User, hosts: tuple[Host, ...]) -> None:
    """After the test above; the start itself has no time to become ready."""
    done = user.invoke("up", READY_TIMEOUT="2")
    assert "selfcheck: passed before with this image" in done.err
    refused(done, "not ready within 2 s", within_s=TAKEN_BACK_S)
    clean(hosts)


def test_an_engine_that_reports_no_edit_is_taken_back(user: User, hosts: tuple[Host, ...]) -> None:
    """An image without the plugin: it would serve the stock model."""
    images.make(hosts[0], NAME)
    done = user.invoke("up", **{**SERVED, "IMAGE": NAME, "QUANTIZATION": "", "ABLIT": "1", "SKIP_SELFCHECK": "1"})
    refused(done, "the edit at load cannot be trusted: head: rank 0 reported no edit, and ABLIT=1 asks for one", within_s=TAKEN_BACK_S)
    assert "started on head" in done.err
    clean(hosts)
