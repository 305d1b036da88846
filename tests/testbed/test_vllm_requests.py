"""The requests of docs/serving.md that only Sparks can answer are requests to vLLM 0.32, and a nested extra_body is not one."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.serving import DOCUMENT, requests
from tests.testbed import vllm_env
from tests.testbed.test_vllm_flags import python

__all__ = ["python"]  # fixture


def strange(python: Path, texts: list[str]) -> list[list[str]]:
    """For each request, the keys that vLLM ignores."""
    done = subprocess.run(
        [python, Path(__file__).with_name("vllm_requests.py")],
        input=json.dumps(texts), capture_output=True, text=True, cwd="/", env={**os.environ, **vllm_env.CPU_ENV},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(600)
def test_requests_are_understood(python: Path) -> None:
    right = requests(DOCUMENT.read_text())
    wrong = json.dumps({**json.loads(right[0]), "extra_body": {"chat_template_kwargs": {"reasoning_effort": "low"}}})
    assert strange(python, [*right, wrong]) == [[], [], [], ["extra_body"]]
