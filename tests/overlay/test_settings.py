"""Environment variables, and the path that a layer takes."""

import pytest
from vllm_glm_exl3 import codec, ext, paths, settings
from vllm_glm_exl3.errors import Exl3Error, NoPath


def test_defaults_and_empty_values() -> None:
    assert settings.read({}) == settings.read({"EXL3_MOE_PATH": "", "EXL3_TEMP_ROWS_FUSED": ""}) == settings.Settings("auto", 512, False)


def test_values() -> None:
    assert settings.read({"EXL3_FUSED_MOE": "0", "EXL3_TEMP_ROWS_FUSED": "32", "EXL3_DETERMINISTIC": "1"}) == settings.Settings(
        "loop", 32, True
    )
    assert settings.read({"EXL3_FUSED_MOE": "0", "EXL3_MOE_PATH": "torch"}).path == "torch"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EXL3_MOE_PATH", "fast"),
        ("EXL3_FUSED_MOE", "yes"),
        ("EXL3_TEMP_ROWS_FUSED", "0"),
        ("EXL3_TEMP_ROWS_FUSED", "-3"),
        ("EXL3_DETERMINISTIC", "2"),
    ],
)
def test_other_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(Exl3Error, match=f"{name}='{value}'"):
        settings.read({name: value})


def test_path_without_a_gpu() -> None:
    assert paths.choose("auto", codec.MCG, 0.0, False) == paths.choose("torch", codec.MUL1, 0.0, False) == "torch"
    with pytest.raises(NoPath, match="EXL3_MOE_PATH=fused needs a CUDA device"):
        paths.choose("fused", codec.MCG, 0.0, False)


def test_path_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext, "load", lambda: None)
    chosen = [
        (book, limit, paths.choose("auto", book, limit, True))
        for book in (codec.MCG, codec.MUL1, codec.INST3)
        for limit in (0.0, 5.0, 10.0)
    ]
    loops = [(book, limit) for book, limit, path in chosen if path == "loop"]
    assert loops == [(codec.MCG, 5.0), (codec.MUL1, 5.0), (codec.INST3, 0.0), (codec.INST3, 5.0), (codec.INST3, 10.0)]
    assert {path for *_, path in chosen} == {"fused", "loop"}
    assert paths.choose("loop", codec.MCG, 0.0, True) == "loop"
    with pytest.raises(NoPath, match="no instance for codebook 3inst"):
        paths.choose("fused", codec.INST3, 0.0, True)


@pytest.mark.parametrize(
    ("wanted", "book", "said"),
    [
        ("torch", codec.MCG, r"torch path \(EXL3_MOE_PATH=torch\)"),
        ("loop", codec.MCG, r"loop path \(EXL3_MOE_PATH=loop\)"),
        ("auto", codec.INST3, r"loop path \(exl3_moe has no instance for codebook 3inst\)"),
    ],
)
def test_a_path_that_waits_for_the_gpu_is_not_captured(wanted: str, book: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ext, "load", lambda: None)
    with pytest.raises(NoPath, match=f"{said} cannot be in CUDA graphs; --enforce-eager"):
        paths.choose(wanted, book, 0.0, True, graphs=True)
    assert paths.choose("auto", codec.MCG, 0.0, True, graphs=True) == "fused"
    assert paths.choose("torch", codec.MCG, 0.0, False, graphs=True) == "torch"  # no GPU, no graphs


def test_whether_the_engine_captures() -> None:
    pytest.importorskip("vllm")
    from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig, set_current_vllm_config
    from vllm_glm_exl3.moe import _captures_graphs

    assert not _captures_graphs()
    for mode, captures in ((CUDAGraphMode.NONE, False), (CUDAGraphMode.PIECEWISE, True), (CUDAGraphMode.FULL_DECODE_ONLY, True)):
        config = VllmConfig(compilation_config=CompilationConfig())
        config.compilation_config.cudagraph_mode = mode
        with set_current_vllm_config(config):
            assert _captures_graphs() is captures


def test_without_the_extension() -> None:
    if ext.available():
        pytest.skip("exllamav3_ext is here")
    with pytest.raises(NoPath, match=r"exllamav3_ext cannot be imported .* build it from exllamav3 1\.6\.5"):
        paths.choose("auto", codec.MCG, 0.0, True)
