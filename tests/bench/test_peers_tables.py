"""The tables of the peers receipt, how runs are added to it, and the command's own words."""

from pathlib import Path

import pytest

from bench.peers import ours, runs
from bench.peers.__main__ import cost, main
from bench.peers.judged import judge
from bench.peers.peer import Peer, Reported
from bench.peers.table import Cost, Receipt, cost_table, cost_verdict, joined, live_summary, live_table, summary_table, table, wrong
from bench.scripted import Script, ScriptedServer
from tests.bench.test_peers import TRUE


def receipt() -> Receipt:
    good = Reported(ttft_ms=202, tpot_ms=10, tokens=128, decode_tok_s=95.2, output_tok_s=149)
    bad = Reported(ttft_ms=6.2, tpot_ms=11.6, tokens=128, output_tok_s=149)
    same = {"command": "x", "per_chunk": 4, "usage": "final", "streams": 2, "requests": 4, "tokens": 128}
    rows = [
        runs.Row.model_validate({**same, "peer": name, "version": version, "verdicts": judge(said, TRUE), "said": said})
        for name, version, said in (("spark-lab", "", good), ("b", "1", bad))
    ]
    failed = rows[1].model_copy(update={"peer": "c", "verdicts": (), "said": None, "failure": "exit status 1;\nit said: a|b"})
    costs = (Cost(peer="b", streams=32, gap_s=0.002, cpu_s_per_1000=0.0345),)
    return Receipt(
        created_utc="x",
        command="x",
        python="3",
        cores=2,
        load_before=0,
        rows=(*rows, failed),
        live=(rows[0].model_copy(update={"prompt_tokens": 71.5}), failed),
        costs=costs,
        kit="m on e",
    )


def test_the_table_marks_what_is_wrong() -> None:
    assert table(receipt()).splitlines()[2:] == [
        "| 4 | final | *the truth* | 200.0 | 10.0 | 128.0 | 95.2 | 150.0 |",
        "| 4 | final | spark-lab | 202.0 (+1.0%) | 10.0 (+0.0%) | 128.0 (+0.0%) | 95.2 (+0.0%) | 149.0 (-0.7%) |",
        "| 4 | final | b 1 | **6.2 (-96.9%)** | **11.6 (+10.5%)** | 128.0 (+0.0%) | - | 149.0 (-0.7%) |",
        "| 4 | final | c 1 | failed: exit status 1; it said: a/b | | | |  |",
    ]
    assert wrong(receipt().rows) == {"spark-lab": (0, 5), "b": (2, 4), "c": (0, 0)}


def test_the_summary_shows_the_worst_of_each() -> None:
    assert summary_table(receipt()).splitlines()[2:] == [
        "| spark-lab | +1.0% | +0.0% | +0.0% | +0.0% | -0.7% | 0 of 5 | - |",
        "| b 1 | **-96.9%** | **+10.5%** | +0.0% | - | -0.7% | 2 of 4 | 0.0345 |",
        "| c 1 | - | - | - | - | - | 0 of 0 | - |",
    ]


def test_a_later_run_adds_to_a_receipt() -> None:
    """A run of the real server alone keeps the figures and costs; a run that measures all replaces all."""
    whole = receipt().model_copy(update={"live": ()})
    live_alone = receipt().model_copy(update={"rows": (), "costs": (), "command": "y", "kit": "m on another"})
    both = joined(whole, live_alone)
    assert (both.rows, both.costs, both.live, both.command) == (whole.rows, whole.costs, live_alone.live, "x; y")
    assert both.kit == "m on another"
    assert joined(both, both.model_copy(update={"live": (), "kit": None})).kit == "m on another"
    assert joined(both, receipt()) == receipt()
    assert joined(both, both.model_copy(update={"live": ()})).live == both.live


def test_the_other_tables() -> None:
    assert cost_table(receipt()).splitlines()[2:] == ["| b | 32 | 2 | 0.0345 |"]


def test_the_table_of_a_real_server() -> None:
    """Only the local kit says what is true."""
    kit, failed = receipt().live
    elsewhere = kit.model_copy(update={"verdicts": (), "prompt_tokens": None, "streams": 1})
    lines = live_table(receipt().model_copy(update={"live": (kit, elsewhere, failed)})).splitlines()
    assert lines[2:] == [
        "| 2 | spark-lab | 71.5 | 202.0 (+1.0%) | 10.0 (+0.0%) | 128.0 (+0.0%) | 95.2 (+0.0%) | 149.0 (-0.7%) |",
        "| 1 | spark-lab | - | 202.0 | 10.0 | 128.0 | 95.2 | 149.0 |",
        "| 2 | c 1 | - | failed: exit status 1; it said: a/b | | | |  |",
    ]
    assert {line.count("|") for line in lines} == {9}
    assert live_summary(receipt()).splitlines()[2:] == [
        "| spark-lab | +1.0% | +0.0% | +0.0% | +0.0% | -0.7% | 0 of 5 |",
        "| c 1 | - | - | - | - | - | 0 of 0 |",
    ]


def test_the_least_of_three_runs_counts() -> None:
    """(3.9 - 0.8) s for 7 x 32 requests of 500 tokens."""
    given = iter([1.0, 4.0, 0.8, 3.9, 0.9, 4.6])
    asked: list[int] = []

    def measure(peer: Peer, case: runs.Case) -> runs.Row:
        asked.append(case.requests)
        return receipt().rows[0].model_copy(update={"cpu_s": next(given)})

    found = cost(ours.PEER, measure, lambda line: None)
    assert asked == [32, 256, 32, 256, 32, 256]
    assert found.cpu_s_per_1000 == 0.02768
    assert (found.short_cpu_s, found.long_cpu_s) == ((1.0, 0.8, 0.9), (4.0, 3.9, 4.6))


def test_a_run_that_failed_has_no_cost() -> None:
    found = cost(ours.PEER, lambda peer, case: receipt().rows[2], lambda line: None)
    assert (found.cpu_s_per_1000, found.failure) == (None, "exit status 1;\nit said: a|b")


def test_the_goal_of_the_cost() -> None:
    costs = [Cost(peer=name, streams=32, gap_s=0.002, cpu_s_per_1000=value) for name, value in (("us", 0.016), ("b", 0.032), ("c", 0.1))]
    met = receipt().model_copy(update={"costs": tuple(costs)})
    assert cost_verdict(met, "us") == "CPU per token: 0.50 of the best peer's (b); goal: at most 0.50, met"
    assert "1.00 of" in str(cost_verdict(met.model_copy(update={"costs": (costs[0], costs[0].model_copy(update={"peer": "d"}))}), "us"))
    assert cost_verdict(receipt(), "us") is None


def test_a_real_server_is_added_to_the_receipt_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.json"
    words = ["peers", "--peers", "spark-lab", "--parts", "none", "--model", "any", "--out", str(out), "--add"]
    with ScriptedServer(Script(tokens=8, gap_s=0.01, first_s=0.05)) as server:
        monkeypatch.setattr("sys.argv", [*words, "--base-url", server.base_url])
        with pytest.raises(SystemExit):
            main()  # there is nothing yet to add to
        assert "--add needs a receipt at --out" in capsys.readouterr().err
        out.write_text(receipt().model_copy(update={"live": ()}).model_dump_json())
        assert main() == 0
    found = Receipt.model_validate_json(out.read_text())
    assert (found.rows, found.costs) == (receipt().rows, receipt().costs)
    assert [(one.peer, one.said.tokens if one.said else None) for one in found.live] == [("spark-lab", 8)]
    assert found.command == "x; python -m bench.peers --parts none --base-url URL --model any"


def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["peers", "--parts", "figures,lod"])
    with pytest.raises(SystemExit):
        main()
    assert "not lod" in capsys.readouterr().err
