"""Plans: the order drawn, the seal, what no plan is made of; and the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.campaign import plan as plans
from bench.campaign.plan import Arm, Wanted, Work
from bench.errors import BadRequest, InvalidMeasurement
from bench.receipt import seal_of

ROOT = Path(__file__).parents[3]
ARMS = (Arm(name="A", settings={"SPEC_METHOD": "none"}), Arm(name="B", settings={"SPEC_METHOD": "ngram"}))
WORK = Work(phases=("prose", "structured"), runs=3, max_tokens=None)


def wanted(**changes: Any) -> Wanted:
    given = {"kit": "local", "arms": ARMS, "boots": 4, "work": WORK, "primary": ("prose",), "margin": 0.02, "seed": 1, **changes}
    return Wanted(**given)


def places(order: tuple[str, ...], arm: str) -> list[int]:
    return [at for at, name in enumerate(order) if name == arm]


def test_abba_orders() -> None:
    orders = {"".join(plans.order(["A", "B"], 4, "free", seed)[0]) for seed in range(30)}
    assert orders == {"ABBABAAB", "BAABABBA"}  # only the start is drawn
    five, blocks = plans.order(["A", "B"], 5, "free", 3)
    assert "".join(five)[:8] in orders
    assert sorted(five[8:]) == ["A", "B"]
    assert blocks == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)


def test_a_linear_drift_cancels_for_every_arm() -> None:
    for arms in (["A", "B"], ["A", "B", "A-control"]):
        for boots in (4, 6, 8):
            order, _ = plans.order(arms, boots, "free", 7)
            means = {arm: sum(places(order, arm)) / boots for arm in arms}
            assert len(set(means.values())) == 1, (order, means)


def test_block_orders_are_drawn_from_all() -> None:
    first = {"".join(plans.order(["A", "B"], 6, "block", seed)[0][:4]) for seed in range(200)}
    assert first == {"AABB", "ABAB", "ABBA", "BAAB", "BABA", "BBAA"}
    order, blocks = plans.order(["A", "B"], 6, "block", 5)
    assert (len(order), blocks) == (12, (0,) * 4 + (1,) * 4 + (2,) * 4)


def test_the_seed_gives_the_order() -> None:
    one, two = plans.make(wanted()), plans.make(wanted())
    assert one.order == two.order == plans.order(["A", "B"], 4, "free", 1)[0]
    assert one.id != two.id
    assert plans.make(wanted(seed=None)).seed != plans.make(wanted(seed=None)).seed


def test_a_control_is_the_first_arm_again() -> None:
    made = plans.make(wanted(control=True))
    assert made.control == Arm(name="A-control", settings={"SPEC_METHOD": "none"}, control_of="A")
    assert made.pair == ("A", "B")
    assert len(made.order) == 12
    assert made.rules.control_tolerance == {"prose": 0.04, "structured": 0.015}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"boots": 3}, "below 4 boots"),
        ({"boots": 4, "test": "block"}, "below 5 boots"),
        ({"primary": ("code",)}, "--primary code"),
        ({"work": Work(phases=("poetry",), runs=1, max_tokens=None)}, "phase 'poetry' cannot be planned"),
        ({"arms": (ARMS[0], ARMS[0])}, "both arms are called A"),
        ({"arms": (ARMS[0], Arm(name="B", settings=ARMS[0].settings))}, "the same settings"),
    ],
)
def test_no_plan_is_made_of(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        plans.make(wanted(**changes))


def test_written_read_and_never_overwritten(tmp_path: Path) -> None:
    made = plans.make(wanted())
    plans.write(made, tmp_path / "plan.json")
    assert plans.read(tmp_path) == plans.read(tmp_path / "plan.json") == made
    jsonschema.validate(json.loads((tmp_path / "plan.json").read_text()), json.loads((ROOT / "bench/schema/plan-v1.json").read_text()))
    with pytest.raises(BadRequest, match="never overwritten"):
        plans.write(made, tmp_path / "plan.json")
    with pytest.raises(BadRequest, match="no plan at"):
        plans.read(tmp_path / "nothing.json")


def test_an_edit_is_refused(tmp_path: Path) -> None:
    plans.write(plans.make(wanted()), tmp_path / "plan.json")
    plain = json.loads((tmp_path / "plan.json").read_text())
    plain["rules"]["margin"] = 0.2
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    with pytest.raises(InvalidMeasurement, match="field seal: the plan was edited"):
        plans.read(tmp_path)
    plain["order"] = ["A"] * 8
    plain["seal"] = seal_of(plain)
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    with pytest.raises(InvalidMeasurement, match="does not hold every arm"):
        plans.read(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InvalidMeasurement, match="not readable"):
        plans.read(tmp_path)


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True)


def test_the_command_line(tmp_path: Path) -> None:
    out = str(tmp_path / "c")
    sets = ("--set", "none:SPEC_METHOD=none", "--set", "ngram:SPEC_METHOD=ngram", "--set", "ngram:NGRAM_TOKENS=5")
    done = invoke("bench-plan", "--arms", "none,ngram", *sets, "--kit", "local", "--control", "--out", out)
    assert done.returncode == 0, done.stderr
    made = plans.read(tmp_path / "c")
    assert made.arms[1].settings == {"SPEC_METHOD": "ngram", "NGRAM_TOKENS": "5"}
    assert done.stdout.strip().endswith(" ".join(made.order))
    shown = invoke("bench-run", out, "--status")
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[-1] == "0 of 12 slots done"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--arms", "a"), "--arms takes two names"),
        (("--arms", "a,b", "--set", "c:PORT=1"), "takes ARM:NAME=VALUE with ARM one of a, b"),
        (("--arms", "a,b", "--set", "b:SPEC_METHODE=none"), "unknown setting SPEC_METHODE"),
        (("--arms", "a,b", "--set", "b:SPEC_METHOD=telepathy"), "SPEC_METHOD"),
        (("--arms", "a,b", "--set", "b:THREADS=2", "--boots", "2"), "below 4 boots"),
    ],
)
def test_bad_words_end_with_2_and_write_nothing(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = invoke("bench-plan", *words, "--kit", "local", "--out", str(tmp_path / "c"))
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "c").exists()
