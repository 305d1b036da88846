"""Every command line that the Spark kits render is accepted by vLLM 0.32's own parser: flags, types, parser names, spec keys."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from cluster.engines import vllm
from cluster.ranks import ranks
from tests.cluster.plans import effective
from tests.testbed import vllm_env
from tests.testbed.conftest import demanded

KITS = ("spark2", "spark3", "spark4", "ring4")


@pytest.fixture(scope="module")
def python() -> Path:
    if not demanded() and not (vllm_env.CACHE / "vllm-0.32" / "bin" / "vllm").exists():
        pytest.skip("no vLLM environment here; to make it (3.4 GB): python -m tests.testbed.vllm_env")
    return vllm_env.ensure().python


@pytest.mark.timeout(600)
def test_every_command_line_is_understood(python: Path) -> None:
    cases = [rank for kit in KITS for mode in ("dflash", "mtp", "none") for rank in ranks(effective(kit, SPEC_METHOD=mode))]
    done = subprocess.run(
        [python, Path(__file__).with_name("vllm_flags.py")],
        input=json.dumps([vllm.serve(rank) for rank in cases]), capture_output=True, text=True, cwd="/",
        env={**os.environ, **vllm_env.CPU_ENV},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 39
    for rank, understood in zip(cases, found, strict=True):
        assert (understood["rank"], understood["headless"], understood["strange"]) == (rank.number, rank.number > 0, [])
        assert understood["model"].endswith("/snapshots/76c0b5173166d2795dd48860f45d8224817f894c")
