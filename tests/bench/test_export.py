"""Receipts as other tools write them. The keys and names are theirs, the expected numbers were worked out by hand."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import export
from bench.derive import derived
from bench.export import benchy, vllm
from bench.receipt import Receipt, seal, write
from bench.trace import Usage
from tests.bench.rounds_sample import grouped
from tests.bench.samples import run, sample

ROOT = Path(__file__).parents[2]


def two_lanes() -> Receipt:
    return seal(grouped())


def single(**protocol: object) -> Receipt:
    """Runs at 40 and 50 tok/s: 11 tokens each, TTFT 0.2 s, 20 prompt tokens, none cached."""
    payload = sample()
    return seal(derived(payload.model_copy(update={"protocol": payload.protocol.model_copy(update=protocol)})))


def without_counts() -> Receipt:
    """The server states no usage: no tokens, no rates."""
    payload = sample()
    bare = [one.model_copy(update={"trace": one.trace.model_copy(update={"usage": None, "tokens": (None,) * 11})}) for one in payload.runs]
    return seal(derived(payload.model_copy(update={"runs": tuple(bare)})))


def test_benchy_rows_of_one_stream() -> None:
    lines = benchy.markdown([single()]).splitlines()
    assert lines[0].startswith("| model | test | t/s (total) | t/s (req) | peak t/s |")
    # 20 prompt tokens in 0.2 s; decode 40 and 50: mean 45, population deviation 5
    assert lines[2] == "| test\\|model | pp20 | 100.00 ± 0.00 | 100.00 ± 0.00 |  |  | 200.00 ± 0.00 | 200.00 ± 0.00 | 200.00 ± 0.00 |"
    assert lines[3] == "| test\\|model | tg11 | 45.00 ± 5.00 | 45.00 ± 5.00 |  |  |  |  |  |"


def test_benchy_depth_names_what_was_there_before() -> None:
    rows = benchy.markdown([single(depth_tokens=20)])
    assert "| pp20 |" in rows
    assert "| tg11 @ d20 |" in rows


def test_benchy_totals_of_lanes_are_theirs() -> None:
    """Their total: prompt tokens until the last first token; answer tokens after each lane's first, from the first one to the end."""
    (found,) = benchy.report([two_lanes()])["benchmarks"]
    # round 0: 40 prompt tokens until 2 s; answers: 6 tokens from 1 to 5; round 1: 40 until 1 s; 6 tokens from 1 to 5
    assert found["pp_throughput"]["values"] == [20.0, 40.0]
    assert found["tg_throughput"]["values"] == [1.5, 1.5]
    assert (found["concurrency"], found["prompt_size"], found["response_size"], found["context_size"]) == (2, 20, 4, 0)
    assert "| pp20 (c2) |" in benchy.markdown([two_lanes()])


def test_benchy_totals_leave_out_what_was_cached() -> None:
    payload = grouped()
    warm = [
        run.model_copy(
            update={"trace": run.trace.model_copy(update={"usage": Usage(prompt_tokens=20, completion_tokens=4, cached_tokens=15)})}
        )
        for run in payload.runs
    ]
    (found,) = benchy.report([seal(derived(payload.model_copy(update={"runs": tuple(warm)})))])["benchmarks"]
    assert (found["prompt_size"], found["context_size"]) == (5, 15)
    assert found["pp_throughput"]["values"] == [5.0, 10.0]  # 2 x 5 tokens until 2 s, and until 1 s


def test_benchy_json_has_their_keys() -> None:
    found = json.loads(export.render([single()], "llama-benchy-json"))
    assert set(found) == {
        "version", "timestamp", "latency_mode", "latency_ms", "model", "prefix_caching_enabled", "max_concurrency", "benchmarks",
    }  # fmt: skip
    assert set(found["benchmarks"][0]) == {
        "concurrency", "context_size", "prompt_size", "response_size", "is_context_prefill_phase", "pp_throughput", "pp_req_throughput",
        "tg_throughput", "tg_req_throughput", "peak_throughput", "peak_req_throughput", "ttfr", "est_ppt", "e2e_ttft",
        "throughput_over_time", "requests_throughput_over_time",
    }  # fmt: skip
    assert set(found["benchmarks"][0]["tg_throughput"]) == {"mean", "std", "values"}


def test_csv_is_a_row_a_run_with_units() -> None:
    rows = list(csv.DictReader(io.StringIO(export.render([single(), two_lanes()], "csv"))))
    assert len(rows) == 6
    assert (rows[0]["decode_tok_per_s"], rows[0]["ttft_s"], rows[0]["output_tokens"]) == (str(40.0), "0.2", "11")
    assert (rows[3]["round"], rows[3]["lane"], rows[3]["start_in_round_s"], rows[3]["concurrency"]) == ("0", "1", "0.5", "2")
    assert all(
        name.endswith(("_s", "_tokens", "_per_s", "_per_chunk"))
        for name in rows[0]
        if "ttf" in name or ("tok" in name and name != "token_source")
    )


def test_csv_leaves_the_unknown_empty() -> None:
    (row, _) = csv.DictReader(io.StringIO(export.render([without_counts()], "csv")))
    assert [row[name] for name in ("output_tokens", "decode_tok_per_s", "tpot_s", "prompt_tokens", "round", "due_in_round_s")] == [""] * 6
    assert row["ttft_s"] == "0.2"


def test_vllm_result_by_hand() -> None:
    found = vllm.result(single())
    # last tokens at 0.2 + 10/40 and 0.2 + 10/50
    assert found["duration"] == pytest.approx(0.45 + 0.4)
    assert (found["completed"], found["failed"], found["total_input_tokens"], found["total_output_tokens"]) == (2, 0, 40, 22)
    assert found["output_throughput"] == pytest.approx(22 / 0.85)
    assert found["total_token_throughput"] == pytest.approx(62 / 0.85)
    assert found["request_throughput"] == pytest.approx(2 / 0.85)
    assert (found["mean_ttft_ms"], found["median_ttft_ms"], found["p99_ttft_ms"]) == (pytest.approx(200), 200, pytest.approx(200))
    # TPOT 25 and 20 ms
    assert found["mean_tpot_ms"] == pytest.approx(22.5)
    assert found["std_tpot_ms"] == pytest.approx(2.5)
    assert found["p99_tpot_ms"] == pytest.approx(24.95)
    assert found["mean_itl_ms"] == pytest.approx(22.5)
    assert (found["spec_decode_acceptance_rate"], found["spec_decode_acceptance_length"]) == (75.0, 2.5)
    assert (found["request_goodput"], found["max_output_tokens_per_s"], found["request_rate"]) == (None, None, "inf")


def test_vllm_result_has_every_key_of_theirs() -> None:
    """vllm bench serve 0.32 with --save-result and --save-detailed, and no more but acceptance where something was drafted."""
    theirs = """
        date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed
        failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput
        input_lens output_lens ttfts itls latencies start_times queue_times generated_texts errors max_output_tokens_per_s
        max_concurrent_requests rtfx"""
    statistics = {f"{name}_{metric}_ms" for name in ("mean", "median", "std", "p99") for metric in ("ttft", "tpot", "itl", "e2el")}
    drafted = "acceptance_rate acceptance_length num_drafts draft_tokens accepted_tokens per_position_acceptance_rates"
    assert set(vllm.result(single())) == {*theirs.split(), *statistics, *(f"spec_decode_{name}" for name in drafted.split())}


def test_vllm_queue_time_is_the_clients_lateness() -> None:
    """Sent half a second after it was due; a lane that starts with its round was due at no time of its own."""
    placed = two_lanes().runs[0]
    assert placed.place is not None
    late = placed.model_copy(update={"place": placed.place.model_copy(update={"start_s": 2.0, "due_s": 1.5})})
    found = vllm.result(two_lanes().model_copy(update={"runs": (placed, late)}))
    assert found["queue_times"] == [None, 0.5]


def test_vllm_duration_of_rounds_is_wall_time() -> None:
    found = vllm.result(two_lanes())
    assert found["duration"] == 10.0  # 0 to 5, twice: not the sum of four requests
    assert found["output_throughput"] == 1.6


def test_vllm_totals_of_uncounted_answers_are_null_and_not_zero() -> None:
    found = vllm.result(without_counts())
    for name in ("total_output_tokens", "output_throughput", "total_token_throughput", "mean_tpot_ms", "total_input_tokens"):
        assert found[name] is None, name
    assert found["output_lens"] == [None, None]
    assert found["mean_ttft_ms"] == pytest.approx(200)


def test_a_failed_run_is_counted_and_kept_out_of_the_figures() -> None:
    found = vllm.result(seal(sample(run(0, 40.0), run(1, error="HTTP 500"))))
    assert (found["completed"], found["failed"], found["errors"]) == (1, 1, ["", "HTTP 500"])
    assert found["total_output_tokens"] == 11


@pytest.mark.parametrize("form", export.FORMATS)
def test_the_task(tmp_path: Path, form: str) -> None:
    write(single(), tmp_path / "a.json")
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "export", str(tmp_path), "--format", form], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == export.render([single()], form) + "\n"


def test_the_task_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    write(seal(sample(run(0, error="broken off"))), tmp_path / "a.json")
    invoke = [sys.executable, "-m", "invoke", "export", str(tmp_path)]
    done = subprocess.run(invoke, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert "marked invalid" in done.stderr
    done = subprocess.run([*invoke, "--format", "xml"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "allowed: llama-benchy" in done.stderr
