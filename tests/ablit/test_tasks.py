"""The commands' own refusals: one line, exit 2, before the lab environment is even looked at; and the kind in the registry."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ablit import kind
from ablit.receipt import write
from ablit.spec import Kernel
from ablit.table import edit
from bench.kinds import registry
from bench.quality import AblationPoint
from tests.ablit.samples import MODEL, panel, sample, side

ROOT = Path(__file__).parents[2]


def invoke(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ablit.sweep"], "error: no direction\n  try: invoke ablit.direction"),
        (["ablit.evaluate", "--direction", "d", "--alpha", "x"], "error: --alpha takes a number, not 'x'"),
        (["ablit.sweep", "--direction", "d", "--targets", "q_proj"], "error: --targets is 'q_proj'; allowed: o_proj, o_proj,down_proj"),
        (
            ["ablit.evaluate", "--direction", "d", "--kernel", "1,2,0", "--kit", "spark2", "--layers", "1"],
            "error: --kernel is for a model in this process, and --kit names a served one",
        ),
        (["ablit.direction", "--variant", "mode"], "error: --variant is 'mode'; allowed: mean, orthogonal, per-layer"),
    ],
)
def test_bad_flags(args: list[str], message: str) -> None:
    done = invoke(*args)
    assert done.returncode == 2
    assert message in done.stderr


def test_table_of_kind_ablation(tmp_path: Path) -> None:
    write(sample(), tmp_path / "a.json")
    plain = json.loads((tmp_path / "a.json").read_text())
    plain["summary"]["kld"] = 0.0
    (tmp_path / "b.json").write_text(json.dumps(plain))
    done = invoke("table", str(tmp_path), "--kind", "ablation")
    assert done.returncode == 0
    assert "| brief-15 | 1-3 | 2 | -1 | 0.0200 (0.0100-0.0300) |" in done.stdout
    assert "b.json: field seal: does not fit" in done.stderr
    assert invoke("receipt.check", str(tmp_path)).returncode == 3
    (tmp_path / "b.json").unlink()
    assert invoke("receipt.check", str(tmp_path)).returncode == 0


def test_fronts_are_kept_apart() -> None:
    """The other model's point is worse in both, and still first of its own front."""
    other = sample(id="b" * 12, model=MODEL.model_copy(update={"sha256": "c" * 64}), facts=panel(0.5, 0.5, 0.5), sides=(side("1111"),))
    rows = kind.grid([sample(), other]).rows
    assert [(row[-1], row[-3]) for row in rows] == [("0123456789ab", "yes"), ("b" * 12, "yes")]


def test_points_of_the_figures() -> None:
    twin = sample(alpha=0.0, facts=panel(0.0, 0.0, 0.0))
    control = sample(control="random")
    found = kind.points([sample(), twin, control])
    # four of four became one of four: effect 0.75; Wilson of 1 of 4 is 0.0456 to 0.6994
    assert [(p.layers, p.alpha, p.effect, p.control) for p in found] == [("1-3", 2.0, 0.75, False), ("1-3", 2.0, 0.75, True)]
    assert [found[0].low, found[0].high] == pytest.approx([0.3006, 0.9544], abs=1e-4)
    assert found[0].kld_low == pytest.approx(0.01)
    assert (found[0].prompts, found[0].source) == (4, "0123456789ab")
    assert registry.call(registry.by_word("ablation").points) is kind.points
    assert isinstance(found[0], AblationPoint)


def test_what_is_not_as_usual_in_an_edit() -> None:
    assert [point.edit for point in kind.points([sample()])] == [""]
    plain, kernel = sample().spec, Kernel(peak=1, reach=2, floor=0)
    assert edit(plain) == ""
    assert edit(plain.model_copy(update={"targets": ("o_proj", "down_proj")})) == "+down"
    assert edit(plain.model_copy(update={"targets": ("o_proj", "down_proj"), "kernel": kernel})) == "kernel +down"
    assert edit(plain.model_copy(update={"kernel": kernel})) == "kernel"


def test_card() -> None:
    card = kind.card(sample())
    assert (card.kind, card.id, card.model, card.valid, card.supports) == ("ablation", "0123456789ab", "tiny", True, False)
