"""A sweep: its points, resuming, and what an interruption or a full disk leaves."""

from dataclasses import replace
from pathlib import Path

import pytest
from optuna.storages.journal import JournalFileBackend

from ablit import evaluate, pareto, search, sweep
from ablit.__main__ import Job, _grid
from ablit.edit import random_like
from ablit.grid import Grid
from ablit.model import Loaded
from ablit.prompts import Prompts
from ablit.receipt import check
from bench.errors import BadRequest, BenchError
from tests.lab.ablit.tiny import SHA, bench, loaded, vectors

GRID = Grid(ranges=((1, 2, 3), (2, 3)), alphas=(0.0, 1.0, 2.0), control_alphas=(2.0,))


def quiet(line: str) -> None:
    pass


def test_receipts_are_sound_and_the_twin_is_exact(tmp_path: Path) -> None:
    said: list[str] = []
    made = sweep.run(bench(loaded()), GRID.points(vectors(), random_like), tmp_path, said.append)
    kept = [check(path) for path in sorted(tmp_path.glob("*.json"))]
    assert sorted(receipt.id for receipt in kept) == sorted(receipt.id for receipt in made)
    twin = next(receipt for receipt in kept if receipt.control == "twin")
    assert (twin.summary.kld, twin.summary.acceptance, twin.summary.agreement) == (0.0, 1.0, 1.0)
    assert twin.summary.sides[0].first_token_kld == 0.0
    assert [receipt.control for receipt in made].count("random") == 3
    assert all(receipt.summary.kld > 0.001 for receipt in kept if receipt.control != "twin")
    assert len(said) == 8
    assert said[-1].startswith("point 8 of 8: seed-5 2-3 alpha 2: KLD ")
    assert len(pareto.rows(kept)) == 8


class Counted:
    """evaluate.begin that counts its calls and fails at one of them."""

    def __init__(self, fail_at: int = 0, error: BaseException | None = None) -> None:
        self.calls, self.fail_at, self.error, self.real = 0, fail_at, error, evaluate.begin

    def __call__(self, *args: object) -> evaluate.Begun:
        self.calls += 1
        if self.error and self.calls == self.fail_at:
            raise self.error
        return self.real(*args)  # type: ignore[arg-type]


def test_interrupted_then_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, points = bench(loaded()), GRID.points(vectors(), random_like)
    monkeypatch.setattr(evaluate, "begin", Counted(4, KeyboardInterrupt()))
    with pytest.raises(BenchError, match="interrupted after 3 of 8 points\ntry: the same command again goes on there"):
        sweep.run(tiny, points, tmp_path, quiet)
    assert len(list(tmp_path.glob("*.json"))) == 3
    cut = sorted(tmp_path.glob("*.json"))[0]
    cut.write_text(cut.read_text()[:100])  # as a crash in the middle of a write on another file system would
    counted = Counted()
    counted.real = evaluate.begin.real  # type: ignore[attr-defined]
    monkeypatch.setattr(evaluate, "begin", counted)
    assert len(sweep.run(tiny, points, tmp_path, quiet)) == 8
    assert counted.calls == 6
    assert all(check(path) for path in tmp_path.glob("*.json"))


def test_full_disk_keeps_the_finished_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text
    written: list[Path] = []

    def limited(self: Path, text: str, **options: str) -> int:
        if self.suffix == ".tmp" and len(written) >= 2:
            raise OSError(28, "No space left on device")
        written.append(self)
        return real(self, text, **options)

    monkeypatch.setattr(Path, "write_text", limited)
    with pytest.raises(BenchError, match="No space left on device\ntry: free disk space and run it again: finished points are kept"):
        sweep.run(bench(loaded()), GRID.points(vectors(), random_like), tmp_path, quiet)
    assert len([check(path) for path in tmp_path.iterdir()]) == 2


def test_everything_is_refused_before_the_first_point(tmp_path: Path) -> None:
    points = Grid(ranges=((1, 2), (2, 9)), alphas=(1.0,), control_alphas=(1.0,)).points(vectors(), random_like)
    with pytest.raises(BadRequest, match="layer 9 is outside the model"):
        sweep.run(bench(loaded()), points, tmp_path, quiet)
    assert not list(tmp_path.iterdir())


def test_ranges() -> None:
    assert list(sweep.ranges(["1-3", "0,2"], 4)) == [(1, 2, 3), (0, 2)]
    for text in ("3-1", "2-4", "", "x", "-1"):
        with pytest.raises(BadRequest, match="--layers"):
            list(sweep.ranges([text], 4))


def test_kernel_of_a_job() -> None:
    flags = {"alphas": "2", "controls": None, "layers": "1-3", "targets": "o_proj", "control_seeds": 1, "kernel": "2,1,0.5"}
    found = [
        (spec.alpha_of(1), spec.alpha_of(2), spec.is_null) for spec, _ in _grid(Job("points", flags), 4).points(vectors(), random_like)
    ]
    assert found == [(0.0, 0.0, True), (1.0, 2.0, False), (1.0, 2.0, False)]
    with pytest.raises(BadRequest, match=r"--kernel is 0,1,0\.5: it leaves nothing of alpha in layers 2-3\ntry: a peak among them"):
        _grid(Job("points", {**flags, "kernel": "0,1,0.5", "layers": "2-3"}), 4)


def test_how_many_points_go_on_together() -> None:
    tiny = bench(loaded())  # 3 prompts; 64 // 3
    assert evaluate.at_once(tiny) == 21
    tiny.sides[0] = replace(tiny.sides[0], ask=replace(tiny.sides[0].ask, prompts=Prompts("many", ("a",) * 65, SHA)))
    assert evaluate.at_once(tiny) == 1


def test_unknown_classifier() -> None:
    with pytest.raises(BadRequest, match="no classifier called polite\ntry: brief, casual, hedged, disclaims"):
        evaluate.prepare(loaded(), [evaluate.Ask(Prompts("p", ("a",), "0" * 64), "polite")], 1, [0], quiet)


def space(tiny: Loaded) -> search.Space:
    return search.Space(("m", "d", "t", "p"), vectors(), ("o_proj",), search.upper(4), 4)


def test_search_resumes_from_its_journal(tmp_path: Path) -> None:
    tiny, said = bench(loaded()), list[str]()
    here = space(tiny.loaded)
    counts = [len(search.run(tiny, here, search.study_of(tmp_path, here, 1), tmp_path, trials, said.append)) for trials in (2, 3, 3)]
    assert counts == [2, 1, 0]
    made = [check(path) for path in tmp_path.glob("*.json")]
    assert len(made) == 3
    assert all(receipt.spec.kernel and min(receipt.spec.layers) >= 1 for receipt in made)
    assert [line[:14] for line in said] == ["trial 1 of 2: ", "trial 2 of 2: ", "trial 3 of 3: "]
    assert search.left(search.study_of(tmp_path, here, 1), 5) == 2


@pytest.mark.parametrize("content", ["not a journal\n", "[]\n", '{"op_code": 99}\n', '{"op_code": 4}\n'])
def test_search_with_a_broken_journal(tmp_path: Path, content: str) -> None:
    (tmp_path / search.JOURNAL).write_text(content)
    with pytest.raises(BenchError, match=r"the search journal .* cannot be used"):
        search.study_of(tmp_path, space(loaded()), 1)


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_full_disk_while_the_journal_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A trial begins, gets its four values, and ends. What the disk took of the last line is dropped at the next call."""
    tiny = bench(loaded())
    here = space(tiny.loaded)
    study, real, calls = search.study_of(tmp_path, here, 1), JournalFileBackend.append_logs, list[int]()

    def limited(self: JournalFileBackend, logs: list[dict[str, object]]) -> None:
        calls.append(1)
        if len(calls) == at:
            with (tmp_path / search.JOURNAL).open("ab") as file:
                file.write(b'{"op_code":5,"wor')
            raise OSError(28, "No space left on device")
        real(self, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", limited)
    with pytest.raises(BenchError, match=r"cannot be used: \[Errno 28\] No space left on device\ntry: free disk space"):
        search.run(tiny, here, study, tmp_path, 2, quiet)
    monkeypatch.setattr(JournalFileBackend, "append_logs", real)
    assert len(search.run(tiny, here, search.study_of(tmp_path, here, 1), tmp_path, 2, quiet)) == 2
    assert search.left(search.study_of(tmp_path, here, 1), 2) == 0


def test_an_interrupted_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = bench(loaded())
    here = space(tiny.loaded)
    monkeypatch.setattr(evaluate, "begin", Counted(3, KeyboardInterrupt()))
    with pytest.raises(BenchError, match="interrupted after 2 of 4 trials\ntry: the same command again goes on there"):
        search.run(tiny, here, search.study_of(tmp_path, here, 1), tmp_path, 4, quiet)
    assert search.left(search.study_of(tmp_path, here, 1), 4) == 2
