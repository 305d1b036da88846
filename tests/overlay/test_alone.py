"""The plugin is a distribution of its own: it imports nothing of this repository, and exllamav3_ext through one door."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.test_layers import OURS, imports

OVERLAY = Path(__file__).resolve().parents[2] / "overlay"
FILES = sorted(OVERLAY.rglob("*.py"))
LIGHT = ("__init__.py", "errors.py", "spec.py")  # imported by vLLM's every process, or before torch


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(OVERLAY)))
def test_imports(path: Path) -> None:
    found = set(imports(path.read_text()))
    assert not found & OURS
    assert "exllamav3_ext" not in found or path.name == "ext.py"
    assert path.name not in LIGHT or path.parent.name == "patches" or not found & {"torch"}


def test_distribution() -> None:
    project = tomllib.loads((OVERLAY / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == ["vllm==0.32.*"]
    packages = {".".join(path.parent.relative_to(OVERLAY).parts) for path in OVERLAY.rglob("__init__.py")}
    assert set(project["tool"]["setuptools"]["packages"]) == packages
    assert project["project"]["entry-points"]["vllm.general_plugins"] == {"glm_exl3": "vllm_glm_exl3:register"}


def test_receipts() -> None:
    """What is committed passed, and holds what the README says of it."""
    found = [json.loads(path.read_text()) for path in (OVERLAY.parent / "results/overlay").glob("h200-paths-*.json")]
    assert found
    for receipt in found:
        assert receipt["failed"] == []
        assert [row["what"] for row in receipt["checks"] if not row["error"] <= row["allowed"]] == []
        assert receipt["loading"]["peak_bytes"] <= 1.05 * receipt["loading"]["packed_bytes"]
        assert all(row["default_us"] < row["bare_exl3_moe_us"] for row in receipt["decode"] if row["tokens"] <= 32)


def test_rows_are_the_launchers() -> None:
    """Its rule about decode steps counts with the plugin's default, and its setting ends where the plugin's does."""
    assert "ROWS, MOST_ROWS = 512, 4096\n" in (OVERLAY / "vllm_glm_exl3/settings.py").read_text()
    assert "\nOVERLAY_TEMP_ROWS = 512 " in (OVERLAY.parent / "cluster/constraint_model.py").read_text()
    assert (
        'exl3_temp_rows_fused: int | None = setting(None, "rows of the fused EXL3 launch", ge=1, le=4096)\n'
        in (OVERLAY.parent / "cluster/fields.py").read_text()
    )
