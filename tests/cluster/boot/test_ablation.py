"""The ranks' reports of an edit at load: read from their logs, and compared."""

import dataclasses
from typing import Any

import pytest

from cluster.boot import ablation
from cluster.boot.ablation import Summary
from cluster.boot.look import Line

SOURCE = "ef" * 32
TEXT = (
    '(Worker_TP1 pid=7) INFO 11-30 00:51:15 [ablation.py:109] ablation summary: {"rank":1,"world":2,"part":"model","method":"proj",'
    f'"alpha":3.0,"layers":"15-44","source":"{SOURCE}","ratio":[-2.0001,-1.9998],"rel_l2":[0.12,0.13]}}'
)
ONE = Summary(0, 2, "model", "proj", 3.0, "15-44", SOURCE, (-2.0001, -1.9998), (0.12, 0.13))
TWO = dataclasses.replace(ONE, rank=1)
RANKS = {"head": 0, "worker": 1}


def test_a_line_of_a_real_log() -> None:
    assert ablation.read([Line(1.0, "something else"), Line(2.0, TEXT)]) == [TWO]
    assert len(TEXT) < 500, "a look keeps no more of a line"


@pytest.mark.parametrize("text", [TEXT[:-5], *(f"ablation summary: {rest}" for rest in ("{}", "[]", '{"rank":1}', ""))])
def test_other_lines_are_none(text: str) -> None:
    assert ablation.read([Line(1.0, text)]) == []


def test_the_same_edit_on_all_ranks() -> None:
    assert ablation.judge(RANKS, {"head": [ONE], "worker": [TWO]}) is None
    assert ablation.told([ONE], 2) == [
        "edited at load: model layers 15-44, proj alpha 3, source efefefefefefefef, the same on all 2 ranks; "
        "signed ratio -2.0001 to -1.9998"
    ]
    assert ablation.noted([ONE, ONE])[0]["source"] == SOURCE


def test_a_former_start_in_the_same_log_does_not_count() -> None:
    other = dataclasses.replace(TWO, alpha=1.0, ratio=(0.0, 0.0))
    assert ablation.judge(RANKS, {"head": [ONE], "worker": [other, TWO]}) is None
    assert ablation.judge(RANKS, {"head": [ONE], "worker": [TWO, other]})


def test_a_transplant_has_no_ratio() -> None:
    made: dict[str, Any] = {"method": "transplant", "alpha": None, "ratio": None}
    both = {"head": [dataclasses.replace(ONE, **made)], "worker": [dataclasses.replace(TWO, **made)]}
    assert ablation.judge(RANKS, both) is None
    assert "transplant, source" in ablation.told(both["head"], 2)[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": "15-43"}, "different edits (layers): head: model layers 15-44, proj alpha 3, source efefefefefefefef; worker: model"),
        ({"source": "ab" * 32}, "different edits (source)"),
        ({"alpha": 2.0, "ratio": (-1.0, -1.0)}, "different edits (alpha)"),
        (
            {"ratio": (-2.0, 1.0)},
            "proj alpha 3, source efefefefefefefef: signed ratios (-2.0, 1.0), and 1 - alpha is -2",
        ),
        ({"ratio": (-2.1, -2.0)}, "signed ratios (-2.1, -2.0)"),
        ({"ratio": None}, "signed ratios None"),
        ({"rank": 0}, "worker: the edit was made by rank 0 of 2, and rank 1 of 2 runs there"),
        ({"world": 3}, "made by rank 1 of 3"),
        ({"part": "mtp"}, "worker: rank 1 reported no edit, and ABLIT=1 asks for one"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    found = ablation.judge(RANKS, {"head": [ONE], "worker": [dataclasses.replace(TWO, **changes)]})
    assert found is not None
    assert said in found


def test_a_rank_that_says_nothing() -> None:
    assert ablation.judge(RANKS, {"head": [ONE], "worker": []}) == "worker: rank 1 reported no edit, and ABLIT=1 asks for one"
    assert ablation.judge(RANKS, {"worker": [TWO]}) == "head: rank 0 reported no edit, and ABLIT=1 asks for one"


def test_a_part_that_one_rank_left_out() -> None:
    mtp = dataclasses.replace(ONE, part="mtp", layers="45")
    assert ablation.judge(RANKS, {"head": [ONE, mtp], "worker": [TWO]}) == "worker edited model, and head model and mtp"
