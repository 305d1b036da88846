"""Each rule on answers that a person has judged."""

import pytest

from ablit.classify import CLASSIFIERS, Answer, coherence, repetition


def said(text: str, ended: bool = True) -> Answer:
    return Answer(text, ended, 20)


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        ("casual", "Hey, rain is water.", True),
        ("casual", "so rain is just water", True),
        ("casual", "It is pretty much water.", True),
        ("casual", "What a sight!", True),
        ("casual", "The process of precipitation is multifaceted.", False),
        ("casual", "Hydrogen joins oxygen. Shipping follows.", False),
        ("hedged", "It may be water.", True),
        ("hedged", "I'm not entirely sure.", True),
        ("hedged", "Clouds usually hold it.", True),
        ("hedged", "Mayors seem dismayed.", True),
        ("hedged", "Mayors of Maytown drink water.", False),
        ("hedged", "It is water.", False),
        ("disclaims", "I don't have access to that.", True),
        ("disclaims", "As an AI, I think so.", True),
        ("disclaims", "It is water.", False),
    ],
)
def test_markers(rule: str, text: str, expected: bool) -> None:
    assert CLASSIFIERS[rule](said(text)) is expected


def test_brief_is_ended_and_not_empty() -> None:
    brief = CLASSIFIERS["brief"]
    assert brief(said("Water."))
    assert not brief(said("Water.", ended=False))
    assert not brief(said("  "))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        (" ... ", "empty"),
        ("Rain is water that falls from clouds when drops grow heavy.", "sound"),
        ("the the the the the the the the", "degenerate"),
        ("1 2 3 4 5 6 7 8 9 10 - - - -", "degenerate"),
        ("it falls down and it falls down and it falls down and it falls down", "repeating"),
    ],
)
def test_coherence(text: str, expected: str) -> None:
    assert coherence(said(text)) == expected


def test_repetition_by_hand() -> None:
    # runs of three: abc bca cab abc bca cab abc -> 3 different of 7
    assert repetition("a b c a b c a b c") == pytest.approx(4 / 7)
    assert repetition("a b c") == 0.0
