"""Dominance beyond intervals, gates, and what may stand in one front."""

from pathlib import Path

import pytest

from ablit import table
from ablit.pareto import Gate, dominates, load, rows
from ablit.receipt import Receipt, write
from bench.errors import InvalidMeasurement
from tests.ablit.samples import MODEL, panel, sample, side


def point(id: str, kld: float, hits: int, spread: float = 0.0, **changed: object) -> Receipt:
    """100 prompts with `hits` of them still brief; ten windows around `kld`."""
    means = [kld - spread, kld + spread] * 5
    outcome = "1" * hits + "0" * (100 - hits)
    return sample(id=id, facts=panel(*means), sides=(side(outcome, "1" * 100),), **changed)


def test_dominance_needs_one_sure_advantage() -> None:
    cheap_good, dear_bad = point("a", 0.01, 10), point("b", 0.02, 60)
    assert dominates(cheap_good, dear_bad)
    assert not dominates(dear_bad, cheap_good)
    # 10 and 14 of 100 overlap (Wilson 5.5-17.4 and 8.5-22.1 %), and so do the KLD intervals: nothing is decided
    assert not dominates(point("a", 0.0100, 10, 0.005), point("b", 0.0102, 14, 0.005))
    # the same rates, but the cost is surely lower
    assert dominates(point("a", 0.01, 10), point("b", 0.02, 14))
    # rarer but dearer: both stay
    assert not dominates(point("a", 0.02, 10), point("b", 0.01, 60))


def test_front_and_gates() -> None:
    twin = point("twin", 0.0, 100, alpha=0.0)
    control = point("rand", 0.005, 5, control="random")
    found = rows([point("b", 0.02, 60), twin, point("a", 0.01, 10), control, point("c", 0.2, 2)])
    assert [(row.receipt.id, row.front) for row in found] == [("twin", False), ("rand", False), ("a", True), ("b", False), ("c", True)]
    assert {row.receipt.id: row.failed for row in found} == {"twin": ("p", "net"), "rand": (), "a": (), "b": (), "c": ("kld",)}


def test_gate_is_data() -> None:
    assert Gate("rate", high=0.1).holds(point("a", 0.01, 10))
    assert not Gate("rate", high=0.09).holds(point("a", 0.01, 10))
    assert not Gate("acceptance", low=0.96).holds(point("a", 0.01, 10))


def test_an_edit_that_adds_to_the_behaviour_fails() -> None:
    """50 of 100 before. 70 after, none lost and 20 gained: p = 2 / 2^20, and two-sided it knows no direction; 30 after passes."""
    stock = "1" * 50 + "0" * 50
    more = sample(id="more", facts=panel(0.01), sides=(side("1" * 70 + "0" * 30, stock),))
    less = sample(id="less", facts=panel(0.01), sides=(side("1" * 30 + "0" * 70, stock),))
    assert {row.receipt.id: row.failed for row in rows([more, less])} == {"less": (), "more": ("net",)}
    assert [each.summary.sides[0].p for each in (more, less)] == [2 / 2**20] * 2


def test_receipt_of_another_model_in_a_front() -> None:
    other = point("b", 0.01, 10, model=MODEL.model_copy(update={"sha256": "c" * 64}))
    with pytest.raises(InvalidMeasurement, match="receipts a and b differ in field model: they do not belong to one front"):
        rows([point("a", 0.01, 10), other])


@pytest.mark.parametrize(
    ("field", "changed"),
    [("panel", {"facts": panel(0.01, texts_sha256="c" * 64)}), ("prompts", {"sides": (side(file_sha256="c" * 64),)})],
)
def test_other_panel_or_prompts(field: str, changed: dict[str, object]) -> None:
    with pytest.raises(InvalidMeasurement, match=f"differ in field {field}"):
        rows([sample(facts=panel(0.01)), sample(**{"facts": panel(0.01), **changed})])


def test_load_names_what_it_leaves_out(tmp_path: Path) -> None:
    write(sample(), tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{}")
    good, left_out = load(sorted(tmp_path.glob("*.json")))
    assert [each.id for each in good] == ["0123456789ab"]
    assert len(left_out) == 1
    assert "b.json: field id: Field required" in left_out[0]


def test_table_golden() -> None:
    lines = table.markdown(rows([sample(alpha=3.0)])).splitlines()
    assert lines[2] == (
        "| brief-15 | 1-3 | 3 | -2 (over-projects) | 0.0200 (0.0100-0.0300, few windows) | 30 / 3 | 0.200 | 0.250 | 0.900 | 0.950 "
        "| 100% | 25% (5%-70%) | 3 / 0 | 0.250 | - | 1/4 | yes | p | 0123456789ab |"
    )
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(("count", "said"), [(2, "0.0200"), (9, "0.0200 (0.0200-0.0200, few windows)"), (10, "0.0200 (0.0200-0.0200)")])
def test_an_interval_says_when_it_rests_on_little(count: int, said: str) -> None:
    """Two windows have no interval; below ten it is too narrow."""
    cells = table.cells(rows([sample(facts=panel(*[0.02] * count))])[0])
    assert dict(zip(table.COLUMNS, cells, strict=True))["KLD, nats (95 %)"] == said
    assert dict(zip(table.COLUMNS, cells, strict=True))["positions / windows"] == f"{10 * count} / {count}"
