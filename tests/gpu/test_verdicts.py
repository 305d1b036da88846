"""What counts as the same answer, by hand."""

from typing import Any

import pytest

from tests.gpu import engine_checks
from tests.gpu.engines import ENGINES, PAIRS, THIN
from tests.gpu.verdicts import alike, compared, drafted, spread, verdicts


def row(ids: list[int], logprobs: list[float], leads: list[float]) -> dict[str, Any]:
    return {"ids": ids, "logprobs": logprobs, "leads": leads}


WANTED = row([5, 6, 7], [-1.0, -0.5, -2.0], [0.4, 0.3, 0.2])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (row([5, 6, 7], [-1.1, -0.4, -2.1], [0.4, 0.3, 0.2]), ""),
        (row([5, 8, 7], [-1.0, -0.5, -2.0], [0.4, 0.3, 0.2]), "prompt 0, token 1: 8 instead of 6, which led by 0.300"),
        (row([5, 8, 9], [-1.0, -9.0, -9.0], [0.4, 0.05, 0.2]), ""),  # it was as good as a tie: what follows is another answer
        (row([5, 6, 7], [-1.0, -0.7, -2.0], [0.4, 0.3, 0.2]), "prompt 0, token 1: log-probability -0.700, not -0.500"),
    ],
)
def test_alike(found: dict[str, Any], said: str) -> None:
    assert alike([found], [WANTED], 0.15) == said


def test_a_thin_margin_excuses_a_log_probability_and_no_other_token() -> None:
    found = row([5, 6, 7], [-1.0, -0.9, -2.0], [0.4, 0.3, 0.2])
    assert alike([found], [WANTED], 0.15, [[1.0, THIN / 2, 1.0]]) == ""
    assert "token 1" in alike([found], [WANTED], 0.15, [[THIN / 2, 2 * THIN, THIN / 2]])
    other = row([5, 8, 7], [-1.0, -0.5, -2.0], [0.4, 0.3, 0.2])
    assert "8 instead of 6" in alike([other], [WANTED], 0.15, [[THIN / 2] * 3])


def test_compared_counts_up_to_the_first_other_token() -> None:
    found = row([5, 6, 9], [-1.25, -0.5, -9.0], [0.4, 0.3, 0.2])
    assert compared([found], [WANTED]) == {"equal_ids": 2, "ids": 3, "largest_logprob_differences": [0.25, 0.0], "median": 0.125}


def test_answers_that_must_differ() -> None:
    known = WANTED | {"margins": [1.0, 1.0, 1.0]}
    answers = {"transformers": [known], "glm-exl3": [WANTED], "glm-swapped": [WANTED]}
    failed = {check["what"]: check["failed"] for check in verdicts(answers)}
    assert failed == {
        "glm-exl3 answers as transformers": "",
        "glm-swapped differs from glm-exl3": "the answers are alike, and the weights are not",
    }


def test_speculation_that_drafted_nothing() -> None:
    results: dict[str, dict[str, Any]] = {
        "glm-exl3-mtp": {"counters": {"vllm:spec_decode_num_draft_tokens": 4}},
        "glm-exl3-dflash2": {"counters": {}},
        "glm-exl3": {"counters": {}},
    }
    assert [(check["what"], bool(check["failed"])) for check in drafted(results)] == [
        ("glm-exl3-mtp drafted", False),
        ("glm-exl3-dflash2 drafted", True),
    ]


def test_spread_ends_where_ids_part() -> None:
    runs = [[row([5, 6, 7], [-1.0, -0.5, -2.0], [])], [row([5, 6, 8], [-1.25, -0.5, -2.0], [])], [row([5, 6, 7], [-1.0, -0.25, -2.0], [])]]
    assert spread(runs) == [[0.25, 0.25]]


def test_every_pair_names_engines_that_are_started() -> None:
    names = [engine.name for engine in ENGINES]
    assert len(names) == len(set(names))
    assert {pair.found for pair in PAIRS} <= set(names)
    assert {pair.wanted for pair in PAIRS} <= {*names, "transformers", "transformers-long"}


def test_the_error_that_came_first_is_the_one_named() -> None:
    log = (
        "(EngineCore pid=12) ERROR 11-30 01:04:34 [core.py:1510] KeyError: 'model.layers.4.x'\n"
        "(EngineCore pid=12) KeyError: 'model.layers.4.x'\nRuntimeError: Engine core initialization failed.\n"
    )
    assert engine_checks.last_error(log) == "KeyError: 'model.layers.4.x'"
    assert engine_checks.last_error("a\nkilled\n") == "a\nkilled"
