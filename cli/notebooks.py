"""Notebooks: execute all and export them as HTML; open JupyterLab. The only module that knows Jupyter."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.args import integer
from cli.main import BadArgument, task

ROOT = Path(__file__).resolve().parent.parent
FOLDER, EXPORTED = ROOT / "notebooks", ROOT / "results" / "notebooks"
_CELL_S = 3600  # the tuning notebook may restart a cluster several times
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class NotebookFailed(Exception):
    """A cell ended with an error; the message names it."""

    exit_code = 1


def execute(path: Path) -> Any:
    """The notebook with the outputs of a fresh kernel of this very Python, run in its own folder. Raises NotebookFailed."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    try:
        read: Any = nbformat.read  # untyped
        notebook = read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError) as error:
        raise NotebookFailed(f"{path.name} is no notebook: {error}") from error
    # over sockets in a folder of our own: over TCP other users of the machine could listen
    config = Config({"KernelManager": {"transport": "ipc"}})
    place = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, config=config, timeout=_CELL_S, kernel_name="python3", resources=place)
    with _profile():
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise NotebookFailed(_said(path, notebook, error)) from error
    return notebook


@contextlib.contextmanager
def _profile() -> Iterator[None]:
    """An empty profile for the kernel, so that nothing of the user's own start-up files runs in it."""
    with tempfile.TemporaryDirectory(prefix="nb-") as folder:
        values = {"IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder, "JUPYTER_PREFER_ENV_PATH": "1"}
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name in values:
                os.environ.pop(name, None)
            os.environ.update({name: value for name, value in before.items() if value is not None})


def _said(path: Path, notebook: Any, error: Exception) -> str:
    """Notebook, cell by number and first line, and the last lines of the error."""
    code = [(number, cell) for number, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]
    failed = [(n, cell) for n, cell in code if any(output.output_type == "error" for output in cell.outputs)]
    number, cell = failed[-1] if failed else next(((n, c) for n, c in code if not c.execution_count), code[-1])
    first = next(iter(cell.source.strip().splitlines()), "")
    tail = [line for line in _ANSI.sub("", str(error)).splitlines() if line.strip()][-4:]
    return "\n".join([f"{path.name}: cell {number} failed: {first}", *tail])


def export(notebook: Any, title: str, out: Path) -> None:
    """The executed notebook as one HTML file that asks nothing of the network."""
    from nbconvert import HTMLExporter

    made: Any = HTMLExporter  # untyped
    exporter = made(template_name="lab", mathjax_url="", require_js_url="", mermaid_js_url="", jquery_url="")
    text, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_suffix(".tmp")
    temporary.write_text(_alone(text), encoding="utf-8")
    os.replace(temporary, out)


def _alone(text: str) -> str:
    """The page without the template's scripts: they only load further ones (formulas, diagrams, widgets), which we do not use."""
    return re.sub(r"<script\b.*?</script>", "", text, flags=re.DOTALL)


def chosen(words: str) -> list[Path]:
    """The notebooks named by file or by the start of their name; all of them without a word. Raises BadArgument."""
    every = sorted(FOLDER.glob("*.ipynb"))
    found = []
    for word in words.splitlines():
        fit = [Path(word)] if word.endswith(".ipynb") and Path(word).is_file() else [path for path in every if path.name.startswith(word)]
        if not fit:
            raise BadArgument(f"no notebook '{word}'; there are {', '.join(path.name for path in every)}")
        found += fit
    return found or every


@task(
    help={
        "paths": "notebooks, by file or by the start of the name, as 04 (default: all)",
        "out": "folder of the HTML (default results/notebooks/)",
    }
)
def notebooks(ctx: Any, paths: str = "", out: str | None = None) -> int:
    """Execute the notebooks in fresh kernels and export them as HTML. Goes on after a failing one; exit 1, its cell named."""
    folder, failed = Path(out) if out else EXPORTED, 0
    for path in chosen(paths):
        print(f"{path.name} ...", file=sys.stderr, flush=True)
        try:
            export(execute(path), path.stem, folder / f"{path.stem}.html")
            print(folder / f"{path.stem}.html")
        except NotebookFailed as error:
            print(f"error: {error}".replace("\n", "\n  "), file=sys.stderr)
            failed += 1
    return 1 if failed else 0


@task(help={"port": "port to listen on (default: 8889, or the next free one)", "no_browser": "do not open a browser"})
def jupyter(ctx: Any, port: str | None = None, no_browser: bool = False) -> None:
    """Open JupyterLab on notebooks/ with this environment's kernel. Ctrl-C ends it."""
    number = integer("port", port, low=1, high=65535) or 8889  # 8888 is the clusters' API
    argv = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}", f"--ServerApp.port={number}"]
    argv += ["--LabApp.default_url=/lab/tree/notebooks", *(["--no-browser"] if no_browser else [])]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(JUPYTER_PREFER_ENV_PATH="1", PYTHONPATH=os.pathsep.join(paths))
    sys.stdout.flush()
    os.execv(argv[0], argv)
