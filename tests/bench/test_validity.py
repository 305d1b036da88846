"""What decides `valid`, and the derived part of receipts with rounds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.check import check
from bench.derive import derived
from bench.errors import InvalidMeasurement
from bench.hygiene import Hygiene
from bench.receipt import Payload, Run, seal, write
from bench.rounds import Place
from tests.bench.rounds_sample import grouped, lane_run, reading
from tests.bench.samples import sample
from tests.bench.test_receipt import change, edit

BEHIND = Hygiene(
    wall_s=1, cpu_s=1, cpu_wait_s=None, busy_share=1, lag_samples=100, lag_p99_s=0.5, lag_max_s=0.5, gc_pauses=0, gc_pause_max_s=0,
    gc_pause_total_s=0, clock_step_s=0, reads=1, full_reads=0, events=1, behind=True, reason="a ready socket waited 500.0 ms",
)  # fmt: skip


def test_group_summary_by_hand() -> None:
    payload = grouped()
    assert payload.valid, payload.invalid_because
    group = payload.summary.group
    assert group is not None
    # round 0: 8 tokens in 5 s; round 1: 8 in 5 s
    assert group.wall_tok_s is not None
    assert (group.rounds, group.lanes, group.wall_tok_s.median) == (2, 2, 1.6)
    # round 0: both decode from 2 to 4, A brings 2 and B 2; round 1: from 1 to 5, 3 each
    assert group.steady_tok_s is not None
    assert (group.steady_tok_s.min, group.steady_tok_s.max) == (1.5, 2.0)
    assert group.preemptions == 4  # (8 // 4 - 0) twice
    assert payload.summary.decode_tok_s is not None
    assert payload.summary.decode_tok_s.n == 4  # of single requests


def test_acceptance_of_a_round_comes_from_its_own_readings() -> None:
    payload = grouped()
    spec = {"drafts": 4, "draft_tokens": 8, "accepted_tokens": 6, "accepted_per_position": (4, 2)}
    none = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "accepted_per_position": (0, 0)}
    one = payload.rounds[0]
    assert one.before is not None
    assert one.after is not None
    found = with_round(payload, 0, before=one.before.model_copy(update=none), after=one.after.model_copy(update=spec))
    acceptance = found.summary.acceptance
    assert acceptance is not None
    assert (acceptance.acceptance_rate, acceptance.acceptance_length, acceptance.per_position) == (0.75, 2.5, (1.0, 0.5))


def with_round(payload: Payload, number: int, **update: Any) -> Payload:
    rounds = list(payload.rounds)
    rounds[number] = rounds[number].model_copy(update=update)
    return derived(payload.model_copy(update={"rounds": tuple(rounds)}))


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ({"after": reading(17, 80)}, "round 1: the server's token counters moved by more or less than these requests"),
        ({"after": reading(16, 81)}, "round 1: the server's token counters moved by more or less than these requests"),
        ({"after": reading(16, 80).model_copy(update={"running": 1})}, "round 1: other requests ran or waited on the server"),
        ({"before": reading(8, 40).model_copy(update={"waiting": 1})}, "round 1: other requests ran or waited on the server"),
        ({"hygiene": BEHIND}, "round 1: the client fell behind: a ready socket waited 500.0 ms"),
    ],
)
def test_a_rounds_proofs_decide(update: dict[str, Any], reason: str) -> None:
    found = with_round(grouped(), 1, **update)
    assert not found.valid
    assert found.invalid_because[0].startswith(reason)


def test_a_lone_requests_hygiene_decides() -> None:
    payload = sample()
    late = payload.runs[0].model_copy(update={"hygiene": BEHIND})
    found = derived(payload.model_copy(update={"runs": (late, *payload.runs[1:])}))
    assert found.invalid_because == ("run 0: the client fell behind: a ready socket waited 500.0 ms",)


def replaced(payload: Payload, index: int, **trace: Any) -> Payload:
    run = payload.runs[index]
    runs = list(payload.runs)
    runs[index] = run.model_copy(update={"trace": run.trace.model_copy(update=trace)})
    return derived(payload.model_copy(update={"runs": tuple(runs)}))


def test_a_failed_lane_makes_the_measurement_invalid_and_its_round_is_not_judged() -> None:
    found = replaced(grouped(), 3, error="broken off")
    assert found.invalid_because == ("run 3 (round 1): broken off",)
    assert found.summary.failed_runs == 1


def test_unequal_work_within_a_role() -> None:
    payload = grouped()
    longer = lane_run(3, 1, 1, 0.0, (1.0, 2.0, 3.0, 5.0, 6.0))
    found = derived(payload.model_copy(update={"runs": (*payload.runs[:3], longer)}))
    assert "unequal work: answers (lane) of 4 to 5 tokens" in found.invalid_because
    free = payload.protocol.model_copy(update={"natural_end": True})
    told = derived(payload.model_copy(update={"runs": (*payload.runs[:3], longer), "protocol": free}))
    assert not any("unequal" in reason for reason in told.invalid_because)
    assert "unequal work: answers of 4 to 5 tokens" in told.notes


def test_roles_may_differ_in_length() -> None:
    payload = grouped()
    late = lane_run(3, 1, 1, 0.0, (1.0, 2.0), role="newcomer")
    found = derived(payload.model_copy(update={"runs": (*payload.runs[:3], late)}))
    assert not any("unequal" in reason for reason in found.invalid_because)


def test_old_receipts_know_no_rule_about_natural_ends() -> None:
    """natural_end None: what was measured before the rule stays as it was judged then."""
    payload = grouped()
    old = payload.protocol.model_copy(update={"natural_end": None})
    found = replaced(payload.model_copy(update={"protocol": old}), 0, finish_reason="stop")
    assert found.valid


def test_a_newcomer_is_compared_with_the_one_that_ran_alone_just_before() -> None:
    def alone(index: int, first_s: float) -> Run:
        run = lane_run(index, 0, 2, 0.0, (first_s, first_s + 9))
        return run.model_copy(update={"place": Place(role="newcomer alone", lane=2)})

    def round(first: int, number: int) -> list[Run]:
        incumbent = lane_run(first, number, 0, 0.0, (1.0, 2.0, 3.0, 4.0, 9.0), role="incumbent")
        return [incumbent, lane_run(first + 1, number, 1, 3.0, (4.0, 5.0), role="newcomer")]

    runs = [alone(0, 2.0), *round(1, 0), alone(3, 0.5), *round(4, 1)]
    found = derived(grouped().model_copy(update={"runs": tuple(runs)}))
    slower = [one.interference.newcomer_slowdown for one in found.rounds if one.interference]
    assert slower == [2.0, 8.0]  # 4 s against 2, and against 0.5
    assert found.summary.mixed is not None
    assert found.summary.mixed.newcomer_slowdown is not None
    assert found.summary.mixed.newcomer_slowdown.median == 5.0
    assert found.rounds[0].group is None
    # one that failed is no measure: the one before it counts
    failed = runs[3].model_copy(update={"trace": runs[3].trace.model_copy(update={"error": "HTTP 500"})})
    again = derived(grouped().model_copy(update={"runs": (*runs[:3], failed, *runs[4:])}))
    assert [one.interference.newcomer_slowdown for one in again.rounds if one.interference] == [2.0, 2.0]


@pytest.mark.parametrize(("text", "reasoning", "gates"), [
    ("", "one two three", ()),  # thoughts are an answer too
    ("", "", ("run 0: empty",)),
    ("one", "nan", ("run 0: nan",)),  # not "onenan"
    ("cut at the end \ufffd", "one", ()),
])  # fmt: skip
def test_thoughts_are_part_of_what_is_checked(text: str, reasoning: str, gates: tuple[str, ...]) -> None:
    payload = grouped()
    run = payload.runs[0]
    said = run.model_copy(update={"trace": run.trace.model_copy(update={"text": text, "reasoning": reasoning})})
    assert derived(payload.model_copy(update={"runs": (said, *payload.runs[1:])})).failed_gates == gates


def test_one_lane_is_no_group() -> None:
    payload = grouped()
    found = derived(payload.model_copy(update={"runs": payload.runs[:1]}))
    assert [one.group for one in found.rounds] == [None, None]


def test_a_request_sent_late_was_not_sent_when_due() -> None:
    payload = grouped()
    run = payload.runs[0].model_copy(update={"place": Place(role="arrival", round=0, start_s=1.25, due_s=1.125)})
    found = derived(payload.model_copy(update={"runs": (run, *payload.runs[1:])}))
    assert found.invalid_because == ("run 0 (round 0): the client sent it 0.125 s late",)


def test_a_missing_lane_is_counted() -> None:
    payload = grouped()
    found = derived(payload.model_copy(update={"runs": payload.runs[:3]}))
    assert found.invalid_because[0] == "only 3 of 4 runs were made"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "r.json"
    write(seal(grouped()), file)
    return file


Edit = Callable[[dict[str, Any]], None]


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("summary", "group", "wall_tok_s", "median"), 99.0, r"summary\.group\.wall_tok_s\.median"),
        (("summary", "group", "steady_tok_s"), None, r"summary\.group\.steady_tok_s"),
        (("rounds", 0, "group", "fairness"), 0.5, r"rounds\.0\.group\.fairness"),
        (("rounds", 1, "isolation", "held"), None, r"rounds\.1\.isolation\.held"),
        (("runs", 2, "cache", "label"), "warm", r"runs\.2\.cache\.label"),
        (("runs", 1, "place", "start_s"), 0.75, r"rounds\.0\.group"),
        (("warm_up",), {"prompt_tokens": 1, "completion_tokens": None, "cached_tokens": None, "reasoning_tokens": None}, None),
    ],
)
def test_check_recomputes_everything_new(path: Path, keys: tuple[Any, ...], value: Any, field: str | None) -> None:
    edit(path, change(*keys, value=value), reseal=True)
    if field is None:  # a raw fact that changes nothing here
        check(path)
    else:
        with pytest.raises(InvalidMeasurement, match=f"field {field}"):
            check(path)
