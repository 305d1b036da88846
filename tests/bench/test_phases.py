"""Every phase from command line to receipt, against a server whose tokens, cache and speed are known."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.check import check
from bench.phases.catalog import KINDS
from bench.phases.names import PHASES
from tests.bench.phase_runner import bench
from tests.bench.tiny_server import Tiny, serving

ROOT = Path(__file__).parents[2]


def test_every_named_phase_is_made() -> None:
    assert tuple(KINDS) == PHASES


def test_one_receipt_per_level_and_lanes_are_unique(tmp_path: Path) -> None:
    with serving(Tiny(prefill_s=0.01, gap_s=0.02)) as tiny:  # some 50 prompt tokens: half a second to the first token
        code, receipts = bench(tiny, tmp_path, "--phase", "code", "--concurrency", "1,2,4", "--max-tokens", "50")
    assert code == 0, [receipt.invalid_because for receipt in receipts]
    assert [(r.protocol.concurrency, len(r.runs), r.valid) for r in receipts] == [(1, 1, True), (2, 2, True), (4, 4, True)]
    lanes = receipts[2]
    assert len({run.prompt for run in lanes.runs}) == 4
    assert len({run.salt for run in lanes.runs}) == 4
    assert receipts[0].summary.group is None
    group = lanes.summary.group
    assert group is not None
    assert (group.rounds, group.lanes, group.preemptions) == (1, 4, 0)
    assert lanes.rounds[0].isolation is not None
    assert lanes.rounds[0].isolation.held is True
    # 4 x 50 tokens, 50 a second and lane: the wait for the first one is in the wall rate only
    assert group.wall_tok_s is not None
    assert group.steady_tok_s is not None
    assert group.wall_tok_s.median < group.steady_tok_s.median
    assert lanes.rounds[0].group is not None
    assert lanes.rounds[0].group.tokens == 200
    assert len(list(tmp_path.glob("*-code-c4-*.json"))) == 1  # a bare c4 may be in an id, too


def test_lanes_start_together_and_their_clock_is_the_rounds(tmp_path: Path) -> None:
    with serving(Tiny(gap_s=0.02)) as tiny:
        _, (receipt,) = bench(tiny, tmp_path, "--phase", "prose", "--concurrency", "4", "--max-tokens", "100")
    starts = [run.place.start_s for run in receipt.runs if run.place]
    assert max(starts) < 1.5  # 100 tokens take 2 s: one after the other the last would start at 6 s
    group = receipt.rounds[0].group
    assert group is not None
    assert group.steady_s is not None
    assert group.steady_s > 0.1


def test_more_lanes_than_texts_is_said(tmp_path: Path) -> None:
    with serving(Tiny()) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "json", "--concurrency", "9", "--max-tokens", "4")
    assert code == 0
    assert "9 lanes share 8 texts and differ only in their salt" in receipt.notes


def test_a_server_that_queues_its_lanes_has_no_steady_rate(tmp_path: Path) -> None:
    with serving(Tiny(slots=1)) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "prose", "--concurrency", "2", "--max-tokens", "10")
    assert code == 0
    assert receipt.summary.group is not None
    assert receipt.summary.group.steady_tok_s is None
    assert receipt.summary.group.wall_tok_s is not None
    assert any("never decoded all at once" in note for note in receipt.notes)


def test_an_answer_that_ends_by_itself_is_unequal_work(tmp_path: Path) -> None:
    with serving(Tiny(ends_after=5)) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "prose", "--max-tokens", "10")
    assert code == 3
    assert receipt.invalid_because == (
        "1 of 1 answers did not reach their token limit (run 0: 5 tokens, stop): unequal work; lower --max-tokens",
    )


def test_short_code_may_end_by_itself(tmp_path: Path) -> None:
    with serving(Tiny(ends_after=5)) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "short-code", "--max-tokens", "10")
    assert (code, receipt.valid, receipt.protocol.natural_end) == (0, True, True)


@pytest.mark.parametrize("tokenize", [True, False])
def test_prompts_have_the_wanted_depth(tmp_path: Path, tokenize: bool) -> None:
    """With the server's tokenizer, and by what a first request costs."""
    with serving(Tiny(tokenize=tokenize)) as tiny:
        code, receipts = bench(tiny, tmp_path, "--phase", "long-context", "--depths", "0,300,1200", "--max-tokens", "6")
    assert code == 0, [receipt.invalid_because for receipt in receipts]
    prompts = [receipt.runs[0].metrics.prompt_tokens or 0 for receipt in receipts]
    assert prompts[0] == 7 + 1 + 47  # template, salt, and the task's words
    assert prompts[1:] == [pytest.approx(300, rel=0.005), pytest.approx(1200, rel=0.005)]
    assert [receipt.protocol.depth_tokens for receipt in receipts] == [0, 300, 1200]
    assert all(run.cache is not None and run.cache.label == "cold" for receipt in receipts for run in receipt.runs)


def test_the_ladder_is_scaled_to_the_context(tmp_path: Path) -> None:
    with serving(Tiny(context_tokens=2072)) as tiny:  # 2072 - 8 of answer - 64: 2000 to share
        code, receipts = bench(tiny, tmp_path, "--phase", "prefill")
    assert code == 0
    assert [receipt.protocol.depth_tokens for receipt in receipts] == [500, 1000, 2000]
    assert receipts[0].protocol.shape is not None
    assert receipts[0].protocol.shape.context_tokens == 2072


def test_a_prefill_rate_counts_what_was_computed(tmp_path: Path) -> None:
    with serving(Tiny(prefill_s=0.001)) as tiny:
        _, (receipt,) = bench(tiny, tmp_path, "--phase", "prefill", "--depths", "400")
    rate = receipt.summary.prefill_tok_s
    assert rate is not None
    assert 600 < rate.median < 1000  # 1 ms a token: 1,000 tok/s less what connecting takes
    assert receipt.runs[0].trace.finish_reason == "length"
    assert receipt.runs[0].metrics.n_tokens == 8


@pytest.mark.parametrize(
    ("context", "args", "message"),
    [
        (None, (), "does not state its context length"),
        (1000, ("--depths", "1200"), "do not fit the server's context of 1000"),
        (4000, ("--depths", "20"), "less than the task itself has"),
    ],
)
def test_impossible_depths_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], context: int | None, args: tuple[str, ...], message: str
) -> None:
    with serving(Tiny(context_tokens=context)) as tiny:
        code, receipts = bench(tiny, tmp_path, "--phase", "prefill", *args)
    assert (code, receipts) == (2, [])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--phase", "open-loop", "--concurrency", "4"), "phase open-loop has no lanes"),
        (("--phase", "prefix", "--concurrency", "1"), "phase prefix has no lanes"),
        (("--phase", "prose", "--depths", "8192"), "phase prose has no depth"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    with serving(Tiny()) as tiny:
        assert bench(tiny, tmp_path, *args) == (2, [])
    assert message in capsys.readouterr().err


def test_open_loop_does_not_wait_for_answers(tmp_path: Path) -> None:
    # 128 tokens, 2 ms each: an answer takes a quarter of a second; four due each 0.05 s on average overlap
    with serving(Tiny(gap_s=0.002)) as tiny:
        options = ["--base-url", tiny.base_url, "--out", str(tmp_path), "--phase", "open-loop", "--rate", "20", "--requests", "6"]
        done = _invoke("bench", *options, "--skip-coherence", "--slo-ttft", "5", "--slo-tpot", "1")
        receipt = check(next(itertools.chain(tmp_path.glob("*.json"), tmp_path.glob("invalid/*.json"))))
    assert "Traceback" not in done, done
    goodput = receipt.rounds[0].goodput
    assert goodput is not None
    assert (goodput.requests, goodput.good, goodput.attainment) == (6, 6, 1.0)
    assert goodput.in_flight_max > 1
    assert goodput.goodput_req_s is not None
    assert goodput.offered_req_s is not None
    dues = [run.place.due_s or 0 for run in receipt.runs if run.place]
    assert dues == sorted(dues)
    assert all(run.place.start_s >= (run.place.due_s or 0) for run in receipt.runs if run.place)
    assert dues[0] == 0.2


def _invoke(*args: str) -> str:
    return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True).stderr


def test_quick_is_short(tmp_path: Path) -> None:
    with serving(Tiny(context_tokens=100_000)) as tiny:
        code, receipts = bench(tiny, tmp_path, "--phase", "long-context", "--quick")
    assert code == 0
    assert [(r.protocol.depth_tokens, r.protocol.max_tokens) for r in receipts] == [(0, 64), (192, 64), (384, 64), (768, 64)]
    assert [r.protocol.runs for r in receipts] == [1] * 4


def test_a_level_that_fails_ends_the_job(tmp_path: Path) -> None:
    with serving(Tiny(broken_from=2)) as tiny:  # the warm-up and one lane are answered
        code, receipts = bench(tiny, tmp_path, "--phase", "prose", "--concurrency", "2,4", "--max-tokens", "50")
    assert code == 3
    assert len(receipts) == 1
    assert "HTTP 500" in receipts[0].invalid_because[0]
    assert receipts[0].summary.failed_runs == 1


def test_foreign_traffic_during_a_round_is_seen(tmp_path: Path) -> None:
    with serving(Tiny()) as tiny:
        tiny.totals = _Shared(tiny.totals)
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "prose", "--concurrency", "2", "--max-tokens", "10")
    assert code == 3
    assert any("moved by more or less than these requests" in reason for reason in receipt.invalid_because)


class _Shared(dict[str, int]):
    """Counters on which somebody else's token is booked with each of ours."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value + (1 if key == "generation" else 0))


def test_the_file_holds_no_hidden_state(tmp_path: Path) -> None:
    """A receipt with rounds is plain JSON whose new parts are schema fields."""
    with serving(Tiny()) as tiny:
        bench(tiny, tmp_path, "--phase", "prose", "--concurrency", "2", "--max-tokens", "5")
    plain = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert plain["runs"][0]["before"] is None
    assert plain["rounds"][0]["hygiene"]["wall_s"] > 0
    assert plain["warm_up"]["prompt_tokens"] == 7 + 12
