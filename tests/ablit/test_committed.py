"""What the documents say of the committed sweeps, looked up in their receipts."""

from pathlib import Path

from ablit import pareto
from ablit.receipt import Receipt, Side

ABLATION = Path(__file__).parents[2] / "results/ablation"


def sides(folder: str) -> dict[str, Side]:
    """Of the twin and of brief-15 at alpha 2 on layers 10-29."""
    found, unsound = pareto.load(sorted((ABLATION / folder).glob("*.json")))
    assert not unsound
    return {_name(each): each.behaviour[0] for each in found if each.control == "twin" or _is_the_edit(each)}


def _name(receipt: Receipt) -> str:
    return receipt.control or receipt.direction["name"]


def _is_the_edit(receipt: Receipt) -> bool:
    spec = receipt.spec
    edit = (spec.layers, spec.alpha, spec.targets, spec.kernel)
    return receipt.control is None and edit == (tuple(range(10, 30)), 2.0, ("o_proj",), None)


def test_a_served_edit_gives_the_very_answers_of_the_edit_in_process() -> None:
    served, here = sides("served-solo"), sides("receipts")
    assert sorted(served) == sorted(here) == ["brief-15", "twin"]
    for name in ("brief-15", "twin"):
        assert len(served[name].edited) == 100
        assert served[name].answers_sha256 == here[name].answers_sha256
        assert (served[name].stock, served[name].edited) == (here[name].stock, here[name].edited)
    assert [served[name].edited.count("1") for name in ("twin", "brief-15")] == [50, 9]
