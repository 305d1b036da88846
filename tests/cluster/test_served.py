"""The generated parts of docs/serving.md, by values written out by hand."""

import pytest

from cluster import served


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine has set does not get in."""
    monkeypatch.setenv("MAX_MODEL_LEN", "5000")
    rows = served.limits().splitlines()
    assert "| `spark2` | 850,000 | 4 | 48 images, 1 video | 2,048 |" in rows
    assert "| `ring4` | 262,144 | 8 | 48 images, 1 video | 2,048 |" in rows
    assert "| `local` | 8,192 | 1 | - | - |" in rows
    assert len(rows) == 10  # six kits


def test_warnings() -> None:
    lines = served.warnings().splitlines()
    assert len(lines) == 5
    assert lines[0].endswith(
        "do not open the API to a network without VLLM_API_KEY; everyone who reaches the port may use the server. "
        "Instead: VLLM_API_KEY=..., or HOST=127.0.0.1 and an ssh tunnel. (`open-api`)"
    )
