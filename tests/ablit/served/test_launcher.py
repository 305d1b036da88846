"""The glue: settings of a point, the kit as receipts name it, and every refusal before anything is touched."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablit.served import launcher
from ablit.served.ask import Server
from ablit.served.measure import Booted
from ablit.served.point import Point
from ablit.spec import EditSpec
from bench.errors import BadRequest
from cluster import lifecycle, place, session, settings
from cluster.engines import vllm
from cluster.errors import BadSettings
from cluster.place import ModelFolder
from cluster.ranks import ranks
from cluster.settings import Effective
from tests.ablit.served.hands import direction

ROOT = Path(__file__).parents[3]
FIT = ROOT / "ablit/prompts/long.fit.txt"
CONFIG = {"hidden_size": 4096, "num_hidden_layers": 45, "num_nextn_predict_layers": 1, "dtype": "bfloat16"}
GLM = ModelFolder(json.dumps({"architectures": ["X"], "text_config": CONFIG}), {"model-00001.safetensors": 7})


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No settings of this machine; a .env of the test's own."""
    for name in [*settings.NAMES, *settings.ALIASES]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    return tmp_path


def spark(own: Path, text: str = "") -> Effective:
    (own / ".env").write_text(f"HEAD_IP=10.0.0.1\nWORKER_IP=10.0.0.2\nHEAD_CX7_IF=a\nWORKER_CX7_IF=a\n{text}")
    return launcher._base("spark2")


def point(alpha: float = 2.0, layers: tuple[int, ...] = (15, 16, 17, 20)) -> Point:
    real = direction()
    return Point(EditSpec(direction=real.id, layers=layers, alpha=alpha), real)


def test_settings_of_a_point(own: Path) -> None:
    base = spark(own, "EXTRA_MOUNTS=~/a:/b:ro\nGLM53_EXTRA_ENV='A=1'\nABLIT_ALPHA=3\n")
    made = launcher.edited(base, point(0.5), "/opt/spark-lab/files/x.safetensors", selfcheck=True)
    (own / ".env").unlink()
    words = vllm.docker_run(ranks(made)[1])
    for wanted in ("ABLIT=1", "ABLIT_METHOD=proj", "ABLIT_LAYERS=15-17,20", "ABLIT_ALPHA=0.5", "A=1"):
        assert wanted in words
    assert "ABLIT_DIRECTION=/opt/spark-lab/files/x.safetensors" in words
    assert "~/.local/state/spark-lab/spark2/files:/opt/spark-lab/files:ro" in words
    assert "~/a:/b:ro" in words
    assert made.settings.canary_expect is None
    assert base.settings.canary_expect == "Paris"
    assert made.settings.skip_selfcheck == 0
    # beside the edit nothing that shapes the server is changed
    assert {line.partition(":")[0] for line in settings.difference(base.fingerprint(), made.fingerprint())} == {
        "ABLIT",
        "EXTRA_MOUNTS",
        "GLM53_EXTRA_ENV",
    }


def test_the_selfcheck_is_run_once(own: Path) -> None:
    assert launcher.edited(spark(own), point(), "/x/y", selfcheck=False).settings.skip_selfcheck == 1


def test_ablit_in_the_env_file(own: Path) -> None:
    with pytest.raises(BadRequest, match=r"\.env line 5: ABLIT is 1, and a sweep compares with the unedited model\ntry: ABLIT=0"):
        spark(own, "ABLIT=1\n")


def test_a_context_too_short_for_the_panel(own: Path) -> None:
    with pytest.raises(BadRequest, match=r"\.env line 5: MAX_MODEL_LEN is 513, and a window of the KLD panel needs 514"):
        spark(own, "MAX_MODEL_LEN=513\n")
    assert spark(own, "MAX_MODEL_LEN=514\n").settings.max_model_len == 514


def test_a_setting_that_forbids_an_edit(own: Path) -> None:
    """Packed o_proj cannot be edited: the launcher's own rule speaks, before anything is started."""
    base = spark(own, "GLM53_DENSE_EXL3=1\n")
    with pytest.raises(BadSettings, match="dense-exl3-ablit"):
        launcher.edited(base, point(), "/x/y", selfcheck=True)


def test_kit_as_receipts_name_it(own: Path) -> None:
    made = launcher.kit_of(spark(own), GLM)
    assert (made.name, made.ranks, made.model.layers, made.model.hidden, made.model.dtype) == ("spark2", 2, 45, 4096, "bfloat16")
    assert made.model.name == "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold"
    other = ModelFolder(GLM.config, {"model-00001.safetensors": 8})
    assert launcher.kit_of(spark(own), other).model.sha256 != made.model.sha256
    assert launcher.kit_of(spark(own, "MODEL_REVISION=" + "1" * 40 + "\n"), GLM).model.sha256 != made.model.sha256
    assert launcher.kit_of(spark(own, "PORT=9999\n"), GLM).settings_sha256 != made.settings_sha256
    assert launcher.kit_of(spark(own, "EXTRA_ARGS=--dtype float32\n"), GLM).model.dtype == "float32"


def flags(**changed: object) -> SimpleNamespace:
    return SimpleNamespace(**{"control_seeds": 3, **changed})


def test_grid_of_a_model(own: Path) -> None:
    grid = launcher._grid(flags(), ["15-44", "45"], "0,1,3", None, GLM)
    assert (grid.ranges[1], grid.alphas, grid.control_alphas, grid.seeds) == ((45,), (0.0, 1.0, 3.0), (3.0,), (0, 1, 2))
    assert launcher._grid(flags(control_seeds=1), ["1"], "1", "2,3", GLM).control_alphas == (2.0, 3.0)
    with pytest.raises(BadRequest, match="there is no layer 46, the last of 46 is 45"):
        launcher._grid(flags(), ["15-46"], "1", None, GLM)
    with pytest.raises(BadRequest, match="nothing would be edited"):
        launcher._grid(flags(), ["1"], "0", None, GLM)
    with pytest.raises(BadRequest, match="a control of alpha 0 would be the twin again"):
        launcher._grid(flags(), ["1"], "1", "0", GLM)


def test_a_direction_of_another_repository_is_told(own: Path) -> None:
    base = spark(own)
    assert launcher._unlike(base, direction()) is None
    facts = {"model_repository": "org/other", "model_revision": "1" * 40}
    told = launcher._unlike(base, dataclasses.replace(direction(), facts=facts))
    assert str(told).startswith(
        "the direction was read from org/other at 111111111111, the kit serves Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold at "
    )
    assert launcher._unlike(spark(own, "MODEL=/some/folder\n"), dataclasses.replace(direction(), facts=facts)) is None


def test_processes_in_different_homes(own: Path) -> None:
    base = spark(own, "RUNTIME=process\nHEAD_VENV=/v\nWORKER_VENV=/v\n")
    assert launcher._folder(base, {"head": "/home/a/f", "worker": "/home/a/f"}) == "/home/a/f"
    with pytest.raises(BadRequest, match="the nodes' homes differ: /home/a/f, /home/b/f"):
        launcher._folder(base, {"head": "/home/a/f", "worker": "/home/b/f"})


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (
            ["--kit", "local", "--layers", "1"],
            2,
            "kit local is served by llama.cpp, which cannot edit weights as it loads them\n  try: leave out --kit",
        ),
        (["--kit", "twin"], 2, "no layers: which ones there are depends on the served model"),
        (["--kit", "twin", "--layers", "1", "--model", "x"], 2, "--model is for a model in this process"),
        (["--kit", "twin", "--layers", "1", "--trials", "9"], 2, "--trials is for a model in this process"),
        (["--kit", "twin", "--layers", "1", "--targets", "o_proj,down_proj"], 2, "the edit at load is of o_proj alone"),
        (["--kit", "twin", "--layers", "1", "--behaviour", "polite"], 2, "no shipped prompts for polite"),
        (["--kit", "twin", "--layers", "1", "--direction", "none.safetensors"], 2, "none.safetensors cannot be read: No such file"),
        (
            ["--kit", "twin", "--layers", "1", "--held-out", str(FIT)],
            2,
            "long.fit.txt: held out, but the direction was fitted on this very",
        ),
        (["--kit", "none", "--layers", "1"], 2, "KIT is 'none'; known kits: "),
    ],
)
def test_refused_at_once(tmp_path: Path, args: list[str], code: int, message: str) -> None:
    given = [] if "--direction" in args else ["--direction", str(ROOT / "results/ablation/brief-15.safetensors")]
    words = [sys.executable, "-m", "invoke", "ablit.sweep", *args, *given, "--out", str(tmp_path)]
    env = {**os.environ, "MAX_MODEL_LEN": "1024"}  # the twin's own is shorter than a window
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kit_out_of_reach(tmp_path: Path) -> None:
    """Nobody listens at that port of this machine; the launcher's own message."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HEAD_IP": "127.0.0.9", "HEAD_SSH": "a@127.0.0.9:9", "WORKER_IP": "127.0.0.8"}
    file, out = str(ROOT / "results/ablation/brief-15.safetensors"), str(tmp_path / "o")
    words = [sys.executable, "-m", "invoke", "ablit.sweep", "--kit", "twin", "--layers", "1", "--direction", file, "--out", out]
    more = {"MAX_MODEL_LEN": "1024"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=env | more, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "error: head" in done.stderr
    assert "  try: " in done.stderr
    assert not (tmp_path / "o").exists()


# --- the launcher's part, without a kit: what is called in which order ---


class Cluster:
    """A kit of which only the head's record is known."""

    def __init__(self, effective: Effective, record: dict[str, Any] | None) -> None:
        self.effective, self.record = effective, record

    def head_record(self) -> dict[str, Any] | None:
        return self.record


@dataclass
class Known:
    """`record`: of the running kit; `called`: the launcher's verbs, in order."""

    record: dict[str, Any] | None = None
    called: list[str] = field(default_factory=list)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    state = Known()

    @contextlib.contextmanager
    def opened(effective: Effective) -> Iterator[Cluster]:
        yield Cluster(effective, state.record)

    monkeypatch.setattr(session, "opened", opened)
    monkeypatch.setattr(place, "model", lambda cluster: GLM)
    for verb in ("up", "down", "restart"):
        monkeypatch.setattr(lifecycle, verb, lambda cluster, say, verb=verb: state.called.append(verb))
    return state


def test_put_back_what_was_stopped(own: Path, known: Known) -> None:
    launcher.Launcher(spark(own), was_running=False).put_back()
    assert known.called == ["down"]


def test_put_back_what_ran(own: Path, known: Known) -> None:
    base = spark(own)
    edited = launcher.edited(base, point(), "/x/y", selfcheck=True)
    for record, wanted in ((None, "restart"), ({"settings": edited.fingerprint()}, "restart"), ({"settings": base.fingerprint()}, "up")):
        known.record = record
        known.called.clear()
        launcher.Launcher(base, was_running=True).put_back()
        assert known.called == [wanted]


def test_a_kit_that_runs_with_other_settings(own: Path, known: Known) -> None:
    """Such as those that a sweep left behind whose machine was switched off."""
    base = spark(own)
    known.record = {"settings": launcher.edited(base, point(), "/x/y", selfcheck=True).fingerprint()}
    with pytest.raises(BadRequest, match=r"(?s)other settings than .*\nABLIT: 1 -> 0\n.*\ntry: invoke restart"):
        launcher._seen(base)
    known.record = {"settings": base.fingerprint(), "boot_phases_s": {"weights": 100.0, "process": 20.0}}
    assert launcher._seen(base) == (GLM, True, 120.0)
    known.record = None
    assert launcher._seen(base) == (GLM, False, None)


def test_whether_a_start_still_runs(own: Path, known: Known) -> None:
    hands, booted = launcher.Launcher(spark(own), was_running=False), Booted(Server("http://x", "m"), "b1", None, {}, ())
    for record, still in ((None, False), ({"boot": "b2"}, False), ({"boot": "b1"}, True)):
        known.record = record
        assert hands.still(booted) is still
