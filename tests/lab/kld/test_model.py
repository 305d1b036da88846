"""Conversion of a GGUF: what is refused, what a failure leaves, what makes it done again."""

import json
import shutil
from pathlib import Path

import pytest

from bench.errors import BadRequest, BenchError
from bench.kld import local, model
from tests.lab.kld import tiny


def test_what_is_no_gguf_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(BadRequest, match="no such GGUF file"):
        model.converted(tmp_path / "none.gguf", print)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(BadRequest, match=r"bad\.gguf cannot be read as a GGUF model"):
        model.converted(tmp_path / "bad.gguf", print)
    assert [path.suffix for path in (tmp_path / "cache" / "spark-lab").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "a.gguf").write_bytes(b"x")
    with pytest.raises(BenchError, match="set XDG_CACHE_HOME"):
        model.converted(tmp_path / "a.gguf", print)


def test_the_real_one_is_kept_and_a_damaged_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tiny.real_gguf()
    home, said = model.converted(gguf, print), list[str]()
    known = json.loads((home / model.PROVENANCE).read_text())
    assert known["source_sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert known["files"]["model.safetensors"]["size_bytes"] == (home / "model.safetensors").stat().st_size
    assert model.converted(gguf, said.append) == home
    assert said == []
    copy = Path(shutil.copytree(home, tmp_path / home.name))
    assert model._whole(copy, known["source_sha256"])
    assert not model._whole(copy, "0" * 64)
    with (copy / "config.json").open("a") as file:
        file.write(" ")
    assert not model._whole(copy, known["source_sha256"])


def test_folders_without_a_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert local.main(["--folder", str(tmp_path), "--out", str(tmp_path / "x.npz")]) == 2
    assert "has no *.safetensors" in capsys.readouterr().err
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert local.main(["--folder", str(tmp_path), "--out", str(tmp_path / "x.npz")]) == 2
    assert "is no folder of a causal language model" in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()


def test_a_truncated_weight_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """safetensors has an exception of its own for it, which is neither an OSError nor a ValueError."""
    tiny.llama().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    assert local.main(["--folder", str(tmp_path), "--out", str(tmp_path / "x.npz")]) == 2
    said = capsys.readouterr().err
    assert "is no folder of a causal language model" in said
    assert "SafetensorError" not in said.splitlines()[-1]


def test_an_out_that_cannot_be_written_is_found_before_the_model_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not even one")
    assert local.main(["--folder", str(tmp_path), "--out", "/proc/none/x.npz"]) == 2
    assert "error: cannot write /proc/none/x.npz: No such file or directory" in capsys.readouterr().err
