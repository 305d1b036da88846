"""KLD receipts: recomputed from their positions, refused when changed; the table beside the published panels; the command itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.kinds import kld as shown
from bench.kinds import registry
from bench.kld import capture, receipt, scoring
from bench.receipt import seal_of
from tests.bench.kld.samples import full

ROOT = Path(__file__).resolve().parents[3]
P, Q, NEAR = (0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.5, 0.2501, 0.2499)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures of a reference, of itself again with a little noise, and of an edit; two windows of two positions."""
    home = tmp_path_factory.mktemp("captures")
    capture.write(full([[P, P], [P, P]]), home / "stock.npz")
    capture.write(full([[P, NEAR], [P, P]]), home / "again.npz")
    capture.write(full([[Q, Q], [Q, P]], edit="alpha 1"), home / "edit.npz")
    return home


@pytest.fixture
def made(folder: Path) -> receipt.Receipt:
    asked = scoring.Asked(folder / "stock.npz", folder / "edit.npz", folder / "again.npz")
    return receipt.build(scoring.compare(asked, lambda line: None))


def test_figures_and_floor_by_hand(made: receipt.Receipt) -> None:
    """1/4 ln 2 = 0.173287 at three of four positions; windows 0.173287 and 0.0866435."""
    assert made.summary.scores.mean == 0.12996525
    assert made.summary.interval == (0.0866435, 0.173287)
    assert [row.mean for row in made.summary.windows] == [0.173287, 0.0866435]
    assert made.summary.scores.top1_agreement == 0.25
    assert made.floor is not None
    # 1/4 ln(0.25/0.2501) + 1/4 ln(0.25/0.2499) = 4e-8, below a micronat
    assert (made.floor.sums, made.floor.mean) == ((0, 0), 0.0)
    assert (made.above_floor, made.lower_bound, made.support) == (True, False, "full")
    assert (made.reference.edit, made.candidate.edit) == ("stock", "alpha 1")


def test_a_null_edit_is_exactly_zero_and_not_above_the_floor(folder: Path) -> None:
    asked = scoring.Asked(folder / "stock.npz", folder / "stock.npz", folder / "again.npz")
    found = receipt.build(scoring.compare(asked, lambda line: None))
    assert (found.summary.scores.mean, found.summary.scores.max, found.summary.scores.min) == (0, 0, 0)
    assert found.summary.scores.top1_agreement == 1
    assert found.above_floor is False


def test_top_k_is_labelled_a_lower_bound(folder: Path) -> None:
    found = receipt.build(scoring.compare(scoring.Asked(folder / "stock.npz", folder / "edit.npz", top_k=1), lambda line: None))
    assert (found.support, found.k, found.lower_bound, found.above_floor) == ("top-k", 1, True, None)
    assert "LOWER BOUND" in shown.table([found]).rows[0][3]


def test_the_floor_must_be_of_the_reference(folder: Path) -> None:
    asked = scoring.Asked(folder / "stock.npz", folder / "edit.npz", folder / "edit.npz")
    with pytest.raises(BadRequest, match="the reference captured twice; --floor is of tiny, alpha 1"):
        scoring.compare(asked, lambda line: None)


def test_check_accepts_what_was_written(made: receipt.Receipt, tmp_path: Path) -> None:
    receipt.write(made, tmp_path / "r.json")
    assert receipt.check(tmp_path / "r.json") == made
    pile = registry.load([tmp_path / "r.json"])
    assert (pile.left_out, pile.of("kld")[0].card.id) == ([], made.id)


def set_mean(plain: dict[str, Any]) -> None:
    plain["summary"]["scores"]["mean"] = 0.001


def set_above(plain: dict[str, Any]) -> None:
    plain["above_floor"] = False


def set_bound(plain: dict[str, Any]) -> None:
    plain["lower_bound"] = True


def set_floor(plain: dict[str, Any]) -> None:
    plain["floor"]["mean"] = 0.01


CHANGES = [(set_mean, "summary.scores.mean"), (set_above, "above_floor"), (set_bound, "lower_bound"), (set_floor, "floor.mean")]


@pytest.mark.parametrize(("change", "field"), CHANGES, ids=[field for _, field in CHANGES])
def test_check_recomputes(made: receipt.Receipt, tmp_path: Path, change: Any, field: str) -> None:
    plain = made.model_dump(mode="json")
    change(plain)
    (tmp_path / "r.json").write_text(json.dumps(plain))
    with pytest.raises(InvalidMeasurement, match="field seal"):
        receipt.check(tmp_path / "r.json")
    (tmp_path / "r.json").write_text(json.dumps({**plain, "seal": seal_of(plain)}))
    with pytest.raises(InvalidMeasurement, match=f"field {field}: says"):
        receipt.check(tmp_path / "r.json")


def test_check_refuses_other_fields_and_no_json(made: receipt.Receipt, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**made.model_dump(mode="json"), "extra": 1}))
    with pytest.raises(InvalidMeasurement, match="field extra"):
        receipt.check(tmp_path / "r.json")
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(InvalidMeasurement, match="not readable as JSON"):
        receipt.check(tmp_path / "r.json")


def test_published_panels_stand_beside_and_say_so(made: receipt.Receipt) -> None:
    rows = shown.table([made]).rows
    assert rows[0][:2] == ("ours", "tiny, alpha 1, float32")
    assert rows[0][4:6] == ("0.129965", "0.086643 to 0.173287")
    published = {row[1]: (row[0], row[4], row[15]) for row in rows[1:]}
    assert published["EXL3 4 bpw (this checkpoint)"] == ("PUBLISHED", "0.024555", "P7a")
    assert {row[0] for row in rows[1:]} == {"PUBLISHED"}
    assert len({len(row) for row in rows} | {len(shown.HEAD)}) == 1
    (point,) = shown.points([made])
    assert (point.ours, point.mean, point.low, point.high, point.floor) == (True, 0.12996525, 0.0866435, 0.173287, 0.0)


def invoke(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    two = ("--reference", str(folder / "stock.npz"), "--candidate", str(folder / "edit.npz"))
    done = invoke("kld.score", *two, "--floor", str(folder / "again.npz"), "--out", str(out), "--windows")
    assert done.returncode == 0, done.stderr
    assert "| 0.129965 | 0.086643 to 0.173287 |" in done.stdout
    assert "| w-1 | 0.086643 | 0.1733 | 0.5000 |" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("receipt: ")
    assert invoke("receipt.check", str(out)).returncode == 0
    table = invoke("table", str(out), "--kind", "kld").stdout
    assert "| ours | tiny, alpha 1, float32 |" in table
    assert "| PUBLISHED |" in table


def test_a_receipt_that_cannot_be_written_is_found_before_the_scoring(folder: Path, tmp_path: Path) -> None:
    two = ("--reference", str(folder / "stock.npz"), "--candidate", str(folder / "edit.npz"))
    done = invoke("kld.score", *two, "--out", "/proc/none/r.json")
    # no line of progress comes before it
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: cannot write /proc/none/r.json: No such file or directory\n  try: free disk space, or another place\n"
    done = invoke("kld.score", *two, "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: cannot write {tmp_path}: it is a folder\n")


def test_a_full_disk_leaves_the_earlier_receipt(made: receipt.Receipt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.write_text("earlier")

    def full(self: Path, text: str, **options: str) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BenchError, match=r"cannot write .*: No space left on device\ntry: free disk space"):
        receipt.write(made, path)
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]
    assert path.read_text() == "earlier"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("kld.score",), 2, "error: --reference and --candidate name the two captures"),
        (("kld.score", "--reference", "no.npz", "--candidate", "no.npz"), 2, "error: no such capture: no.npz"),
        (("kld.score", "--differs", "windows"), 2, "error: --differs is 'windows'; allowed: dtype"),
        (("kld.capture", "--in-process", "--base-url", "http://x"), 2, "error: --base-url, --model and --kit ask a server"),
        (("kld.capture", "--base-url", "http://127.0.0.1:1", "--out", "x"), 2, "error: --out is 'x'; a capture is a file NAME.npz"),
        (("kld.capture", "--base-url", "http://127.0.0.1:1"), 1, "error: http://127.0.0.1:1/v1/models: no usable answer"),
        (("kld.capture", "--top-k", "0"), 2, "error: --top-k is 0; allowed: 1 to 1000"),
    ],
)
def test_bad_words(words: tuple[str, ...], code: int, message: str) -> None:
    done = invoke(*words)
    assert done.returncode == code
    assert done.stderr.startswith(message)
