"""Checks of the code. lint, types and tests run in the locked environment that `./lab` made, which is what users run in."""

import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "none"
# they run in vLLM's environment
GPU_PARTS = ("tests/gpu/models.py", "tests/gpu/models_chain.py", "tests/gpu/engine.py", "tests/gpu/older_torch")


def _python(session: nox.Session, *args: str) -> None:
    session.run(sys.executable, "-m", *args, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and formatting."""
    _python(session, "ruff", "check", ".")
    _python(session, "ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict."""
    _python(session, "mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that needs neither root nor a GPU; the real 135M model is part of it."""
    _python(session, "pytest", *(session.posargs or ["tests", "--ignore=tests/testbed", "--ignore=tests/overlay", "--ignore=tests/lab"]))


@nox.session
def testbed(session: nox.Session) -> None:
    """Two real hosts on this machine (root, Debian packages): ssh, Docker, and vLLM over two ranks. Installs what it needs."""
    _python(session, "tests.testbed.hosts", "install")
    session.run(sys.executable, "-m", "pytest", *(session.posargs or ["tests/testbed"]), env={"TESTBED": "1"}, external=True)


@nox.session(name="testbed-image")
def testbed_image(session: nox.Session) -> None:
    """vLLM for CPUs and the plugin in one image, built from local wheels on the testbed and served by the kit twin; writes a receipt.
    Ten minutes and 15 GB of disk, so by hand and not in CI."""
    _python(session, "tests.testbed.hosts", "install")
    _python(session, "tests.testbed.whole_image", *(session.posargs or ["build/testbed-image.json"]))


@nox.session
def peers(session: nox.Session) -> None:
    """Our client and its peers (llama-benchy, guidellm, aiperf, vllm bench serve) on a server whose every send is known, then on the local
    kit. Makes an environment for each under the user's cache folder (8 GB in all, once); vLLM's is that of the testbed session."""
    _python(session, "bench.peers", *(session.posargs or ["--local", "--out", "results/peers/peers.json"]))


@nox.session
def notebooks(session: nox.Session) -> None:
    """Execute the notebooks on the committed receipts and export them as HTML; then their tests."""
    _python(session, "invoke", "notebooks", "--out", "build/notebooks")
    _python(session, "pytest", *(session.posargs or ["tests/notebooks"]))


@nox.session
def overlay(session: nox.Session) -> None:
    """The vLLM plugin, in real vLLM on the CPU (made at the first run: 3.5 GB); its types first."""
    _python(session, "mypy", "--config-file", "overlay/pyproject.toml", "overlay", "tests/overlay", *GPU_PARTS)
    python = str(session.run(sys.executable, "-m", "tests.overlay.env", external=True, silent=True)).split()[-1]
    # vLLM's imports warn; what the tests promise is checked by the tests
    session.run(python, "-m", "pytest", "-W", "default", *(session.posargs or ["-m", "not gpu", "tests/overlay"]), external=True)


@nox.session
def lab(session: nox.Session) -> None:
    """The KLD panel and the ablation lab on the real 135M model, in the lab environment (made at the first run: 1.3 GB)."""
    _python(session, "cli.lab_env", "pytest", *(session.posargs or ["tests/lab"]))


@nox.session
def gpu(session: nox.Session) -> None:
    """The plugin's execution paths on this machine's CUDA device, with the python that has torch and exllamav3_ext; writes a receipt."""
    python = session.posargs[0] if session.posargs else "python3"
    receipt = session.posargs[1] if len(session.posargs) > 1 else "build/overlay-gpu.json"
    session.run(python, "-m", "tests.overlay.gpu_checks", receipt, external=True, env={"PYTHONPATH": "overlay:."})


@nox.session
def gpu_engine(session: nox.Session) -> None:
    """Real vLLM 0.32 with the plugin on this machine's GPUs: tiny models, then an engine for each way to run them; writes a receipt.
    With the python that has vllm, transformers >= 5.19, exllamav3_ext and the plugin; without a network see tests/gpu/prepare.py."""
    python = session.posargs[0] if session.posargs else "python3"
    receipt = session.posargs[1] if len(session.posargs) > 1 else "build/gpu-engines.json"
    session.run(python, "-m", "tests.gpu.models", "build/gpu-models", external=True, env={"PYTHONPATH": "."})
    session.run(python, "-m", "tests.gpu.engine_checks", "build/gpu-models", receipt, external=True, env={"PYTHONPATH": "."})
