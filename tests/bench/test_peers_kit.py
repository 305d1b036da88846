"""The peers on the local kit: what the kit's log says, read and worked out by hand, and the kit itself for real."""

from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.peers import __main__ as program
from bench.peers import kit, ours, runs
from bench.peers.kit import Kit, Served, served, what_it_says
from bench.peers.peer import Job, Peer, Reported
from bench.peers.runs import Case, on_kit
from bench.peers.table import Receipt
from tests.cluster.support import command_lines
from tests.ports import free_port

# Two requests whose lines stand in each other, as the server writes them with two lanes; before them the end of one that began earlier,
# after them one that its client left.
LOG = """\
0.00.870.737 I srv          init: listening on http://127.0.0.1:18931
serving on http://127.0.0.1:18931
0.00.900.000 I slot print_timing: id  0 | task 0 | prompt eval time =     324.20 ms /    42 tokens (    7.72 ms per token)
0.00.900.100 I slot print_timing: id  0 | task 0 |        eval time =     110.35 ms /     8 tokens (   15.76 ms per token)
0.59.000.000 I slot launch_slot_: id  0 | task 9 | processing task, is_child = 0
0.59.250.000 I slot launch_slot_: id  1 | task 10 | processing task, is_child = 0
1.01.500.000 I slot print_timing: id  0 | task 9 | prompt eval time =     499.00 ms /    70 tokens (    7.72 ms per token)
1.01.500.000 I slot print_timing: id  0 | task 9 |        eval time =    2000.00 ms /    41 tokens (   48.78 ms per token)
1.01.500.020 I slot print_timing: id  0 | task 9 |       total time =    2499.00 ms /    111 tokens
1.01.500.040 I slot      release: id  0 | task 9 | stop processing: n_tokens = 110, truncated = 0
1.03.250.000 I slot print_timing: id  1 | task 10 | prompt eval time =     999.00 ms /    90 tokens (    7.72 ms per token)
1.03.250.000 I slot print_timing: id  1 | task 10 |        eval time =    3000.00 ms /    31 tokens (   96.77 ms per token)
1.04.000.000 I slot launch_slot_: id  0 | task 55 | processing task, is_child = 0
1.04.100.000 I slot      release: id  0 | task 55 | stop processing: n_tokens = 12, truncated = 0
"""
FIRST, SECOND = Served(59.0, 61.5, 2.0, 70, 41), Served(59.25, 63.25, 3.0, 90, 31)


def test_the_log_by_hand() -> None:
    assert served(LOG) == (FIRST, SECOND)
    assert (FIRST.ttft_s, SECOND.ttft_s) == (0.5, 1.0)
    assert served("") == ()


@pytest.mark.parametrize("tokens", ["0", "1"])
def test_an_answer_of_one_token_is_no_measurement(tokens: str) -> None:
    assert served(LOG.replace("/    41 tokens", f"/    {tokens} tokens")) == (SECOND,)


def test_what_the_kit_says_by_hand() -> None:
    """40 gaps in 2 s and 30 in 3 s; 72 tokens from 59 s to 63.25 s."""
    found = what_it_says((FIRST, SECOND))
    assert (found.ttft_ms, found.tpot_ms, found.tpot_per_step_ms, found.tokens) == (750, 75, 75, 36)
    assert found.decode_tok_s == 15  # 20 and 10
    assert found.output_tok_s == pytest.approx(72 / 4.25)
    with pytest.raises(ValueError, match="no whole request"):
        what_it_says(())


def kit_of(folder: Path, text: str) -> Kit:
    (folder / "log").write_text(text)
    return Kit("http://h:1", "m", "e 1", folder / "log", folder)


def fake(folder: Path, said: str) -> Peer:
    """A tool that reports this, while the kit's log grows by LOG."""

    def prepare(job: Job) -> None:
        with (folder / "log").open("a") as log:
            log.write(LOG)

    code = f"print({said!r})"
    return Peer("fake", "", lambda job: ["python3", "-c", code], lambda job, output: Reported.model_validate_json(output), {}, prepare)


TWO = Case(1, "final", streams=2, requests=2, tokens=41)


def test_a_tool_is_held_against_the_requests_of_its_own_run(tmp_path: Path) -> None:
    """What the log had before the tool ran is another's; of what it sent, the last requests count."""
    running = kit_of(tmp_path, LOG.replace("2000.00 ms", "1.00 ms"))
    found = on_kit(fake(tmp_path, '{"ttft_ms": 760, "tpot_ms": 60, "tokens": 36}'), TWO, running)
    assert [(one.figure, one.true, one.wrong) for one in found.verdicts if one.said is not None] == [
        ("ttft_ms", 750, False), ("tpot_ms", 75, True), ("tokens", 36, False),
    ]  # fmt: skip
    assert found.prompt_tokens == 80
    last = on_kit(fake(tmp_path, '{"tokens": 31}'), Case(1, "final", streams=1, requests=1, tokens=31), running)
    assert [(one.true, one.wrong) for one in last.verdicts if one.said is not None] == [(31, False)]


@pytest.mark.parametrize(("streams", "ttft_ms", "wrong"), [(1, 900, True), (2, 900, False), (1, 600, True), (2, 600, True)])
def test_beside_another_stream_a_request_may_wait_for_its_slot(tmp_path: Path, streams: int, ttft_ms: int, wrong: bool) -> None:
    """The log says 750 ms from the slot on."""
    case = Case(1, "final", streams=streams, requests=2, tokens=41)
    found = on_kit(fake(tmp_path, f'{{"ttft_ms": {ttft_ms}}}'), case, kit_of(tmp_path, ""))
    assert (found.verdicts[0].figure, found.verdicts[0].true, found.verdicts[0].wrong) == ("ttft_ms", 750, wrong)


def test_requests_that_the_kit_did_not_serve_are_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "_LOG_S", 0.2)
    found = on_kit(fake(tmp_path, '{"tokens": 36}'), Case(1, "final", streams=1, requests=3, tokens=41), kit_of(tmp_path, ""))
    assert (found.said, found.verdicts) == (None, ())
    assert found.failure == "the kit served 2 whole requests of 3, and 3 began"


def test_a_command_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    job = Job("http://h:1", "m", Path("/home/me/cache/tokenizer"), tmp_path / "out", 1, 1, 8)
    peer = Peer("x", "", lambda job: ["x", str(job.tokenizer), str(job.folder), job.base_url], lambda job, output: Reported())
    assert runs._shown(peer, job) == "x TOKENIZER TMP/out URL"


def test_our_prompts_differ_and_have_about_the_wanted_length() -> None:
    requests = [*ours.asked("m", 3, 64, 8), *ours.asked("m", 3, 64, 8)]
    assert len({request.content for request in requests}) == 6
    assert {35 <= len(request.content.split()) <= 55 for request in requests} == {True}
    assert all(request.to_the_limit and request.max_tokens == 8 for request in requests)


def test_a_kit_that_does_not_start_is_an_error_with_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADS", "none")
    with pytest.raises(BenchError, match=r"(?s)the local kit: exit status 2; ran: -m invoke up --kit local --json.*THREADS"), kit.running():
        pass


@pytest.mark.model
def test_the_kit_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours on the real model: the count is the server's, and nothing is left of the kit. The tokenizer is not needed for this."""
    asked, port = kit._said, free_port()
    monkeypatch.setattr(kit, "_free_port", lambda: port)
    monkeypatch.setattr(kit, "_said", lambda words, env, limit_s: "x" if "cli.lab_env" in words else asked(words, env, limit_s))
    monkeypatch.setattr(program, "LIVE", [Case(1, "final", streams, requests=2 * streams, tokens=24) for streams in (1, 2)])
    out = tmp_path / "peers.json"
    monkeypatch.setattr("sys.argv", ["peers", "--local", "--parts", "none", "--peers", "spark-lab", "--out", str(out)])
    assert program.main() == 0
    found = Receipt.model_validate_json(out.read_text())
    assert [(row.streams, row.requests, row.failure) for row in found.live] == [(1, 2, None), (2, 4, None)]
    for row in found.live:
        true = {one.figure: one.true for one in row.verdicts}
        errors = {one.figure: one.error for one in row.verdicts}
        assert (true["tokens"], errors["tokens"]) == (24, 0)
        assert None not in errors.values()
        assert 40 < (row.prompt_tokens or 0) < 120
    assert str(found.kit).startswith("SmolLM2-135M-Instruct on xllamacpp ")
    assert found.command == "python -m bench.peers --parts none --local"
    assert "spark-lab, real server: " in capsys.readouterr().out
    assert f"--port {port} " not in command_lines()
