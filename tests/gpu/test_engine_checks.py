"""How an engine's process is run and what is kept of it: real processes, no vLLM."""

import os
import sys
from pathlib import Path

import pytest

from tests.gpu import about, engine_checks
from tests.gpu.engines import EAGER, Engine


def test_an_answer_and_the_lines_that_say_which_way_it_went(tmp_path: Path) -> None:
    edit = f"ablation: rank 0 model layer 0: signed ratio -2.00000, rel_l2 0.19431, sha256 {'a' * 64} -> {'b' * 64}"
    lines = ["INFO [a.py:1] Using FLASH_ATTN attention backend", "noise", f"(EngineCore pid=7) INFO 11-30 [b.py:2] {edit}"]
    code = f"print(*{lines}, sep='\\n'); print('{{\"answers\": [], \"ready_s\": 1.0}}')"
    found = engine_checks.run(Engine("one", "m"), [sys.executable, "-c", code], dict(os.environ), tmp_path)
    assert found.pop("wall_s") < 30
    assert found == {"answers": [], "ready_s": 1.0, "told": ["Using FLASH_ATTN attention backend"], "ablation": [edit]}


def test_an_error_is_kept(tmp_path: Path) -> None:
    found = engine_checks.run(Engine("one", "m"), [sys.executable, "-c", "raise KeyError('layers.4')"], dict(os.environ), tmp_path)
    assert (found["error"], found["exit_code"]) == ("KeyError: 'layers.4'", 1)


def test_one_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(100)'])"
    found = engine_checks.run(Engine("one", "m", limit_s=1.5), [sys.executable, "-c", child], dict(os.environ), tmp_path)
    assert found["exit_code"] == -9
    assert found["wall_s"] < 20


def test_the_command_names_models_by_their_folders(tmp_path: Path) -> None:
    engine = Engine("one", "glm-exl3", llm=EAGER | {"speculative_config": {"method": "dflash", "model": "dflash2"}})
    prompts = {"short": {"prompts": [[1, 2]], "answer": 3}}
    text = engine_checks.command(engine, tmp_path, prompts)[-1]
    assert f'"model": "{tmp_path}/glm-exl3"' in text
    assert f'"model": "{tmp_path}/dflash2"' in text
    assert '"backend": "FLASHMLA_SPARSE"' in text
    placed = engine_checks.environment(Engine("one", "m", environment={"ABLIT_DIRECTION": "{models}/d"}), tmp_path)
    assert placed["ABLIT_DIRECTION"] == f"{tmp_path}/d"


@pytest.mark.skipif(about.gpus() > 0, reason="this machine has a GPU: the checks would start")
def test_without_a_gpu_nothing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["engine_checks", str(tmp_path), str(tmp_path / "receipt.json")])
    with pytest.raises(SystemExit, match="no NVIDIA GPU here"):
        engine_checks.main()
