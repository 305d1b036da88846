"""Which held-out prompts a job gets."""

from pathlib import Path
from typing import Any

import pytest

from ablit.__main__ import Job, against_fit, held_out
from bench.errors import BadRequest


def job(**changed: Any) -> Job:
    plain = {"behaviour": "brief", "held_out": None, "positive": None, "negative": None, "prompts": None, "other": None}
    return Job("points", {**plain, **changed})


def test_shipped_pair() -> None:
    first, other = held_out(job(prompts=100, other=10))
    assert (first.name, len(first.texts)) == ("brief.held-out.txt", 100)
    assert other is not None
    assert (other.name, len(other.texts)) == ("long.held-out.txt", 10)
    assert held_out(job())[1] is None


def test_own_prompts_that_the_direction_was_fitted_on(tmp_path: Path) -> None:
    (tmp_path / "fit.txt").write_text("Explain rain.\nExplain snow.\n")
    (tmp_path / "held.txt").write_text("Explain fog.\nexplain  snow.\n")
    with pytest.raises(BadRequest, match="held out, but the direction was fitted on it"):
        held_out(job(held_out=str(tmp_path / "held.txt"), positive=str(tmp_path / "fit.txt")))


def test_shipped_held_out_that_the_users_fit_contains(tmp_path: Path) -> None:
    shipped = held_out(job())[0].texts[3]
    (tmp_path / "fit.txt").write_text(f"Explain rain.\n{shipped}\n")
    with pytest.raises(BadRequest, match="held out, but the direction was fitted on it"):
        held_out(job(positive=str(tmp_path / "fit.txt")))


def test_no_shipped_prompts() -> None:
    with pytest.raises(BadRequest, match="no shipped prompts for disclaims\ntry: --held-out FILE, or one of brief, casual, hedged"):
        held_out(job(behaviour="disclaims"))


def test_the_fit_that_the_direction_file_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "held.txt").write_text("Explain fog.\n")
    mine = job(held_out=str(tmp_path / "held.txt"))
    sides = [side for side in held_out(mine) if side]
    against_fit(mine, sides, {})
    assert capsys.readouterr().err.startswith("held-out prompts were not checked against the fit: ")
    with pytest.raises(BadRequest, match=r"held\.txt: held out, but the direction was fitted on this very file"):
        against_fit(mine, sides, {"negative_sha256": sides[0].sha256})
