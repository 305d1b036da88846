"""A receipt says what its facts say, or is refused."""

import json
from pathlib import Path

import pytest

from ablit.receipt import check, seal, summarize, write
from bench.errors import BenchError, InvalidMeasurement
from bench.receipt import seal_of
from tests.ablit.samples import edit, panel, payload, sample, side


def test_summary_by_hand() -> None:
    summary = summarize(panel(0.01, 0.02, 0.03), [side()])
    assert [summary.kld, summary.kld_max] == pytest.approx([0.02, 0.09])
    assert [summary.acceptance, summary.agreement] == pytest.approx([0.95, 0.9])
    first = summary.sides[0]
    # four of four became one of four: three lost, none gained, p = 2 * (1/2)^3
    assert (first.stock_rate, first.rate, first.lost, first.gained, first.p) == (1.0, 0.25, 3, 0, 0.25)
    assert (first.unsound, first.stock_unsound, first.first_token_kld) == (1, 0, 0.25)


def test_round_trip(tmp_path: Path) -> None:
    made = sample()
    write(made, tmp_path / "a.json")
    assert check(tmp_path / "a.json") == made


def altered(path: Path, change: object, reseal: bool) -> Path:
    plain = sample().model_dump(mode="json")
    change(plain)  # type: ignore[operator]
    if reseal:
        plain["seal"] = seal_of(plain)
    path.write_text(json.dumps(plain))
    return path


def test_changed_after_sealing(tmp_path: Path) -> None:
    path = altered(tmp_path / "a.json", lambda plain: plain.update(id="ffffffffffff"), reseal=False)
    with pytest.raises(InvalidMeasurement, match="field seal: does not fit"):
        check(path)


def test_summary_that_the_facts_do_not_give(tmp_path: Path) -> None:
    path = altered(tmp_path / "a.json", lambda plain: plain["summary"].update(kld=0.001), reseal=True)
    with pytest.raises(InvalidMeasurement, match=r"field summary\.kld: says 0\.001, the raw facts give 0\.0"):
        check(path)


def test_edit_that_is_not_the_one_asked_for(tmp_path: Path) -> None:
    def twice(plain: dict[str, list[dict[str, float]]]) -> None:
        plain["edits"][1]["ratio"] = 1.0  # alpha 2 applied twice: (1 - 2)^2

    with pytest.raises(InvalidMeasurement, match=r"layer 2 o_proj: signed ratio 1\.00000, alpha 2 gives -1\.00000"):
        check(altered(tmp_path / "a.json", twice, reseal=True))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"edits": (edit(1, 2.0), edit(2, 2.0))}, "not those of the specification"),
        ({"alpha": 0.0}, "null edit has a KLD that is not 0"),
        ({"sides": (side(first_kld=(0.1,)),)}, "not one outcome for each prompt"),
    ],
)
def test_contradictions(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    write(seal(payload(**changed)), tmp_path / "a.json")  # type: ignore[arg-type]
    with pytest.raises(InvalidMeasurement, match=message):
        check(tmp_path / "a.json")


def test_not_json_and_unknown_field(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InvalidMeasurement, match="not readable as JSON"):
        check(tmp_path / "a.json")
    with pytest.raises(InvalidMeasurement, match="field more: Extra inputs"):
        check(altered(tmp_path / "b.json", lambda plain: plain.update(more=1), reseal=True))


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(sample(), tmp_path / "a.json")
    before = (tmp_path / "a.json").read_bytes()

    def full(self: Path, text: str, encoding: str) -> int:
        self.write_bytes(text.encode(encoding)[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BenchError, match="No space left on device\ntry: free disk space"):
        write(sample(id="ffffffffffff"), tmp_path / "a.json")
    assert (tmp_path / "a.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]
