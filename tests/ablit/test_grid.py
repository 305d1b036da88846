"""The points of a grid, in the order in which they are measured."""

from dataclasses import dataclass

import pytest

from ablit.grid import Grid, forks, strengths
from ablit.spec import EditSpec, Kernel
from bench.errors import BadRequest


@dataclass(frozen=True)
class Named:
    id: str


def drawn(real: Named, seed: int) -> Named:
    return Named(f"random-{seed} like {real.id}")


def test_twin_controls_grid() -> None:
    grid = Grid(ranges=((2, 3), (1, 2, 3)), alphas=(0.0, 1.0, 2.0), control_alphas=(2.0,))
    found = grid.points(Named("real"), drawn)
    assert all(spec.direction == direction.id for spec, direction in found)
    assert [(spec.direction, spec.layers, spec.alpha) for spec, _ in found] == [
        ("real", (1, 2, 3), 0.0),
        ("random-0 like real", (1, 2, 3), 2.0),
        ("random-1 like real", (1, 2, 3), 2.0),
        ("random-2 like real", (1, 2, 3), 2.0),
        ("real", (2, 3), 1.0),
        ("real", (1, 2, 3), 1.0),
        ("real", (2, 3), 2.0),
        ("real", (1, 2, 3), 2.0),
    ]
    assert {spec.targets for spec, _ in found} == {("o_proj",)}
    assert {spec.kernel for spec, _ in found} == {None}


def test_a_kernel_is_the_controls_too_and_not_the_twins() -> None:
    kernel = Kernel(peak=2, reach=2, floor=0.5)
    grid = Grid(((1, 2, 3),), (1.0,), (1.0, 3.0), ("o_proj", "down_proj"), seeds=(7,), kernel=kernel)
    found = [(spec.direction, spec.alpha, spec.kernel) for spec, _ in grid.points(Named("real"), drawn)]
    control = "random-7 like real"
    assert found == [("real", 0.0, None), (control, 1.0, kernel), (control, 3.0, kernel), ("real", 1.0, kernel)]
    assert {spec.targets for spec, _ in grid.points(Named("real"), drawn)} == {("o_proj", "down_proj")}


def test_where_edits_that_begin_alike_part() -> None:
    def spec(*layers: int, alpha: float = 1.0, direction: str = "a") -> EditSpec:
        return EditSpec(direction=direction, layers=layers, alpha=alpha)

    short, middle, long = spec(1, 2), spec(1, 2, 3, 4), spec(1, 2, 3, 4, 5, 6)
    gap, other_start, stronger, another = spec(1, 2, 4), spec(2, 3, 4), spec(1, 2, 3, alpha=2.0), spec(1, 2, 3, direction="b")
    found = forks([short, middle, long, gap, other_start, stronger, another])
    # short ends before 3, where middle and long go on, and before 4, where gap does; middle and long part at 5; gap leaves both at 3
    assert found == {short: (3, 4), middle: (3, 5), long: (3, 5), gap: (3, 4), other_start: (), stronger: (), another: ()}


def test_strengths() -> None:
    assert strengths("0,1,3", None) == ((0.0, 1.0, 3.0), (3.0,))
    assert strengths("1", "2,3") == ((1.0,), (2.0, 3.0))
    with pytest.raises(BadRequest, match="alpha is 0: nothing would be edited\ntry: 1,2"):
        strengths("0", None)
    with pytest.raises(BadRequest, match="alpha is 0,0: nothing would be edited"):
        strengths("0,0", "1")
    with pytest.raises(BadRequest, match="--controls is 1,0: a control of alpha 0 would be the twin again\ntry: 2"):
        strengths("1,2", "1,0")
