"""Who may import whom, and the one door each heavy package has: read from the source with ast."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"cluster", "bench", "cli", "ablit", "overlay", "tests", "tasks", "notebooks"}
PACKAGES = ("cluster", "bench", "cli", "ablit")

# what a module with tasks may import of ours beside its own package: the first folder decides
GLUE = {
    "cluster": {"cli"},
    "bench": {"cli", "cluster"},
    "ablit": {"cli", "bench", "cluster"},
    "tasks.py": {"cli", "cluster", "bench", "ablit"},
}
# modules that are glue without being tasks
GLUE_TOO = {"ablit/served/launcher.py"}
# what every module of a package may import of ours beside its own package; the overlay is imported under its distribution's name
BESIDE = {"ablit": {"bench"}}
_ABLIT_TORCH = {
    f"ablit/{name}.py"
    for name in (
        "directions",
        "edit",
        "evaluate",
        "lean",
        "measure",
        "measure_exact",
        "measure_heretic",
        "model",
        "panel",
        "reply",
        "__main__",
    )
}
# package -> the only files that may import it
DOORS = {
    "fabric": {"cluster/ssh.py"},
    "huggingface_hub": {"cluster/weights/hub.py"},
    "openai": {"bench/openai_stream.py"},
    "pandas": {"bench/table.py"},
    "matplotlib": {"bench/plot.py", *(f"bench/figures/{name}.py" for name in ("style", "performance", "comparison", "quality"))},
    "nbclient": {"cli/notebooks.py"},
    "nbconvert": {"cli/notebooks.py"},
    "nbformat": {"cli/notebooks.py"},
    "numpy": {"bench/calibration.py", "bench/kld/capture.py", "bench/kld/distance.py", "bench/kld/served.py"}
    | {"ablit/served/direction.py", "ablit/served/panel.py"},
    "torch": {"bench/kld/model.py", "bench/kld/head.py", "bench/kld/inprocess.py", "bench/kld/local.py"} | _ABLIT_TORCH,
    "transformers": {"bench/kld/model.py", "bench/kld/local.py", "ablit/model.py"},
    "optuna": {"ablit/search.py"},
    "arro3": {"ablit/parquet.py"},
    "vllm_glm_exl3": {"ablit/directions.py", "ablit/edit.py", "ablit/measure.py", "ablit/measure_exact.py"},
    "xllamacpp": {"cluster/engines/llama_server.py"},
}


def imports(text: str) -> Iterator[str]:
    """The top-level name of every import in `text`, wherever it stands, importlib.import_module included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." if node.level else str(node.module).partition(".")[0]
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from _named(node.args[0])


def _named(argument: ast.expr) -> Iterator[str]:
    if isinstance(argument, ast.Constant):  # a registry imports what its rows name: the rows are data
        yield str(argument.value).partition(".")[0]


def sources(*folders: str) -> list[str]:
    """Our Python files under `folders`, and the root's, as paths from the root."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def imported(path: str) -> set[str]:
    return set(imports((ROOT / path).read_text()))


FILES = [*sources(*PACKAGES), "tasks.py"]


def test_the_walk_sees_every_form() -> None:
    text = "import a.b as c, d\nfrom e.f import g\nfrom . import h\ndef i():\n    import j\n__import__('k.l')\nimportlib.import_module('m')"
    assert sorted(imports(text)) == [".", "a", "d", "e", "j", "k", "m"]
    assert len(FILES) > 30


@pytest.mark.parametrize("path", FILES)
def test_imports_of_ours(path: str) -> None:
    own = {path.partition("/")[0]} if "/" in path else set()
    allowed = GLUE.get(path.partition("/")[0], set()) if path.rpartition("/")[2] == "tasks.py" or path in GLUE_TOO else set()
    assert imported(path) & OURS - own <= allowed | BESIDE.get(path.partition("/")[0], set())
    assert "." not in imported(path)


@pytest.mark.parametrize(("package", "doors"), DOORS.items(), ids=DOORS)
def test_one_door(package: str, doors: set[str]) -> None:
    assert {path for path in FILES if package in imported(path)} <= doors


def test_node_agent_needs_only_the_standard_library() -> None:
    for path in (ROOT / "cluster").glob("agent*.py"):
        if path.stem != "agent_client":  # sent as one text: an import of another part is only for the tools that read it
            assert imported(f"cluster/{path.name}") <= sys.stdlib_module_names | {"cluster"}
    assert set(imports((ROOT / "lab").read_text())) <= sys.stdlib_module_names
