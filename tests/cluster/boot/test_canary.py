"""The first questions after a start: what passes, and every way in which a broken server is told."""

import pytest

from cluster.boot import canary
from cluster.boot.canary import Answer, Plan
from cluster.metrics import Reading
from cluster.settings import load
from tests.cluster.served import Script, serving, vllm

GOOD = "The streets were full of people, and the smell of bread came from an open door near the well."
ASKS = Plan("Paris", thinks=False, drafts=False)
DRAFTS = Plan("Paris", thinks=False, drafts=True)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("!" * 40, "40 of 40 characters are '!'"),
        ("! " * 30 + "ok", "30 of 32 characters are '!'"),
        ("word " * 20, "'word' is repeated without end"),
        ("caf\ufffd " * 8, "8 of 40 characters are broken"),
    ],
)
def test_degenerate_text(text: str, wrong: str) -> None:
    assert canary.degenerate(text) == wrong


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "Paris",
        "",
        "!!!",
        "no no no no, that is wrong",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
        "the the the the the the the the the",
        "| --- | --- |",
    ],
)
def test_sane_text(text: str) -> None:
    assert canary.degenerate(text) is None


@pytest.mark.parametrize(
    ("answer", "expect", "wrong"),
    [
        (Answer("It is PARIS.", 4), "Paris", None),
        (Answer("\ufffd\ufffd\ufffd", 9), None, None),  # random weights: any tokens do
        (Answer("", 0), None, "the first answer was empty"),
        (Answer("", 0), "Paris", "the first answer was empty"),
        (Answer("London", 1), "Paris", "the model did not say 'Paris' but 'London'"),
        (Answer("!" * 60, 32), "Paris", "the first answer is degenerate: 60 of 60"),
    ],
)
def test_first_answer(answer: Answer, expect: str | None, wrong: str | None) -> None:
    found = canary.judge_answer(answer, expect)
    assert found is None if wrong is None else found is not None and wrong in found


def drafted(drafts: float, tokens: float, accepted: float, *at: float) -> Reading:
    return Reading(drafts=drafts, draft_tokens=tokens, accepted_tokens=accepted, accepted_at=at)


@pytest.mark.parametrize(
    ("after", "wrong"),
    [
        (drafted(110, 770, 100, 95, 60, 45), None),
        (drafted(110, 770, 50, 30, 15, 5), "none of 70 draft tokens was accepted"),
        (drafted(109, 763, 50, 30, 15, 5), None),  # 63 draft tokens say nothing
        (drafted(124, 868, 50 + 72, 54, 39, 29), "all 24 drafts were accepted whole"),
        (drafted(124, 868, 50 + 71, 54, 39, 28), None),
        (drafted(123, 861, 50 + 69, 53, 38, 28), None),  # 23 drafts may be luck
        (Reading(generation=5), None),
        (None, None),
    ],
)
def test_drafter(after: Reading | None, wrong: str | None) -> None:
    found = canary.judge_drafts(drafted(100, 700, 50, 30, 15, 5), after)
    assert found is None if wrong is None else found is not None and wrong in found


def test_one_question_without_a_drafter() -> None:
    script = Script(answers=("Paris.",))
    with serving(script) as server:
        assert canary.check(server, ASKS) is None
    assert [(asked["max_tokens"], asked["temperature"], asked["messages"][0]["content"]) for asked in script.asked] == [
        (32, 0, canary.QUESTION)
    ]


def _spec(drafts: int, accepted: int, *at: int) -> str:
    name = "vllm:spec_decode_num_"
    rows = [f"{name}drafts_total {drafts}", f"{name}draft_tokens_total {7 * drafts}", f"{name}accepted_tokens_total {accepted}"]
    return vllm(9, more="\n".join(rows + [f'{name}accepted_tokens_per_pos_total{{position="{i}"}} {n}' for i, n in enumerate(at)]))


@pytest.mark.parametrize(
    ("after", "answers", "wrong"),
    [
        (_spec(60, 90, 50, 30, 10), ("Paris", GOOD), None),
        (_spec(60, 0, 0, 0, 0), ("Paris", GOOD), "none of 420 draft tokens was accepted"),
        (_spec(60, 180, 60, 60, 60), ("Paris", GOOD), "all 60 drafts were accepted whole"),
        (_spec(60, 90, 50, 30, 10), ("Paris", "!" * 99), "the second answer is degenerate"),
        (_spec(60, 90, 50, 30, 10), ("Rome", GOOD), "did not say 'Paris'"),
    ],
)
def test_whole_check_with_a_drafter(after: str, answers: tuple[str, ...], wrong: str | None) -> None:
    script = Script(lambda number: _spec(0, 0, 0, 0, 0) if number == 1 else after, answers=answers)
    with serving(script) as server:
        found = canary.check(server, DRAFTS)
    assert found is None if wrong is None else found is not None and wrong in found


def test_refused_question() -> None:
    with serving(Script(status=500, answers=("engine is dead",))) as server:
        found = canary.check(server, ASKS)
    assert found is not None
    assert found.startswith("the first question was not answered (status 500)")


@pytest.mark.parametrize(
    ("kit", "plan"),
    [("local", Plan("Paris", False, False)), ("twin", Plan(None, False, False)), ("spark2", Plan("Paris", True, True))],
)
def test_what_is_asked_on_a_kit(kit: str, plan: Plan) -> None:
    assert canary.plan(load({"kit": kit, "spec_method": "dflash" if kit == "spark2" else None}, {})) == plan
