"""The truth from a send log, by hand; the comparison with it; and the lean client for real, with limits that a busy machine keeps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import lean
from bench.accuracy import floor
from bench.accuracy.__main__ import LEVELS, line, missed, plan, table, verdict
from bench.accuracy.__main__ import Receipt as AccuracyReceipt
from bench.accuracy.measured import Level, Row, Seen, compare, row
from bench.accuracy.truth import group, lateness_s, truth
from bench.errors import BenchError
from bench.hygiene import Hygiene
from bench.scripted import Script, ScriptedServer, Sent
from bench.trace import Trace, Usage
from tests.fakes import codec
from tests.fakes.builders import More, uniform

MS = 1_000_000
# asked at 1 s; chunks of 1, 4 and 4 tokens at 1.2, 1.3 and 1.5 s, the last one 30 ms late
ONE = Sent(1000 * MS, ((1200 * MS, 1200 * MS, 1), (1300 * MS, 1300 * MS, 5), (1500 * MS, 1470 * MS, 9)), "complete", True)
CALM = Hygiene(
    wall_s=1, cpu_s=0.1, cpu_wait_s=0, busy_share=0.1, lag_samples=1, lag_p99_s=0, lag_max_s=0, gc_pauses=0,
    gc_pause_max_s=0, gc_pause_total_s=0, clock_step_s=0, reads=3, full_reads=0, events=3,
)  # fmt: skip


def test_the_truth_of_one_stream() -> None:
    found = truth(ONE)
    assert (found.n_tokens, found.first_chunk_tokens, found.ttft_s) == (9, 1, 0.2)
    assert found.tpot_s == pytest.approx(0.3 / 8)
    assert found.decode_tok_s == pytest.approx(8 / 0.3)
    assert found.gaps_s == pytest.approx((0.1, 0.2))
    with pytest.raises(ValueError, match="no token"):
        truth(Sent(0, (), "cut", True))


def test_a_first_chunk_of_many_tokens_is_not_part_of_the_rate() -> None:
    found = truth(Sent(0, ((100 * MS, 0, 8), (200 * MS, 0, 16)), "complete", True))
    assert found.decode_tok_s == pytest.approx(8 / 0.1)
    assert found.tpot_s == pytest.approx(0.1 / 15)


def test_the_truth_of_two_streams() -> None:
    other = Sent(1100 * MS, ((1200 * MS, 1200 * MS, 1), (1600 * MS, 1600 * MS, 3)), "complete", True)
    found = group([ONE, other])
    assert (found.streams, found.n_tokens) == (2, 12)
    assert found.output_tok_s == pytest.approx(12 / 0.6)  # from 1.0 s to 1.6 s
    assert found.ttft_mean_s == pytest.approx(0.15)
    assert found.decode_tok_s == pytest.approx((8 / 0.3 + 2 / 0.4) / 2)


def test_lateness_is_the_servers() -> None:
    assert lateness_s([ONE]) == pytest.approx((0.0294, 0.03))  # p99 of 0, 0, 30 ms: 98 % of the way to the last


def seen(shift_s: float = 0.0, begin_ms: int = 1000, **change: object) -> Seen:
    times = tuple(at + shift_s for at in (0.2, 0.3, 0.5))
    trace = Trace(t_s=times, kinds="ccc", tokens=(1, 5, 9), chunk_counts="usage", t_end_s=0.9, usage=Usage(completion_tokens=9))
    return Seen((trace.model_copy(update=change),), (begin_ms * MS,), 0.5, CALM)


def test_a_perfect_client_has_no_error() -> None:
    error = compare(seen(), [ONE])
    assert (error.ttft_max_s, error.tokens_lost, error.itl_p99_s) == (0, 0, 0)
    assert (error.tpot_max_rel, error.decode_max_rel, error.output_rel) == (0, 0, 0)
    assert error.read_lag_max_s == 0


def test_a_late_stamp_is_an_error_of_that_size() -> None:
    error = compare(seen(shift_s=0.004), [ONE])
    assert (error.ttft_max_s, error.read_lag_p50_s) == (0.004, 0.004)
    assert error.decode_max_rel == 0  # the same delay everywhere moves no rate
    assert error.output_rel == pytest.approx(1 - 0.5 / 0.504, abs=1e-6)


def test_a_late_last_stamp_is_an_error_of_the_rates() -> None:
    error = compare(seen(t_s=(0.2, 0.3, 0.53)), [ONE])
    assert error.decode_max_rel == pytest.approx(1 - 0.3 / 0.33, abs=1e-6)
    assert error.tpot_max_rel == pytest.approx(0.1, abs=1e-6)
    assert error.itl_p50_s == pytest.approx(0.015)  # gaps 0.1, 0.23 against 0.1, 0.2


def test_the_wall_time_of_a_group_knows_when_each_began() -> None:
    """Two like streams, the second begun 0.1 s later: 18 tokens in 0.6 s."""
    second = Sent(1100 * MS, tuple((sent + 100 * MS, due + 100 * MS, n) for sent, due, n in ONE.chunks), "complete", True)
    both = Seen(seen().traces * 2, (1000 * MS, 1100 * MS), 0.5, CALM)
    assert compare(both, [ONE, second]).output_rel == 0
    shifted = Seen(seen().traces * 2, (1000 * MS, 1160 * MS), 0.5, CALM)
    assert compare(shifted, [ONE, second]).output_rel == pytest.approx(1 - 0.6 / 0.66, abs=1e-6)


def test_lost_tokens_and_lost_streams_are_seen() -> None:
    lost = compare(seen(t_s=(0.2, 0.3), kinds="cc", tokens=(1, 5), usage=None), [ONE])
    assert lost.tokens_lost == 4
    with pytest.raises(BenchError, match="1 streams were asked for, the server saw 2"):
        compare(seen(), [ONE, ONE])


def a_row(**error: float | None) -> Row:
    good = compare(seen(), [ONE]).model_copy(update=error)
    return Row(
        client="lean", streams=8, tok_s=4000, tokens=9, reached_tok_s=30, error=good, cpu_s_per_1000=0.02, server_late_p99_s=0.03,
        server_late_max_s=0.03, hygiene=CALM,
    )  # fmt: skip


def test_goals() -> None:
    assert missed(a_row()) == []
    assert missed(a_row(ttft_max_s=0.0031)) == ["lean at 8 streams: TTFT error 3.10 ms, goal 3"]
    assert missed(a_row(decode_max_rel=0.0011)) == ["lean at 8 streams: decode error 0.110%, goal 0.1%"]
    assert missed(a_row(output_rel=0.02)) == ["lean at 8 streams: output throughput error 2.000%, goal 0.1%"]
    assert missed(a_row(tokens_lost=1)) == ["lean at 8 streams: 1 tokens lost"]
    behind = a_row().model_copy(update={"hygiene": CALM.model_copy(update={"behind": True, "reason": "x"})})
    assert missed(behind) == ["lean at 8 streams: the client fell behind: x"]


def test_the_plan_reaches_64_streams_and_20000_tokens() -> None:
    assert (LEVELS[-1].streams, LEVELS[-1].tok_s) == (64, 20000)
    assert LEVELS[-1].script().gap_s == 0.0032
    assert LEVELS[-1].script().tokens == 1250
    assert [client for client, _ in plan(2)] == ["lean"] * 8 + ["lean-asyncio"] * 4 + ["openai"] * 4


def test_the_table_shows_the_worst_of_the_repeats() -> None:
    rows = (a_row(ttft_max_s=0.001), a_row(ttft_max_s=0.0025))
    receipt = AccuracyReceipt(created_utc="x", command="x", python="3", cores=2, load_before=0, rows=rows, missed=())
    assert table(receipt).splitlines()[2:] == ["| lean | 8 | 30 | 2.50 | 0.00 / 0.00 | 0.000% | 0.000% | 0.0200 |"]
    assert "TTFT error max 2.50 ms" in line(rows[1])


def test_the_script_is_what_the_builders_make() -> None:
    script = Script(tokens=10, per_chunk=4, gap_s=0.01, first_s=0.2, usage="per-chunk", token_ids=True)
    scenario = codec.from_json(json.dumps(script.scenario()))
    assert list(scenario.replies[0].steps) == uniform(10, 4, 0.01, 0.2, "per-chunk", More(token_ids=True))
    plain = codec.from_json(json.dumps(Script(tokens=3, usage="none").scenario()))
    assert list(plain.replies[0].steps) == uniform(3, 1, 0.01, 0.1, "none")


def test_a_server_that_cannot_start_is_named() -> None:
    with pytest.raises(BenchError, match=r"the scripted server did not start; ran: .*sse_server"):
        ScriptedServer(Script(tokens=2, first_s=-1.0))


@pytest.mark.parametrize("level", [Level(1, 200, 1.0), Level(8, 800, 1.0)], ids=["1", "8"])
def test_the_lean_client_for_real(level: Level) -> None:
    """Wide limits: other work on the machine delays the client too. The receipt in results/ has the true ones."""
    found = row("lean", level)
    assert found.tokens == round(level.tok_s * level.seconds)
    assert found.error.tokens_lost == 0
    assert found.error.ttft_max_s < 0.1
    assert found.error.decode_max_rel < 0.1
    assert found.error.output_rel < 0.1
    assert found.error.read_lag_p50_s is not None
    assert -0.001 < found.error.read_lag_p50_s < 0.02
    assert found.hygiene.events == found.tokens + 3 * level.streams  # role, finish, usage
    assert found.hygiene.full_reads == 0
    assert found.parse_cpu_s_per_1000 is not None
    assert 0 < found.parse_cpu_s_per_1000 < found.cpu_s_per_1000


ROOT = Path(__file__).parents[2]


def committed() -> AccuracyReceipt:
    return AccuracyReceipt.model_validate_json((ROOT / "results/accuracy/accuracy.json").read_text())


def test_the_committed_receipt_states_what_its_rows_miss() -> None:
    found = committed()
    assert found.missed == tuple(words for one in found.rows if one.client == "lean" for words in missed(one))


def test_the_readme_names_every_goal_that_the_committed_receipt_misses() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert " ".join(verdict(committed()).split()) in readme


def a_receipt(*rows: Row) -> AccuracyReceipt:
    words = tuple(words for one in rows for words in missed(one))
    return AccuracyReceipt(created_utc="x", command="x", python="3", cores=2, load_before=0, rows=rows, missed=words)


GOALS_IN_WORDS = (
    "Goals of the lean client, by streams: at 1 TTFT 1 ms, rates 0.1%; at 8 TTFT 3 ms, rates 0.1%; at 32 TTFT 5 ms, rates 0.5%; "
    "at 64 TTFT 5 ms, rates 0.5%."
)


def test_the_verdict_in_words() -> None:
    assert verdict(a_receipt(a_row(), a_row())) == f"{GOALS_IN_WORDS} All are met in 2 of 2 runs."
    late = a_row(ttft_max_s=0.0067, request_lag_max_s=0.0066, came_lag_max_s=None)  # of a receipt that has no such figure
    assert verdict(a_receipt(a_row(), late)) == (
        f"{GOALS_IN_WORDS} Missed in 1 of 2 runs: lean at 8 streams: TTFT error 6.70 ms, goal 3. "
        "In these runs the server had read a request only after 6.60 ms, which counts against the client."
    )
    slow = a_row(decode_max_rel=0.002, request_lag_max_s=0.0001)
    assert verdict(a_receipt(slow)).endswith("Missed in 1 of 1 runs: lean at 8 streams: decode error 0.200%, goal 0.1%.")


def test_a_request_that_the_server_read_late_is_told() -> None:
    """Written at 0.994 s, read by the server at 1 s."""
    assert compare(seen(begin_ms=994), [ONE]).request_lag_max_s == 0.006
    assert compare(Seen(seen().traces, (), 0.5, CALM), [ONE]).request_lag_max_s is None


LATE_READ = replace(ONE, came_ns=994 * MS)  # it had come 6 ms before the server read it


def test_the_true_time_to_the_first_token_begins_when_the_request_had_come() -> None:
    assert truth(LATE_READ).ttft_s == 0.206
    assert group([LATE_READ]).ttft_mean_s == 0.206
    assert group([LATE_READ]).output_tok_s == pytest.approx(9 / 0.506)  # from 0.994 s to 1.5 s
    assert truth(LATE_READ).decode_tok_s == truth(ONE).decode_tok_s


def test_a_server_that_reads_late_is_no_error_of_the_client() -> None:
    """Written at 0.994 s: tokens 0.206, 0.306 and 0.506 s later."""
    error = compare(seen(0.006, 994), [LATE_READ])
    assert (error.ttft_max_s, error.output_rel) == (0.0, 0.0)
    assert (error.request_lag_max_s, error.came_lag_max_s) == (0.006, 0.0)


def test_a_clock_that_a_client_starts_before_it_writes_is_its_error() -> None:
    """Its zero is 0.99 s, and the request came at 0.994 s."""
    error = compare(seen(0.010, 990), [LATE_READ])
    assert (error.ttft_max_s, error.came_lag_max_s) == (0.004, 0.004)


def test_no_excuse_is_given_where_the_truth_holds_the_servers_delay() -> None:
    late = a_row(ttft_max_s=0.0067, request_lag_max_s=0.0066, came_lag_max_s=0.0001)
    assert verdict(a_receipt(late)).endswith("lean at 8 streams: TTFT error 6.70 ms, goal 3.")


def test_the_parts_of_a_token_are_measured() -> None:
    """On real sockets: a read costs the kernel more than Python's look at it, and no part is free."""
    kernel, ours, waking = floor.kernel_us(), lean.run(floor.handling_us()), floor.waking_us()
    assert 0.05 < ours < kernel < 200
    assert 0.5 < waking < 5000
