"""The peers: what each is asked, how its result is read (files in their recorded shapes), and how it is judged, by hand."""

import json
import sys
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.peers import aiperf, environments, guidellm, llama_benchy, ours, runs, vllm_bench
from bench.peers.__main__ import CASES, PEERS
from bench.peers.judged import Actual, judge, what_is_true
from bench.peers.peer import Job, Peer, Reported
from bench.peers.runs import Case, Server, live, row
from bench.peers.tokenizer import text, write
from bench.scripted import Script, ScriptedServer, Sent
from bench.trace import Trace, Usage

MS = 1_000_000
TRUE = Actual(ttft_ms=200, tpot_ms=10, tpot_per_step_ms=10.5, tokens=128, decode_tok_s=95.2, output_tok_s=150)


def job(folder: Path, usage: bool = True) -> Job:
    return Job("http://h:1", "m", folder / "tok", folder, 2, 4, 128, usage)


def verdicts(**said: float) -> dict[str, tuple[float | None, bool]]:
    return {one.figure: (one.error, one.wrong) for one in judge(Reported.model_validate(said), TRUE)}


def test_the_truth_of_chunks_of_eight() -> None:
    one = Sent(0, ((200 * MS, 0, 8), (300 * MS, 0, 16), (400 * MS, 0, 24)), "complete", True)
    found = what_is_true([one])
    assert (found.ttft_ms, found.tokens) == (200, 24)
    assert found.decode_tok_s == pytest.approx(80)  # 16 tokens in 0.2 s
    assert found.tpot_ms == pytest.approx(200 / 23)
    assert found.tpot_per_step_ms == pytest.approx(12.5)
    assert found.output_tok_s == pytest.approx(24 / 0.4)


def test_a_role_chunk_taken_for_a_token_is_wrong() -> None:
    found = verdicts(ttft_ms=6.2, tpot_ms=11.6)
    assert found["ttft_ms"] == (-0.969, True)
    assert found["tpot_ms"][1]


def test_chunks_counted_as_tokens_are_wrong() -> None:
    found = verdicts(tokens=32, output_tok_s=37.5, tpot_ms=41)
    assert found["tokens"] == (-0.75, True)
    assert found["output_tok_s"] == (-0.75, True)
    assert found["tpot_ms"][1]


def test_either_time_per_token_is_right_and_silence_is_not_wrong() -> None:
    assert verdicts(tpot_ms=10.05)["tpot_ms"] == (0.005, False)
    assert verdicts(tpot_ms=10.5)["tpot_ms"] == (0.0, False)
    assert verdicts()["tokens"] == (None, False)


@pytest.mark.parametrize(("value", "bad"), [(205, False), (219, False), (221, True), (179, True)])
def test_the_border_of_right(value: float, bad: bool) -> None:
    assert verdicts(ttft_ms=value)["ttft_ms"][1] is bad


# --- reading each tool's result ---


def put(folder: Path, name: str, content: object) -> Job:
    (folder / name).write_text(json.dumps(content))
    return job(folder)


def test_llama_benchy(tmp_path: Path) -> None:
    row = {"e2e_ttft": {"mean": 226.1}, "ttfr": {"mean": 20.1}, "tg_req_throughput": {"mean": 50.1}, "tg_throughput": {"mean": 100.1}}
    said = llama_benchy.PEER.read(put(tmp_path, "out.json", {"version": "0.4.0", "benchmarks": [row]}), "")
    assert said == Reported(ttft_ms=226.1, decode_tok_s=50.1)
    words = llama_benchy.PEER.argv(job(tmp_path))
    assert words[words.index("--runs") + 1] == "2"  # times concurrency 2: 4 requests
    llama_benchy.PEER.prepare(job(tmp_path))
    assert len(next((tmp_path / ".cache/llama-benchy").iterdir()).read_text().split()) == 20_000


def test_guidellm(tmp_path: Path) -> None:
    def mean(value: float) -> object:
        return {"successful": {"mean": value, "count": 4}, "errored": None}

    metrics = {"time_to_first_token_ms": mean(203.1), "inter_token_latency_ms": mean(20.0), "time_per_output_token_ms": mean(21.4)}
    metrics |= {"output_token_count": mean(128), "output_tokens_per_second": {"successful": {"mean": 0.0, "count": 0}}}
    said = guidellm.PEER.read(put(tmp_path, "out.json", {"benchmarks": [{"metrics": metrics}]}), "")
    assert said == Reported(ttft_ms=203.1, tpot_ms=20.0, tokens=128)


def test_aiperf_counts_as_the_server_does_where_it_can(tmp_path: Path) -> None:
    content = {
        "time_to_first_token": {"unit": "ms", "avg": 202.7},
        "inter_token_latency": {"avg": 20.1},
        "output_sequence_length": {"avg": 128.0},
    }
    content |= {"output_token_throughput": {"avg": 92.9}, "output_token_throughput_per_user": {"avg": 49.9}}
    said = aiperf.PEER.read(put(tmp_path, "profile_export_aiperf.json", content), "")
    assert said == Reported(ttft_ms=202.7, tpot_ms=20.1, tokens=128, decode_tok_s=49.9, output_tok_s=92.9)
    assert "--use-server-token-count" in aiperf.PEER.argv(job(tmp_path))
    assert "--use-server-token-count" not in aiperf.PEER.argv(job(tmp_path, usage=False))


def test_aiperf_that_leaves_a_failed_request_out_gives_no_row(tmp_path: Path) -> None:
    content = {"time_to_first_token": {"avg": 202.7}, "request_count": {"avg": 3.0}, "error_request_count": {"avg": 1.0}}
    content["error_summary"] = [{"error_details": {"type": "X", "message": "Connection reset by peer"}, "count": 1}]  # type: ignore[assignment]
    asked = put(tmp_path, "profile_export_aiperf.json", content)
    with pytest.raises(ValueError, match=r"^1 of 4 requests failed: Connection reset by peer$"):
        aiperf.PEER.read(asked, "")
    put(tmp_path, "profile_export_aiperf.json", {**content, "error_request_count": {"avg": 0.0}})
    assert aiperf.PEER.read(asked, "").ttft_ms == 202.7


def test_vllm_bench(tmp_path: Path) -> None:
    content = {"mean_ttft_ms": 6.2, "mean_tpot_ms": 21.6, "total_output_tokens": 512, "completed": 4, "output_throughput": 93.1}
    said = vllm_bench.PEER.read(put(tmp_path, "out.json", content), "")
    assert said == Reported(ttft_ms=6.2, tpot_ms=21.6, tokens=128, output_tok_s=93.1)
    nothing = vllm_bench.PEER.read(put(tmp_path, "out.json", content | {"completed": 0, "total_output_tokens": 0}), "")
    assert nothing.tokens is None


def trace(begin_ms: int, counted: bool) -> ours.Timed:
    usage = Usage(completion_tokens=3) if counted else None
    tokens = (1, 2, 3) if counted else (None, None, None)
    return begin_ms * MS, Trace(
        t_s=(0.2, 0.3, 0.4),
        kinds="ccc",
        tokens=tokens,
        chunk_counts="usage" if counted else None,
        t_end_s=0.5,
        usage=usage,
        finish_reason="stop",
    )


def test_ours() -> None:
    said = ours.reported([trace(1000, True), trace(1100, True)])
    assert said.output_tok_s == pytest.approx(6 / 0.5)  # from 1.0 s to 1.5 s
    assert said == Reported(ttft_ms=200, tpot_ms=said.tpot_ms, tokens=3, decode_tok_s=said.decode_tok_s, output_tok_s=said.output_tok_s)
    assert said.tpot_ms == pytest.approx(100)
    assert said.decode_tok_s == pytest.approx(10)
    assert ours.reported([trace(0, False)]) == Reported(ttft_ms=200)  # unknown is unknown
    begin, broken = trace(0, True)
    with pytest.raises(ValueError, match="cut off"):
        ours.reported([(begin, broken.model_copy(update={"error": "cut off"}))])


def test_the_tokenizer_gives_a_token_per_word(tmp_path: Path) -> None:
    vocabulary = json.loads((write(tmp_path) / "tokenizer.json").read_text())["model"]["vocab"]
    assert all(word in vocabulary for word in ["tok", *text(2500).split()])
    assert sorted(vocabulary.values()) == list(range(1004))


# --- running ---


def fake(code: str) -> Peer:
    """A tool that runs this Python."""
    return Peer("fake", "", lambda job: [sys.executable, "-c", code], lambda job, output: Reported.model_validate_json(output))


SMALL = Case(4, "per-chunk", streams=2, requests=2, tokens=16, gap_s=0.01, first_s=0.1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('no such option')", "exit status 1; it said: no such option"),
        ("print('hello')", "its result is not to be read: ValidationError"),
        ("print('{\"ttft_ms\": 1}')", "the server saw 0 whole requests of 2"),
    ],
)
def test_a_tool_that_fails_is_a_result(code: str, words: str) -> None:
    found = row(fake(code), SMALL)
    assert words in str(found.failure)
    assert (found.said, found.verdicts) == (None, ())


def test_a_tool_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_LIMIT_S", 0.5)
    assert row(fake("import time; time.sleep(60)"), SMALL).failure == "not done within 0.5 s"


def test_a_tool_that_is_not_installed_is_a_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "VLLM", tmp_path)
    assert "no vLLM at" in str(row(vllm_bench.PEER, SMALL).failure)
    monkeypatch.setattr(environments, "cache", lambda: tmp_path)
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    (tmp_path / "guidellm.txt").write_text("no-such-package-of-ours==1\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "guidellm: not installed; ran:" in str(row(guidellm.PEER, SMALL).failure)
    with pytest.raises(BenchError):
        environments.program_folder(guidellm.PEER)


def test_ours_for_real() -> None:
    found = row(ours.PEER, Case(4, "per-chunk", streams=2, requests=2, tokens=16, gap_s=0.2, first_s=0.1))
    assert found.failure is None
    errors = {one.figure: one.error for one in found.verdicts}
    assert errors["tokens"] == 0
    assert errors["ttft_ms"] is not None
    assert errors["ttft_ms"] > -0.01  # a busy machine may take as long as it likes
    assert errors["decode_tok_s"] is not None
    assert abs(errors["decode_tok_s"]) < 0.5  # chunks counted as tokens would be -0.75
    assert found.command.startswith("python")
    assert "URL" in found.command
    unknown = row(ours.PEER, Case(4, "none", streams=1, requests=1, tokens=8, gap_s=0.01, first_s=0.05))
    assert unknown.said is not None
    assert (unknown.said.tokens, unknown.said.decode_tok_s) == (None, None)


def test_every_peer_is_pinned() -> None:
    assert [peer.name for peer in PEERS] == ["spark-lab", "llama-benchy", "vllm bench serve", "guidellm", "aiperf"]
    versions = {peer.name: environments.version(peer) for peer in PEERS}
    assert versions == {"spark-lab": "", "llama-benchy": "0.4.0", "vllm bench serve": "0.32.0", "guidellm": "0.8.1", "aiperf": "0.13.0"}
    assert {(case.per_chunk, case.usage) for case in CASES} == {(n, u) for n in (1, 4, 8) for u in ("final", "per-chunk", "none")}


def test_a_real_server_has_no_truth_but_figures() -> None:
    with ScriptedServer(Script(tokens=8, gap_s=0.01, first_s=0.05)) as server:
        found = live(ours.PEER, SMALL, Server(server.base_url, "any"))
    assert found.verdicts == ()
    assert found.said is not None
    assert found.said.tokens == 8
