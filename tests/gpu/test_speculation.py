"""What the counters and the logs must say, told from answers by hand. 64..79 is the ring: 65 follows 64, and 64 follows 79."""

from typing import Any

import pytest

from tests.gpu.engine_checks import VISITS
from tests.gpu.engines import EAGER, Engine
from tests.gpu.speculation import SPECULATION, SPECULATION_PAIRS, counted, edits, findings, foretold, mtp, successor

MTP2 = Engine("mtp2", "m", llm=EAGER | mtp(2), foretold=True)
BEFORE, AFTER = "a" * 64, "b" * 64


def test_the_ring_is_closed() -> None:
    assert (successor(64), successor(79)) == (65, 64)
    with pytest.raises(ValueError, match="63"):
        successor(63)


@pytest.mark.parametrize(
    ("ids", "count", "drafts", "accepted", "after"),
    [
        # 64 | 65 66 taken, 70 instead of 67 | 71 taken, 64 instead of 72 | nothing taken, 70
        ([64, 65, 66, 70, 71, 64, 70], 2, 3, (2, 1), 0),
        ([64, 65, 66, 70, 71, 64, 70], 1, 4, (2,), 0),  # 64 | 65 taken, 66 | 70 | 71 taken, 64 | 70
        ([64, 66, 68], 3, 2, (0, 0, 0), 0),
        ([79, 64, 65], 3, 1, (1, 1, 0), 1),  # the third draft token is past the end
        ([70, 64, 65], 2, 2, (1, 0), 1),
        ([64], 2, 0, (0, 0), 0),
    ],
)
def test_foretold(ids: list[int], count: int, drafts: int, accepted: tuple[int, ...], after: int) -> None:
    found = foretold(ids, count)
    assert (found.drafts, found.accepted, found.open) == (drafts, accepted, after)


ANSWERS = [64, 65, 66, 70, 71, 64, 70], [70, 64, 65]


def result(drafts: int, accepted: int, positions: list[int], tokens: int | None = None) -> dict[str, Any]:
    counters = {
        "vllm:spec_decode_num_drafts": drafts,
        "vllm:spec_decode_num_draft_tokens": 2 * drafts if tokens is None else tokens,
        "vllm:spec_decode_num_accepted_tokens": accepted,
        "vllm:spec_decode_num_accepted_tokens_per_pos": positions,
    }
    # 3 drafts with 2 + 1 + 0 tokens accepted; 2 drafts with none and then 1, and perhaps one more past the end
    return {"counters": counters, "answers": [{"ids": ids} for ids in ANSWERS], "again": []}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (result(5, 4, [3, 1]), ""),
        (result(5, 5, [3, 2]), ""),
        (result(6, 4, [3, 1]), "6 drafts, and the answers take 5"),
        (result(5, 3, [2, 1]), "3 accepted, and the answers take 4 to 5"),
        (result(5, 6, [4, 2]), "6 accepted, and the answers take 4 to 5"),
        (result(5, 4, [1, 3]), "accepted by position [1, 3], together 4"),
        (result(5, 4, [3, 2]), "accepted by position [3, 2], together 4"),
        (result(5, 4, [3, 1], 9), "9 draft tokens in 5 drafts of 2"),
    ],
)
def test_counted(given: dict[str, Any], said: str) -> None:
    assert counted(MTP2, given)["failed"] == said


def test_every_run_counts_for_itself() -> None:
    """A later run may answer otherwise, after a near tie: 4 drafts with none accepted, beside the first run's 5 and 4."""
    twice = Engine("mtp2", "m", llm=EAGER | mtp(2), foretold=True, times=2)
    assert counted(twice, result(9, 4, [3, 1]) | {"again": [[[64, 70, 64, 70, 64]]]})["failed"] == ""
    assert counted(twice, result(10, 9, [6, 3]) | {"again": [ANSWERS]})["failed"] == ""
    assert counted(twice, result(5, 4, [3, 1]) | {"again": [ANSWERS]})["failed"].startswith("5 drafts, and the answers take 10; 4 accepted")


@pytest.mark.parametrize("accepted", [0, 10])
def test_all_or_nothing_accepted_shows_no_rollback(accepted: int) -> None:
    loud = Engine("loud", "m", llm=EAGER | mtp(2))
    assert "partly accepted drafts were not seen" in counted(loud, result(5, accepted, [accepted // 2] * 2))["failed"]
    assert counted(loud, result(5, 2, [1, 1]))["failed"] == ""  # its drafter is not foretold


def line(part: str, layer: int, ratio: str = "signed ratio -2.00012, ", after: str = AFTER) -> str:
    return f"ablation: rank 0 {part} layer {layer}: {ratio}rel_l2 0.19, sha256 {BEFORE} -> {after}"


EXPECTED = {str(layer): [BEFORE, AFTER] for layer in range(5)}
MODEL = [line("model", layer) for layer in range(4)]
BOTH = Engine("both", "m", edited={"model": "proj", "mtp": "proj"})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*MODEL, line("mtp", 4), "ablation summary: {}"], ""),
        (MODEL, "mtp layer 4 was not edited"),
        ([*MODEL, line("mtp", 4), line("mtp", 5)], "mtp layer 5 was edited"),
        ([*MODEL[1:], line("mtp", 4), line("model", 0, after="c" * 64)], f"model layer 0: sha256 after is {'c' * 64}, not {AFTER}"),
        ([*MODEL[1:], line("mtp", 4), line("model", 0, "signed ratio 4.00000, ")], "model layer 0: signed ratio 4.0"),
        ([*MODEL[1:], line("mtp", 4), line("model", 0, "")], "model layer 0: signed ratio None"),
    ],
)
def test_edits(lines: list[str], said: str) -> None:
    assert edits(BOTH, {"ablation": lines}, EXPECTED)["failed"] == said


def test_donated_layers_have_no_ratio_and_a_stock_start_no_edits() -> None:
    donated = Engine("donated", "m", edited={"model": "transplant"})
    assert edits(donated, {"ablation": [line("model", layer, "") for layer in range(4)]}, EXPECTED)["failed"] == ""
    assert edits(donated, {"ablation": MODEL}, EXPECTED)["failed"].startswith("model layer 0: signed ratio -2.00012")
    stock = Engine("again", "m", edited={})
    assert edits(stock, {"ablation": []}, EXPECTED) == {"what": "again: edited as a CPU edits", "failed": "", "layers": []}
    assert edits(stock, {"ablation": MODEL[:1]}, EXPECTED)["failed"] == "model layer 0 was edited"


def test_findings_are_of_engines_that_answered() -> None:
    results = {"mtp2": result(5, 4, [3, 1]), "both": {"error": "gone"}}
    assert [row["what"] for row in findings([MTP2, BOTH], results, EXPECTED)] == ["mtp2: accepted as the answer says"]


def test_every_visit_has_names_of_its_own_and_pairs_of_engines_that_are_started() -> None:
    for engines, pairs in VISITS.values():
        names = [engine.name for engine in engines]
        assert len(names) == len(set(names))
        assert {pair.found for pair in pairs} <= set(names)
        assert {pair.wanted for pair in pairs} <= {*names, "transformers", "transformers-long"}


def test_every_speculating_engine_is_compared() -> None:
    compared = {pair.found for pair in SPECULATION_PAIRS}
    assert {engine.name for engine in SPECULATION if engine.drafts} - compared == {"edited-offline-mtp2"}
