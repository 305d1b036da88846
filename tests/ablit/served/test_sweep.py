"""The order of starts, what is kept and resumed, and that the kit is put back after any ending. The server is real, the kit is not."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ablit import pareto
from ablit.receipt import check, seal, write
from ablit.served import sweep as sweeps
from ablit.served.measure import Booted
from ablit.served.point import Point
from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.receipt import seal_of
from tests.ablit.samples import payload
from tests.ablit.served.hands import Hands, kit, sweep
from tests.ablit.served.vllm_like import KLD, TV, Script, serving

PLACE = "place"


@pytest.fixture
def hands() -> Iterator[Hands]:
    script = Script(say=lambda prompt: ("Yes.", not script.edited or prompt.startswith("Why")))
    with serving(script) as url:
        yield Hands(script, url)


def starts(hands: Hands) -> list[str]:
    return [each for each in hands.done if not each.startswith(PLACE)]


def test_a_whole_sweep(tmp_path: Path, hands: Hands) -> None:
    asked, said = sweep(tmp_path), list[str]()
    made = sweeps.run(asked, hands, said.append)
    assert starts(hands) == ["stock", "twin 0", "random 2", "point 2", "put back"]
    assert hands.done[0].count(".safetensors") == 2
    twin, _, point = made
    assert [each.control for each in made] == ["twin", "random", None]
    assert [check(asked.path(each)).id for each in asked.points] == [each.id for each in made]
    assert (twin.summary.kld, twin.protocol) == (0.0, "served")
    assert (point.summary.kld, 1 - point.summary.acceptance) == pytest.approx((KLD, TV), abs=1e-6)
    side = point.summary.sides[0]
    # all four answers ended by themselves; edited, only those to "Why": two lost, p = 2 (1/2)^2
    assert (side.stock_rate, side.rate, side.lost, side.gained, side.p) == (1.0, 0.5, 2, 0, 0.5)
    assert side.first_token_kld == pytest.approx(KLD, abs=1e-6)
    at = point.served
    assert at is not None
    assert (at.stock.boot, at.edited.boot, at.floor.boot, at.floor.mean) == ("b1", "b4", "b2", 0.0)
    assert at.edited.speculation is not None
    assert (at.edited.speculation.drafts, at.edited.speculation.length) == (16, 2.0)  # four answers, four drafts each
    assert [edit.rank for edit in at.edits] == [0, 1]
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == [".gitignore", "b1.npz", f"stock-{asked.id(None)}"]
    assert said[-1].startswith("point 3 of 3: KLD 0.0064 or more, rate 100% > 50% (")
    assert said[-1].endswith("about 0 min left)")
    assert len(pareto.rows(made)) == 3


def test_finished_points_and_the_stock_pass_are_kept(tmp_path: Path, hands: Hands) -> None:
    asked = sweep(tmp_path)
    sweeps.run(asked, hands, print)
    hands.done.clear()
    assert len(sweeps.run(asked, hands, print)) == 3
    assert hands.done == []  # nothing was even placed
    asked.path(asked.points[2]).write_text("{")  # cut off
    sweeps.run(asked, hands, print)
    assert starts(hands) == ["point 2", "put back"]
    (tmp_path / "work/b1.npz").unlink()
    asked.path(asked.points[1]).unlink()
    hands.done.clear()
    sweeps.run(asked, hands, print)
    assert starts(hands) == ["stock", "random 2", "put back"]


def test_interrupted_in_a_point(tmp_path: Path, hands: Hands) -> None:
    def interrupt(point: Point | None) -> None:
        if point and point.control is None:
            raise KeyboardInterrupt

    asked, hands.fault = sweep(tmp_path), interrupt
    with pytest.raises(BenchError, match=r"interrupted; 2 of 3 points are finished and kept in .*\ntry: the same command again goes on"):
        sweeps.run(asked, hands, print)
    assert hands.done[-1] == "put back"
    hands.done.clear()
    hands.fault = lambda point: None
    assert len(sweeps.run(asked, hands, print)) == 3
    assert starts(hands) == ["point 2", "put back"]


def test_a_start_that_fails_ends_the_sweep_and_the_kit_is_put_back(tmp_path: Path, hands: Hands) -> None:
    class LaunchError(Exception):
        """As the launcher's: not one of the lab's own."""

    def refuse(point: Point | None) -> None:
        if point and point.control == "random":
            raise LaunchError("layer 1 of this model has no o_proj")

    said, hands.fault = list[str](), refuse
    with pytest.raises(LaunchError, match="has no o_proj"):
        sweeps.run(sweep(tmp_path), hands, said.append)
    assert starts(hands) == ["stock", "twin 0", "random 2", "put back"]
    assert said[-1] == "stopped at point 2 of 3; what is finished is kept"


def test_a_kit_that_cannot_be_put_back_hides_no_failure(tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Hands) -> None:
        raise OSError("no route to host")

    def refuse(point: Point | None) -> None:
        raise BadRequest("first failure")

    monkeypatch.setattr(Hands, "put_back", broken)
    said, hands.fault = list[str](), refuse
    with pytest.raises(BadRequest, match="first failure"):
        sweeps.run(sweep(tmp_path), hands, said.append)
    assert said[-1] == "the kit could not be put back: no route to host; do it with: invoke restart, or invoke down"


def test_a_server_that_breaks_off(tmp_path: Path, hands: Hands) -> None:
    def fail(path: str) -> None:
        if path == "/v1/completions" and hands.script.edited:
            raise ConnectionError("engine is dead")

    hands.script.hook = fail
    with pytest.raises(BenchError, match="HTTP 500: engine is dead"):
        sweeps.run(sweep(tmp_path), hands, print)
    assert starts(hands) == ["stock", "twin 0", "random 2", "put back"]
    assert list((tmp_path / "work").glob("b3*")) != []  # what was cut off ...
    hands.script.hook = lambda path: None
    sweeps.run(sweep(tmp_path), hands, print)
    assert list((tmp_path / "work").glob("*.parts")) == []  # ... is measured on one start alone the next time


def test_a_kit_that_was_restarted_meanwhile(tmp_path: Path, hands: Hands) -> None:
    def restart(path: str) -> None:
        if path == "/v1/chat/completions" and hands.last == "b2":
            hands.last = "somebody's"

    hands.script.hook = restart
    with pytest.raises(InvalidMeasurement, match="boot b2 was stopped or started anew while it was measured"):
        sweeps.run(sweep(tmp_path), hands, print)
    assert list(tmp_path.glob("*.json")) == []


def test_another_image_than_at_the_stock_pass(tmp_path: Path, hands: Hands) -> None:
    hands.image = lambda number: "image" if number < 3 else "another"
    with pytest.raises(InvalidMeasurement, match="the image is another than at the stock pass"):
        sweeps.run(sweep(tmp_path), hands, print)
    assert len(list(tmp_path.glob("*.json"))) == 1  # the twin
    assert len([path for path, _ in hands.script.asked if path == "/v1/completions"]) == 10  # five windows of stock pass and twin


def test_ranks_that_report_another_edit(tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Hands.boot

    def boot(self: Hands, point: Point | None) -> Booted:
        booted = real(self, point)
        return replace(booted, edits=booted.edits[:1])

    monkeypatch.setattr(Hands, "boot", boot)
    with pytest.raises(InvalidMeasurement, match="1 ranks reported an edit of the model, there are 2"):
        sweeps.run(sweep(tmp_path), hands, print)


def test_receipts_of_another_kit_model_or_support_in_the_folder(tmp_path: Path, hands: Hands) -> None:
    sweeps.run(sweep(tmp_path), hands, print)
    hands.done.clear()
    asked = sweep(tmp_path).asked
    for field, other in {
        "kit": sweep(tmp_path, kit=kit(name="four")),
        "model": sweep(tmp_path, kit=kit(model=kit().model.model_copy(update={"sha256": "f" * 64}))),
        "support": sweep(tmp_path, asked=replace(asked, k=20)),
    }.items():
        with pytest.raises(BadRequest, match=f"holds receipt [0-9a-f]{{12}} of another {field}: .*\ntry: another --out"):
            sweeps.run(other, hands, print)
    assert hands.done == []
    # other prompts of the same kit may lie beside
    sweeps.refuse_strangers(sweep(tmp_path, asked=replace(asked, reply_tokens=8)))


def test_receipts_measured_in_process_in_the_folder(tmp_path: Path, hands: Hands) -> None:
    write(seal(payload(model=kit().model)), tmp_path / "a.json")
    with pytest.raises(BadRequest, match=r"of another kit: none \(measured in process\), and this sweep has pair 2 "):
        sweeps.run(sweep(tmp_path), hands, print)


def test_served_and_in_process_are_not_one_front(tmp_path: Path, hands: Hands) -> None:
    made = sweeps.run(sweep(tmp_path), hands, print)
    with pytest.raises(InvalidMeasurement, match="differ in field kit: they do not belong to one front"):
        pareto.rows([seal(payload(model=kit().model)), *made])


def test_plan(tmp_path: Path, hands: Hands) -> None:
    asked = sweep(tmp_path)
    assert sweeps.told(asked, 150.0) == [
        "kit pair, model tiny: 3 points, 0 finished before",
        "4 starts of the kit, about 2.5 minutes each by its last start, and the measurement; then it is put back",
        "  stock pass, unedited",
        f"  {asked.id(asked.points[0])}: unedited twin, layers 1-2, alpha 0",
        f"  {asked.id(asked.points[1])}: random-0, layers 1-2, alpha 2",
        f"  {asked.id(asked.points[2])}: brief-2, layers 1-2, alpha 2",
    ]
    sweeps.run(asked, hands, print)
    asked.path(asked.points[2]).unlink()
    assert sweeps.told(asked, None)[1] == "1 start of the kit, each as long as `invoke up`; then it is put back"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "in-process"}, "a point is served when it says how"),
        ({"served": None}, "a point is served when it says how"),
    ],
)
def test_receipt_that_contradicts_itself(tmp_path: Path, hands: Hands, change: dict[str, object], message: str) -> None:
    sweeps.run(sweep(tmp_path), hands, print)
    path = sweep(tmp_path).path(sweep(tmp_path).points[2])
    plain = json.loads(path.read_text()) | change
    path.write_text(json.dumps(plain | {"seal": seal_of(plain)}))
    with pytest.raises(InvalidMeasurement, match=message):
        check(path)


def test_disk_full_keeps_what_is_finished(tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = sweep(tmp_path), Path.write_text

    def full(self: Path, text: str, **more: str) -> int:
        if self.name.startswith(asked.id(asked.points[2])):
            raise OSError(28, "No space left on device")
        return real(self, text, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BenchError, match="No space left on device\ntry: free disk space"):
        sweeps.run(asked, hands, print)
    assert hands.done[-1] == "put back"
    assert [asked.finished(point) is not None for point in asked.points] == [True, True, False]
