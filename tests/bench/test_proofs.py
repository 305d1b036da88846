"""Isolation and output health."""

import pytest

from bench.counters import Counters
from bench.measure import measure
from bench.proofs import health, isolation, judge
from bench.trace import Trace, Usage

OWN = measure(
    Trace(t_s=(0.1, 0.2), kinds="cc", tokens=(1, 5), chunk_counts="usage", t_end_s=0.2, usage=Usage(prompt_tokens=30, completion_tokens=5))
)


def reading(generation: int, prompt: int, running: int = 0, waiting: int = 0) -> Counters:
    return Counters(dialect="vllm", generation_tokens=generation, prompt_tokens=prompt, running=running, waiting=waiting)


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [
        (reading(100, 1000), reading(105, 1030), True),
        (reading(100, 1000), reading(106, 1030), False),  # one token of somebody else
        (reading(100, 1000), reading(105, 1031), False),  # somebody else's prompt
        (reading(100, 1000, running=1), reading(105, 1030), False),
        (reading(100, 1000), reading(105, 1030, waiting=1), False),
        (None, None, None),
        (Counters(dialect="vllm"), Counters(dialect="vllm"), None),
    ],
)
def test_isolation(before: Counters | None, after: Counters | None, held: bool | None) -> None:
    assert isolation(before, after, OWN).held is held


def test_a_round_owns_the_tokens_of_all_its_requests() -> None:
    assert isolation(reading(100, 1000), reading(110, 1060), OWN, OWN).held is True
    assert isolation(reading(100, 1000), reading(105, 1030), OWN, OWN).held is False


def test_a_request_that_states_no_tokens_leaves_its_round_unproven_and_not_accused() -> None:
    silent = OWN.model_copy(update={"n_tokens": None, "prompt_tokens": None})
    found = isolation(reading(100, 1000), reading(110, 1060), OWN, silent)
    assert (found.own_generation, found.own_prompt, found.held) == (None, None, True)  # idle is all that could be checked


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("The predominant finance of nanoseconds, said Nana.", None),
        ("the value is NaN here", "nan"),
        ("nan nan nan", "nan"),
        ("", "empty"),
        (" \n", "empty"),
        ("half a ch\ufffdracter", "broken_utf8"),
        ("cut at the end \ufffd", None),
        ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18", None),
        (
            "so it is, so it is, so it is, so it is, so it is, so it is, so it is, so it is, so it is, so it is, so it is, so it is, ",
            "loop",
        ),
        ("locklocklocklocklocklocklocklocklocklocklocklock", "loop"),
        ("| - | - | - |", None),
    ],
)
def test_health(text: str, fault: str | None) -> None:
    found = {name for name, bad in health(text).model_dump().items() if bad}
    assert found == ({fault} if fault else set())


@pytest.mark.parametrize(
    ("probe", "text", "passed"),
    [
        ("capital", "It is PARIS.", True),
        ("capital", "Parisian cafes", False),  # a word boundary, not a substring
        ("capital", "Paris nan", False),
        ("count", "1, 2, 3, 4, 5, 6, 7, 8, 9", True),
        ("count", "9 8 7 6 5 4 3 2 1", False),
        ("count", "123456789", False),
        ("nobody's probe", "anything", False),
    ],
)
def test_probe(probe: str, text: str, passed: bool) -> None:
    assert judge(probe, text, None).passed is passed


def test_a_probe_with_an_error_fails() -> None:
    assert not judge("capital", "Paris", "broken off").passed


def test_a_loop_is_looked_for_at_the_end_of_a_long_text() -> None:
    varied = " ".join(f"w{number}" for number in range(2000))
    loop = " the same words" * 40
    assert health(varied + loop).loop
    assert not health(loop + varied).loop  # over 4,000 characters ago: it got out of it


def test_a_probe_that_is_answered_in_a_loop_fails() -> None:
    assert judge("capital", "It is Paris.", None).passed
    assert not judge("capital", "It is Paris." + " It is so." * 60, None).passed
