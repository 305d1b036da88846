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
from bench import notebook
from bench.figures.quality import pareto_figure, sweep_figure
from bench.kinds import registry
from bench.quality import AblationPoint, by_basis
from bench.report import build
from tests.ablit.samples import MODEL, panel, sample, side
from tests.ablit.served.test_facts import served

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
    assert "| brief-15 | 1-3 | 2 | -1 | 0.0200 (0.0100-0.0300, few windows) | 30 / 3 |" in done.stdout
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
    # four of four became one of four: effect 0.75. Wilson: 4 of 4 is 0.5101 to 1, 1 of 4 0.0456 to 0.6994; no correlation where nothing
    # varies, so 0.75 - sqrt(0.4899^2 + 0.4494^2) and 0.75 + 0.2044
    assert [(p.layers, p.alpha, p.effect, p.control) for p in found] == [("1-3", 2.0, 0.75, False), ("1-3", 2.0, 0.75, True)]
    assert [found[0].low, found[0].high] == pytest.approx([0.0852, 0.9544], abs=1e-4)
    assert found[0].kld_low == pytest.approx(0.01)
    assert found[0].source == "0123456789ab"
    basis = found[0].basis
    assert (basis.model, basis.where, basis.prompts, basis.judge) == ("tiny", "in process", 4, "brief, 8 tokens")
    assert (basis.positions, basis.windows, basis.top) == (30, 3, None)
    assert registry.call(registry.by_word("ablation").points) is kind.points
    assert isinstance(found[0], AblationPoint)


def test_served_points_and_other_prompts_have_their_own_basis() -> None:
    over_http = [
        sample(id=f"{ranks}" * 12, protocol="served", served=served().model_copy(update={"ranks": ranks}), edits=()) for ranks in (1, 2)
    ]
    fewer = sample(id="f" * 12, sides=(side("01", "11"),))
    found = kind.points([sample(), *over_http, fewer, sample(control="random")])
    assert [len(some) for _, some in by_basis(found)] == [2, 1, 1, 1]
    assert [basis.where for basis, _ in by_basis(found)] == ["in process", "on kit pair (1 rank)", "on kit pair (2 ranks)", "in process"]
    assert [(basis.prompts, basis.top) for basis, _ in by_basis(found)] == [(4, None), (4, 20), (4, 20), (2, None)]


def test_one_kit_with_other_settings_is_another_basis() -> None:
    """Told in the same words, and still no front of two."""
    ways = [served().model_copy(update={"settings_sha256": letter * 64}) for letter in "ab"]
    points = kind.points([sample(id=f"{at}" * 12, protocol="served", served=way, edits=()) for at, way in enumerate(ways)])
    assert [[point.source[0] for point in some] for _, some in by_basis(points)] == [["0"], ["1"]]
    assert len({basis.name for basis, _ in by_basis(points)}) == 1


def test_the_figures_have_the_front_of_the_table() -> None:
    """Dearer and no rarer, but not surely: on the front in both. Surely dearer: in none."""
    kld = {"a" * 12: (0.01, 0.02, 0.03), "b" * 12: (0.02, 0.03, 0.04), "c" * 12: (0.05, 0.06, 0.07)}
    made = [sample(id=id, facts=panel(*means)) for id, means in kld.items()]
    assert [(point.source[0], point.front) for point in kind.points(made)] == [("a", True), ("b", True), ("c", False)]
    assert [(row[-1][0], row[-3]) for row in kind.grid(made).rows] == [("a", "yes"), ("b", "yes"), ("c", "-")]


def test_directions_of_one_name_are_told_apart() -> None:
    other = sample(id="f" * 12, spec=sample().spec.model_copy(update={"direction": "c" * 64}))
    assert [point.direction for point in kind.points([sample(), other])] == ["brief-15 aaaaaa", "brief-15 cccccc"]
    assert [point.direction for point in kind.points([sample(), sample(id="f" * 12)])] == ["brief-15", "brief-15"]


def test_figures_of_kind_ablation(tmp_path: Path) -> None:
    write(sample(), tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{")
    done = invoke("plot", str(tmp_path), "--kind", "ablation", "--out", str(tmp_path / "out"))
    assert done.returncode == 0
    assert "left out: " in done.stderr
    assert "b.json" in done.stderr
    made = (path.name for path in (tmp_path / "out").glob("*.png"))
    assert sorted(made) == [
        "pareto-dark.png",
        "pareto.png",
        "sweep-dark.png",
        "sweep.png",
    ]


def test_the_page_has_a_part_for_each_basis(tmp_path: Path) -> None:
    write(sample(), tmp_path / "a.json")
    write(sample(id="f" * 12, sides=(side("01", "11"),)), tmp_path / "b.json")
    text = build.text(build.pile_of(tmp_path), tmp_path)
    for prompts in (4, 2):
        part = text.split(f"<h3>tiny in process; 30 positions in 3 windows; n = {prompts} prompts (brief, 8 tokens)</h3>")[1]
        assert part.split("<h3>")[0].split("</section>")[0].count("<picture>") == 2


def test_the_notebook_draws_each_basis_by_itself() -> None:
    points = kind.points([sample(), sample(id="f" * 12, sides=(side("01", "11"),))])
    for each, draw in ((notebook.by_basis, pareto_figure), (notebook.by_direction, sweep_figure)):
        assert each(draw, points).html.count("<picture>") == 2
        assert each(draw, []).html == "<p>no point</p>"


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
