"""What contradicts an edit that was asked for."""

import pytest

from ablit.served.facts import Boot, Floor, RankEdit, Served, problems
from ablit.served.point import Point
from ablit.spec import EditSpec
from tests.ablit.served.hands import direction, rank_edit

REAL = direction()
POINT = Point(EditSpec(direction=REAL.id, layers=(1, 2, 3, 4), alpha=2), REAL)  # layer 4 is an MTP block behind four decoders


def served(*edits: RankEdit, boots: tuple[str, str] = ("b1", "b2")) -> Served:
    stock, edited = (Boot(boot=boot, speculation=None, speed=None) for boot in boots)
    floor = Floor(boot="b3", mean=0.0, max_window_mean=0.0)
    plain = {"kit": "pair", "engine": "vllm", "ranks": 2, "image": None, "settings_sha256": "a" * 64, "k": 20}
    return Served.model_validate({**plain, "stock": stock, "edited": edited, "edits": edits, "floor": floor})


def edits(*changes: dict[str, object]) -> list[RankEdit]:
    return [rank_edit(rank, POINT, **{"layers": "1-3", **changed}) for rank, changed in zip((0, 1), changes, strict=True)]


def found(*made: RankEdit, **more: tuple[str, str]) -> list[str]:
    return problems(served(*made, **more), POINT.spec, 4, REAL.sha256)


def test_as_asked() -> None:
    assert found(*edits({}, {})) == []
    mtp = [rank_edit(rank, POINT, layers="4", part="mtp") for rank in (0, 1)]
    assert found(*edits({}, {}), *mtp) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"alpha": 3.0}, "rank 1 model: its edit has alpha 3.0, not 2.0"),
        ({"layers": "1-2"}, "rank 1 model: its edit has layers 1-2, not 1-3"),
        ({"method": "transplant"}, "method transplant, not proj"),
        ({"source": "f" * 64}, "direction ffff"),
        ({"world": 1}, "world size 1, not 2"),
        ({"ratio": (-1.0, 1.0)}, r"signed ratios (-1.0, 1.0), alpha 2 gives -1"),
        ({"ratio": None}, "signed ratios None"),
    ],
)
def test_another_edit(changed: dict[str, object], message: str) -> None:
    (said,) = found(*edits({}, changed))
    assert message in said


def test_a_rank_without_an_edit_and_a_boot_that_was_both() -> None:
    assert found(edits({}, {})[0]) == ["1 ranks reported an edit of the model, there are 2"]
    assert found(*edits({}, {}), boots=("b1", "b1")) == ["the edited model was measured on the boot of the stock pass"]


def test_a_twin_that_was_edited() -> None:
    twin = EditSpec(direction=REAL.id, layers=(1,), alpha=0)
    assert problems(served(*edits({}, {})), twin, 4, REAL.sha256) == ["the unedited twin was edited"]
    assert problems(served(), twin, 4, REAL.sha256) == []
