"""Edits as values."""

import pytest

from ablit.spec import EditSpec, Kernel, alphas, kernel, shown
from bench.errors import BadRequest


def test_kernel_by_hand() -> None:
    kernel = Kernel(peak=20, reach=10, floor=0.2)
    assert [kernel.weight(layer) for layer in (20, 15, 25, 10, 30, 9, 31)] == pytest.approx([1, 0.6, 0.6, 0.2, 0.2, 0, 0])
    spec = EditSpec(direction="d", layers=(15, 20), alpha=2, kernel=kernel)
    assert [spec.alpha_of(15), spec.alpha_of(20)] == pytest.approx([1.2, 2.0])


def test_null_and_identity() -> None:
    spec = EditSpec(direction="d", layers=(1, 2), alpha=0)
    assert spec.is_null
    assert not spec.model_copy(update={"alpha": 1.0}).is_null
    assert EditSpec(direction="d", layers=(1, 2), alpha=0, kernel=Kernel(peak=1, reach=1, floor=0)).is_null
    assert spec.id == EditSpec(direction="d", layers=(1, 2), alpha=0.0).id != EditSpec(direction="d", layers=(1, 3), alpha=0).id


@pytest.mark.parametrize("bad", [{"layers": ()}, {"alpha": -1}, {"alpha": float("nan")}, {"alpha": float("inf")}, {"targets": ("q_proj",)}])
def test_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        EditSpec.model_validate({"direction": "d", "layers": (1,), "alpha": 1, **bad})


def test_alphas() -> None:
    assert alphas("0,1,2.5") == (0.0, 1.0, 2.5)
    for text in ("", "1,,2", "one", "-1", "nan", "inf"):
        with pytest.raises(BadRequest, match="--alphas is"):
            alphas(text)


def test_kernel_of_a_flag() -> None:
    assert kernel("18,10,0.2") == Kernel(peak=18, reach=10, floor=0.2)
    for text in ("", "18", "18,10", "18,10,0.2,1", "a,10,0", "18,0,0", "18,10,1.5", "18,10,-1", "nan,10,0"):
        with pytest.raises(BadRequest, match=r"--kernel is .*PEAK,REACH,FLOOR are wanted.*\ntry: 18,10,0\.2"):
            kernel(text)


def test_shown() -> None:
    assert shown((1, 2, 3, 7, 9, 10)) == "1-3,7,9-10"
