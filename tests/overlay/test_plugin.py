"""How vLLM finds the plugin, what importing it costs, and what it does beside a vLLM that it does not know."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import vllm_glm_exl3

pytest.importorskip("vllm")


def test_entry_point() -> None:
    found = [point for point in entry_points(group="vllm.general_plugins") if point.name == "glm_exl3"]
    assert [point.load() for point in found] == [vllm_glm_exl3.register]


def test_import_is_quick() -> None:
    text = "import time; t = time.perf_counter(); import vllm_glm_exl3, sys; print(time.perf_counter() - t, 'torch' in sys.modules)"
    seconds = []
    for _ in range(3):
        took, torch_too = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()
        assert torch_too == "False"
        seconds.append(float(took))
    assert min(seconds) < 0.3


VLLMS_OWN = """
    vllm.config vllm.model_executor.layers.quantization vllm.model_executor.layers.fused_moe vllm.model_executor.layers.linear
    vllm.v1.engine.detokenizer vllm.v1.core.kv_cache_coordinator vllm.parser.engine.parser_engine
"""


def test_registering_is_quick() -> None:
    """Beyond torch and the parts of vLLM that it changes, which an engine imports anyway. Processor time: these tests share their cores."""
    lines = [
        "import importlib, time",
        f"for name in {VLLMS_OWN.split()}: importlib.import_module(name)",
        "begin = time.process_time(); import vllm_glm_exl3; vllm_glm_exl3.register(); print('took', time.process_time() - begin)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    took = float(next(line for line in done.stdout.splitlines() if line.startswith("took")).split()[1])
    print(f"{took:.3f} s")
    assert took < 0.3


def test_register_twice() -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config
    from vllm.parser.engine.parser_engine import ParserEngine
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator

    vllm_glm_exl3.register()
    once = KVCacheCoordinator.cache_blocks, ParserEngine.adjust_request, list(sys.meta_path)
    vllm_glm_exl3.register()
    assert (KVCacheCoordinator.cache_blocks, ParserEngine.adjust_request, list(sys.meta_path)) == once
    assert not hasattr(once[0].__wrapped__, "__wrapped__")
    assert QUANTIZATION_METHODS.count("exl3") == 1
    assert get_quantization_config("exl3").get_name() == "exl3"


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "1.0"])
def test_other_vllm(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_glm_exl3, "_vllm_version", lambda: version)
    with pytest.raises(vllm_glm_exl3.WrongVllm, match=rf"knows vLLM 0\.32\.\*, and this is vLLM {version}"):
        vllm_glm_exl3.register()
