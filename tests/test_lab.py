"""The `lab` bootstrap as a user runs it, in copies of the checkout whose lock holds one small wheel made here. No network."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cluster.support import default_interrupt, eventually

ROOT = Path(__file__).resolve().parents[1]
PYTHON = f"{sys.base_prefix}/bin/python3"  # what a user has before there is a .venv
SAYS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), sys.prefix]))\n"
HAS_PIP = subprocess.run([PYTHON, "-c", "import pip"], capture_output=True).returncode == 0
# Without ensurepip a venv takes 1.5 s instead of 5.5: that is how most of these tests make theirs.
QUICK = ("ensurepip",) if HAS_PIP else ()
MANAGED = list(Path("/usr/lib").glob("python3.1[1-9]/EXTERNALLY-MANAGED"))
MAKING = "lab: making .venv from requirements/dev.txt"


def make_wheel(shelf: Path) -> str:
    """A wheel called invoke on `shelf`, whose `python -m invoke` tells how it was called; its line for the lock."""
    path, info = shelf / "invoke-0.0-py3-none-any.whl", "invoke-0.0.dist-info"
    files = {
        "invoke/__init__.py": "",
        "invoke/__main__.py": SAYS,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: invoke\nVersion: 0.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": "".join(f"{name},,\n" for name in files)}.items():
            archive.writestr(name, text)
    return f"invoke==0.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@dataclass(frozen=True)
class Checkout:
    """A copy of `lab` with its own lock, beside a shelf that is the only place pip looks."""

    folder: Path
    shelf: Path
    python: str = PYTHON

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    def lock(self, text: str) -> None:
        (self.folder / "requirements" / "dev.txt").write_text(text)

    def begin(self, *words: str, without: tuple[str, ...] = QUICK, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start ./lab with a Python that lacks the modules `without`."""
        blocked = self.shelf / "-".join(("without", *without))
        blocked.mkdir(exist_ok=True)
        for module in without:
            (blocked / f"{module}.py").write_text("raise ImportError")
        env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.shelf), "PYTHONPATH": str(blocked)}
        return subprocess.Popen(
            [self.python, str(self.folder / "lab"), *words], cwd=cwd or self.folder, env=env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, preexec_fn=default_interrupt,
        )  # fmt: skip

    def run(self, *words: str, without: tuple[str, ...] = QUICK, cwd: Path | None = None) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of ./lab."""
        with self.begin(*words, without=without, cwd=cwd) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def works(self) -> bool:
        return self.run("x")[:2] == (0, self.told("x"))

    def told(self, *words: str) -> str:
        return json.dumps([list(words), str(self.folder), str(self.venv)]) + "\n"


def new_checkout(base: Path, lock: str | None = None) -> Checkout:
    """A checkout in a folder with a blank in its name, installable unless another lock is given."""
    checkout = Checkout(base / "my checkout", base / "shelf")
    checkout.shelf.mkdir()
    (checkout.folder / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "lab", checkout.folder)
    wheel = make_wheel(checkout.shelf)
    checkout.lock(lock or wheel)
    return checkout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose .venv was made by one call from another folder."""
    base = tmp_path_factory.mktemp("made")
    checkout = new_checkout(base)
    code, out, err = checkout.run("up", "--kit", "a b", cwd=base, without=())
    assert (code, out) == (0, checkout.told("up", "--kit", "a b"))
    assert err.startswith(MAKING)
    return checkout


@pytest.fixture
def mark(made: Checkout) -> Iterator[Path]:
    """A file in the .venv that only the same .venv holds; the lock is put back afterwards."""
    lock = (made.folder / "requirements" / "dev.txt").read_text()
    path = made.venv / "mark"
    path.write_text("")
    yield path
    made.lock(lock)


def test_second_call_installs_nothing(made: Checkout, mark: Path) -> None:
    assert made.run("status") == (0, made.told("status"), "")
    assert mark.exists()


def test_alone_it_lists_the_tasks(made: Checkout) -> None:
    assert made.run() == (0, made.told("--list"), "")


def test_runs_as_a_program() -> None:
    assert os.access(ROOT / "lab", os.X_OK)
    assert (ROOT / "lab").read_text().startswith("#!/usr/bin/env python3\n")


def failed_in_one_message(outcome: tuple[int, str, str], *parts: str) -> None:
    code, out, err = outcome
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert err.count("lab: ") == 2  # what it does, and why that failed
    for part in parts:
        assert part in err


def test_no_network_is_one_message_and_the_former_venv_stays(made: Checkout, mark: Path) -> None:
    made.lock(f"no-such-package==1.0 --hash=sha256:{'0' * 64}\n")
    failed_in_one_message(
        made.run("x"),
        "lab: installing the locked packages failed (exit 1): ",
        "No matching distribution found for no-such-package==1.0",
        "Try: check the network (or proxy) and run ./lab again",
    )
    assert mark.exists()
    assert not (made.folder / ".venv.old").exists()


def test_wrong_hash_is_refused(made: Checkout, mark: Path) -> None:
    made.lock(f"invoke==0.0 --hash=sha256:{'0' * 64}\n")
    failed_in_one_message(made.run("x"), "lab: installing the locked packages failed (exit 1): ")
    assert mark.exists()


def test_package_without_a_hash_is_refused(made: Checkout, mark: Path) -> None:
    made.lock("invoke==0.0\n")
    failed_in_one_message(made.run("x"), "--require-hashes")
    assert mark.exists()


def test_interrupted_install_puts_the_former_venv_back(made: Checkout, mark: Path) -> None:
    made.lock((made.folder / "requirements" / "dev.txt").read_text() + "# changed\n")
    with made.begin("x") as process:
        eventually(lambda: made.venv.exists() and not mark.exists())
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert mark.exists()
    assert "Traceback" not in err


def test_changed_lock_installs_again(made: Checkout, mark: Path) -> None:
    made.lock((made.folder / "requirements" / "dev.txt").read_text() + "# changed\n")
    code, out, err = made.run("x")
    assert (code, out) == (0, made.told("x"))
    assert err.startswith(MAKING)
    assert not mark.exists()


def test_killed_install_starts_over(tmp_path: Path) -> None:
    checkout = new_checkout(tmp_path)
    with checkout.begin("x") as process:
        eventually(checkout.venv.exists)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -9
    assert checkout.works()


def test_two_first_calls_at_once(tmp_path: Path) -> None:
    checkout = new_checkout(tmp_path)
    with checkout.begin("x") as one, checkout.begin("x") as two:
        ended = [process.communicate(timeout=120) for process in (one, two)]
    assert [out for out, _ in ended] == [checkout.told("x")] * 2
    assert sorted(err.startswith(MAKING) for _, err in ended) == [False, True]


def test_neither_ensurepip_nor_pip(tmp_path: Path) -> None:
    checkout = new_checkout(tmp_path)
    failed_in_one_message(
        checkout.run("x", without=("ensurepip", "pip")),
        "lab: this Python has neither venv's ensurepip nor pip; install one with: sudo apt install python3-venv\n",
    )
    assert not checkout.venv.exists()


@pytest.mark.skipif(not HAS_PIP, reason=f"{PYTHON} has no pip")
def test_pip_without_ensurepip_is_enough(tmp_path: Path) -> None:
    """Debian and Ubuntu without python3-venv, with python3-pip."""
    checkout = new_checkout(tmp_path)
    code, out, _ = checkout.run("x", without=("ensurepip",))
    assert (code, out) == (0, checkout.told("x"))
    assert not list(checkout.venv.glob("lib/python*/site-packages/pip"))


@pytest.mark.skipif(not MANAGED, reason="/usr/bin/python3 is not externally managed")
@pytest.mark.parametrize("without", [(), ("ensurepip",)], ids=["venv", "system pip"])
def test_externally_managed_python(tmp_path: Path, without: tuple[str, ...]) -> None:
    checkout = replace(new_checkout(tmp_path), python="/usr/bin/python3")
    has = "ensurepip" if not without else "pip"
    if subprocess.run(["/usr/bin/python3", "-c", f"import {has}"], capture_output=True).returncode:
        pytest.skip(f"/usr/bin/python3 has no {has}")
    assert checkout.run("x", without=without)[:2] == (0, checkout.told("x"))


@pytest.mark.parametrize("name", ["requirements/dev.txt", "requirements/lab.txt", "overlay/cuda.txt"])
def test_committed_lock_is_pinned_hashed_and_names_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).strip(), flags=re.IGNORECASE)
    assert len(blocks) > 20
    for block in blocks:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+", block)
        assert "--hash=sha256:" in block
    assert "://" not in text
    assert "index" not in re.sub(r"^.*==.*$", "", text, flags=re.MULTILINE)
