"""The troubleshooting list: every finding that can spoil a launch is behind something that a person sees."""

from cluster.doctor.examine import KINDS
from cluster.doctor.symptoms import SYMPTOMS, documented


def test_every_warning_and_error_is_behind_a_symptom() -> None:
    named = {name for symptom in SYMPTOMS for name in symptom.kinds}
    assert named <= set(KINDS)
    assert {name for name, kind in KINDS.items() if kind.level != "info"} <= named


def test_nothing_stands_twice_under_one_symptom() -> None:
    assert all(len(set(symptom.kinds)) == len(symptom.kinds) for symptom in SYMPTOMS)


def test_as_it_is_written() -> None:
    text = documented()
    assert text.startswith("### Nothing can be started, or a node does not answer\n\n- `settings-refused`: `up` refuses it before")
    assert "\n\n### A setting has no effect\n\n- `nccl-exported`: " in text
