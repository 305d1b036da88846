"""Executing a plan: order, resumption, refusals. The boots here are made up; test_campaign.py runs real ones."""

import fcntl
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench.campaign import plan as plans
from bench.campaign import runner
from bench.campaign.plan import Arm, Work
from bench.campaign.runner import Campaign
from bench.compare import build
from bench.compare.load import read_sound
from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.receipt import Receipt, find, read, seal, write
from tests.bench.compare.support import receipt, tagged
from tests.bench.compare.test_plan import wanted
from tests.bench.samples import run

COUNT = itertools.count()


class Boots:
    """Boots arms that are 40 (A) and 50 (B) tok/s fast; `fail` is called before a slot's receipts are handed over."""

    def __init__(self, fail: Callable[[int], None] = lambda n: None) -> None:
        self.arms: list[str] = []
        self.fail = fail

    def __call__(self, arm: Arm, folder: Path) -> Sequence[Receipt]:
        n = len(self.arms)
        self.arms.append(arm.name)
        made = self.receipts(arm, n)
        for each in made:
            write(each, folder / f"{each.id}.json")
        self.fail(n)
        return made

    def receipts(self, arm: Arm, n: int) -> list[Receipt]:
        rate = 40 if arm.name.startswith("A") else 50
        later = {"created_utc": f"2099-01-01T00:{n:02}:00+00:00"}
        boot = f"boot{next(COUNT)}"
        return [receipt(arm.name, boot, n, [rate + n / 10] * 3, phase=phase, **later) for phase in ("prose", "structured")]


def campaign(folder: Path, control: bool = False) -> Campaign:
    plans.write(plans.make(wanted(control=control)), folder / "plan.json")
    return runner.opened(folder)


def said(_: str) -> None:
    pass


def test_all_slots_in_the_plan_s_order(tmp_path: Path) -> None:
    one, boot = campaign(tmp_path), Boots()
    runner.run(one, boot, said)
    assert tuple(boot.arms) == one.plan.order
    files = sorted(one.receipts.glob("*.json"))
    assert len(files) == 16
    first = read(files[0])
    assert first.plan is not None
    assert (first.plan.plan, first.plan.slot, first.plan.attempt, first.arm) == (one.plan.seal, 0, 1, one.plan.order[0])
    assert [entry["event"] for entry in runner.journal(one)] == ["start", "done"] * 8
    assert not (tmp_path / "partial").exists()
    runner.run(one, boot, said)
    assert len(boot.arms) == 8  # nothing left to do
    question = build.of_plan(one, read_sound(build.planned_receipts(one)))
    found = build.compare(question)
    assert (found.exit_code, found.plan) == (0, one.plan.seal)
    assert found.verdict == "FASTER in prose"
    assert [endpoint.primary for endpoint in found.endpoints] == [True, False]


def interrupt(at: int) -> Callable[[int], None]:
    def fail(n: int) -> None:
        if n == at:
            raise KeyboardInterrupt

    return fail


def test_an_interrupted_slot_is_repeated_and_the_order_kept(tmp_path: Path) -> None:
    one = campaign(tmp_path)
    with pytest.raises(BadRequest, match="not every arm has a finished slot yet"):
        build.of_plan(one, [])
    with pytest.raises(KeyboardInterrupt):
        runner.run(one, Boots(interrupt(2)), said)
    assert runner.state(one).finished == {0, 1}
    assert len(list((tmp_path / "partial").glob("*.json"))) == 2
    half = build.compare(build.of_plan(one, read_sound(build.planned_receipts(one))))
    assert (half.exit_code, "unfinished: 6 of 8 slots are open" in half.verdict) == (4, True)
    again = Boots()
    runner.run(one, again, said)
    assert tuple(again.arms) == one.plan.order[2:]
    assert runner.state(one).repeated == {2: 2}
    assert "slot  3  block 1" in runner.progress(one)[3]
    assert "2 attempts" in runner.progress(one)[3]
    assert build.of_plan(one, read_sound(build.planned_receipts(one))).notes == ("slot 3 needed 2 attempts (see journal.jsonl)",)
    assert {read(path).plan.attempt for path in one.receipts.glob("002-*.json")} == {2}  # type: ignore[union-attr]


def test_half_a_slot_does_not_count(tmp_path: Path) -> None:
    one = campaign(tmp_path)
    runner.run(one, Boots(), said)
    gone = next(one.receipts.glob("004-*-structured-*.json"))
    gone.unlink()
    assert 4 not in runner.state(one).finished
    boot = Boots()
    runner.run(one, boot, said)
    assert boot.arms == [one.plan.order[4]]
    kept = build.planned_receipts(one)
    assert len(kept) == len({(read(p).plan.slot, read(p).protocol.phase) for p in kept})  # type: ignore[union-attr]


def test_an_invalid_slot_is_kept_apart_and_stops_the_run(tmp_path: Path) -> None:
    class Broken(Boots):
        def receipts(self, arm: Arm, n: int) -> list[Receipt]:
            good = super().receipts(arm, n)
            return [good[0], receipt(arm.name, good[0].system.boot or "", n, [50], phase="structured", runs=(run(0, error="broken off"),))]

    one = campaign(tmp_path)
    with pytest.raises(InvalidMeasurement, match="slot 1: run 0: broken off"):
        runner.run(one, Broken(), said)
    assert not list(one.receipts.glob("*.json"))
    assert [path.name[:6] for path in (one.receipts / "invalid").glob("*.json")] == [f"000-{one.plan.order[0]}-"]
    assert runner.journal(one)[-1]["event"] == "failed"
    runner.run(one, Boots(), said)
    assert runner.state(one).repeated == {0: 2}


def test_an_old_boot_is_refused(tmp_path: Path) -> None:
    class Same(Boots):
        def receipts(self, arm: Arm, n: int) -> list[Receipt]:
            return [receipt(arm.name, "same", n, [50], phase=phase) for phase in ("prose", "structured")]

    with pytest.raises(InvalidMeasurement, match=r"slot 2: field system\.boot"):
        runner.run(campaign(tmp_path), Same(), said)


def test_receipts_of_another_plan_are_refused(tmp_path: Path) -> None:
    one = campaign(tmp_path)
    one.receipts.mkdir()
    for plan_seal, slot, arm, says in (
        ("sha256:" + "0" * 64, 0, one.plan.order[0], "another plan"),
        (one.plan.seal, 0, one.plan.order[1], "slot 0 is not one of arm"),
        (one.plan.seal, 99, one.plan.order[0], "slot 99"),
    ):
        write(tagged(plan_seal, slot, receipt(arm, "x", 1, [50])), one.receipts / "x.json")
        with pytest.raises(InvalidMeasurement, match=says):
            runner.state(one)
    write(receipt("A", "x", 1, [50]), one.receipts / "x.json")
    with pytest.raises(InvalidMeasurement, match="no plan"):
        runner.state(one)


def test_receipts_from_before_the_plan_are_refused(tmp_path: Path) -> None:
    one = campaign(tmp_path)
    runner.run(one, Boots(), said)
    old = [each.model_copy(update={"created_utc": "2020-01-01T00:00:00+00:00"}) for each in read_sound(find([one.receipts]))]
    with pytest.raises(InvalidMeasurement, match="before its plan"):
        build.of_plan(one, old)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    one = campaign(tmp_path)
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BenchError, match="another bench-run"):
            runner.run(one, Boots(), said)
    runner.run(one, Boots(), said)


def test_a_journal_line_cut_off_by_a_crash(tmp_path: Path) -> None:
    one = campaign(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        runner.run(one, Boots(interrupt(1)), said)
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text() + '{"utc": "20')
    runner.run(one, Boots(), said)
    lines = path.read_text().splitlines()
    assert sum(line.startswith('{"utc": "20') and not line.endswith("}") for line in lines) == 1
    assert json.loads(lines[-1])["event"] == "done"
    assert len(runner.state(one).finished) == 8


def test_the_control_decides(tmp_path: Path) -> None:
    class Drifting(Boots):
        def receipts(self, arm: Arm, n: int) -> list[Receipt]:
            rate = {"A": 40, "A-control": 36, "B": 50}[arm.name] + n / 10
            later = {"created_utc": f"2099-01-01T00:{n:02}:00+00:00", "system_settings": {"spec_method": arm.name[0]}}
            return [receipt(arm.name, f"boot{n}", n, [rate] * 3, phase=phase, **later) for phase in ("prose", "structured")]

    one = campaign(tmp_path, control=True)
    runner.run(one, Drifting(), said)
    found = build.compare(build.of_plan(one, read_sound(build.planned_receipts(one))))
    assert found.exit_code == 4
    assert found.verdict.startswith("INCONCLUSIVE: the control differs from itself by -")
    assert found.control is not None
    assert [each.held for each in found.control] == [False, False]


def test_every_number_of_lanes_must_be_there(tmp_path: Path) -> None:
    plans.write(plans.make(wanted(work=Work(phases=("prose",), runs=3, max_tokens=None, concurrency=(1, 2)))), tmp_path / "plan.json")
    one = runner.opened(tmp_path)

    class Half(Boots):
        def receipts(self, arm: Arm, n: int) -> list[Receipt]:
            return super().receipts(arm, n)[:1]

    with pytest.raises(InvalidMeasurement, match="slot 1: no receipt of phase prose"):
        runner.run(one, Half(), said)

    class Both(Half):
        def receipts(self, arm: Arm, n: int) -> list[Receipt]:
            (single,) = super().receipts(arm, n)
            lanes = single.model_copy(update={"id": f"{single.id}x2", "protocol": single.protocol.model_copy(update={"concurrency": 2})})
            return [single, seal(lanes)]

    runner.run(one, Both(), said)
    assert len(runner.state(one).finished) == 8
