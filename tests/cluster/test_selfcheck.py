"""Which starts run the plugin's selfcheck, with which command, and what is said; the agent's part runs here with a made-up docker."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import selfcheck
from cluster.errors import LaunchError
from cluster.execute import Nodes
from cluster.images.identity import Image
from cluster.ranks import ranks
from cluster.session import Cluster
from cluster.transport import LocalTransport
from tests.cluster.plans import effective
from tests.cluster.scripted import Node

IMAGE = Image("x", "id", ("l1",), (), None, "linux/arm64", 1, {})


@pytest.mark.parametrize(
    ("kit", "changed", "wanted"),
    [
        ("spark2", {}, True),
        ("spark2", {"SKIP_SELFCHECK": "1"}, False),
        ("spark2", {"QUANTIZATION": "fp8"}, False),
        ("spark2", {"QUANTIZATION": "fp8", "ABLIT": "1"}, True),
        ("twin", {}, False),
        ("twin", {"QUANTIZATION": "exl3"}, True),
        ("twin", {"QUANTIZATION": "exl3", "RUNTIME": "process", "HEAD_VENV": "/v", "WORKER_VENV": "/v"}, False),
        ("local", {"ABLIT": "1"}, False),
    ],
)
def test_which_starts(kit: str, changed: dict[str, str], wanted: bool) -> None:
    assert selfcheck.wanted(effective(kit, **changed)) is wanted


def test_the_command_is_the_rank_s_own() -> None:
    from cluster.engines import vllm

    rank = ranks(effective("spark2"))[1]
    words, serving = selfcheck.argv(rank), vllm.docker_run(rank)
    assert words[:5] == ("docker", "run", "--rm", "--name", "spark-lab-worker-selfcheck")
    assert words[-5:] == ("--entrypoint", "python3", "spark-lab/glm-exl3:0.32", "-m", "vllm_glm_exl3.selfcheck")
    assert words[5:-5] == serving[serving.index("--detach") + 1 : serving.index("--entrypoint")]
    other = ranks(effective("twin", QUANTIZATION="exl3"))[0]
    assert "/var/cache/spark-testbed/vllm-0.32/bin/python3" in selfcheck.argv(other)


def test_the_key_follows_image_and_command() -> None:
    one, two = (ranks(effective("spark2", **changed))[0] for changed in ({}, {"EXL3_TEMP_ROWS_FUSED": "256"}))
    other = dataclasses.replace(IMAGE, layers=("l2",))
    renamed = dataclasses.replace(IMAGE, id="other", name="y")
    keys = [selfcheck.key(one, IMAGE), selfcheck.key(one, other), selfcheck.key(two, IMAGE)]
    assert len(set(keys)) == 3
    longer = ranks(effective("spark2", READY_TIMEOUT="9"))[0]
    assert selfcheck.key(one, renamed) == selfcheck.key(longer, IMAGE) == keys[0]


def check(answers: dict[str, Any]) -> list[str]:
    """Run it on spark2 with these answers of the nodes; what was said."""
    said: list[str] = []
    nodes = Nodes({role: Node(role, [], others={"images_selfcheck": answer}) for role, answer in answers.items()}, "python3")
    selfcheck.run(Cluster(effective("spark2"), nodes), "", said.append, dict.fromkeys(answers, IMAGE))
    return said


def test_what_is_said() -> None:
    ran, known = {"cached": False, "code": 0, "lines": []}, {"cached": True, "code": 0, "lines": []}
    assert check({"head": ran, "worker": known})[-1] == "selfcheck: every execution path computes what its reference does"
    assert check({"head": known, "worker": known})[-1] == "selfcheck: passed before with this image"


@pytest.mark.parametrize(
    ("lines", "said", "hint"),
    [
        (["selfcheck: coop differ from the reference by more than 0.005"], "the selfcheck of the plugin failed", "invoke build from"),
        (["/usr/bin/python3: No module named vllm_glm_exl3"], "the image spark-lab/glm-exl3:0.32 has no plugin", "invoke build, "),
    ],
)
def test_a_failure(lines: list[str], said: str, hint: str) -> None:
    good, bad = {"cached": False, "code": 0, "lines": []}, {"cached": False, "code": 1, "lines": lines}
    with pytest.raises(LaunchError) as caught:
        check({"head": good, "worker": bad})
    text = str(caught.value)
    assert text.startswith(f"worker: {said}")
    assert f"  {lines[0]}" in text
    assert f"try: {hint}" in text
    assert "--skip-selfcheck" in text


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """A `docker` on PATH that notes how it was called, prints a line and ends with a code; the folder of its notes."""

    def make(code: int) -> Path:
        program = tmp_path / "docker"
        program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = run ] && echo torch: fine && exit {code}\nexit 0\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path

    return make


def asked(folder: Path, key: str) -> Any:
    from cluster.agent_client import ask_agent

    names = {"name": "image", "status": f"{folder}/status", "log": f"{folder}/logs/20260101T000000Z-image-selfcheck.log"}
    request = {"action": "images_selfcheck", "argv": ["docker", "run", "x"], "key": key, "note": f"{folder}/note.json", "container": "c"}
    return ask_agent(LocalTransport("here"), {**names, **request})


def test_what_passed_is_not_run_again(docker: Callable[[int], Path]) -> None:
    folder = docker(0)
    assert asked(folder, "k1") == {"cached": False, "code": 0, "lines": ["torch: fine"]}
    assert asked(folder, "k1") == {"cached": True, "code": 0, "lines": ["torch: fine"]}
    assert asked(folder, "k2")["cached"] is False
    assert (folder / "calls").read_text().splitlines() == ["rm --force c", "run x", "rm --force c", "run x"]
    assert json.loads((folder / "note.json").read_text())["key"] == "k2"


def test_what_failed_is_run_again(docker: Callable[[int], Path]) -> None:
    folder = docker(1)
    assert [asked(folder, "k1")["code"] for _ in range(2)] == [1, 1]
    assert not (folder / "note.json").exists()
