"""Other tools' files: what is read, what is said of it, and that it never counts as a receipt."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import export
from bench.errors import InvalidMeasurement
from bench.foreign import importers, model
from bench.kinds import foreign, registry
from bench.receipt import seal, write
from tests.bench.samples import sample

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "foreign"


def invoke(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True)


def test_bench_decode_says_what_it_hides() -> None:
    found = importers.imported(DATA / "bench_decode.json")
    (row,) = found.rows
    assert (found.tool, found.created, row.test, row.lanes, row.runs) == ("bench_decode", "2026-08-30T10:00:00Z", "prose", 1, 3)
    # its stated median is the largest of three; 2.39 accepted per step without the bonus token
    assert (row.decode_tok_s, row.decode_min_tok_s, row.decode_max_tok_s) == (27.1, 26.0, 29.9)
    assert (row.ttft_s, row.acceptance_rate, round(row.acceptance_length or 0, 6)) == (0.3, 0.341, 3.39)
    assert found.notes == (
        "states a median of 29.9 tok/s; its runs have 27.1",
        "any_nan is set (a mere substring of the answer can set it)",
        "its coherence probes failed",
        "answers that ended otherwise than by the token limit: stop",
    )
    assert found.source_sha256 == hashlib.sha256((DATA / "bench_decode.json").read_bytes()).hexdigest()


def test_a_real_file_of_llama_benchy() -> None:
    found = importers.imported(DATA / "llama-benchy-0.4.0.json")
    (row,) = found.rows
    assert (found.tool, found.model, row.test, row.lanes, row.depth_tokens, row.runs) == (
        "llama-benchy",
        "scripted",
        "pp64 tg128",
        2,
        None,
        4,
    )
    assert (round(row.decode_tok_s or 0, 2), round(row.total_tok_s or 0, 2), round(row.prefill_tok_s or 0, 1)) == (42.62, 85.18, 218.6)
    assert round(row.ttft_s or 0, 3) == 0.621


def test_a_real_file_of_vllm_bench() -> None:
    found = importers.imported(DATA / "vllm-bench-0.32.json")
    (row,) = found.rows
    assert (found.tool, found.model, found.created, row.lanes, row.runs) == ("vllm bench serve", "scripted", "2026-11-30 003758", 2, 4)
    # median TPOT 21.604 ms; its TTFT is that of the role chunk: 12 ms where the first token came after 200
    assert (round(row.decode_tok_s or 0, 2), round(row.total_tok_s or 0, 1), round(row.ttft_s or 0, 4)) == (46.29, 92.8, 0.0122)
    assert "role-only" in found.protocol


def test_what_we_export_reads_back(tmp_path: Path) -> None:
    """Runs at 40 and 50 tok/s after 0.2 s, 20 prompt tokens, 6 of 8 drafts accepted, 2.5 tokens a step."""
    for form in ("llama-benchy-json", "vllm"):
        (tmp_path / f"{form}.json").write_text(export.render([seal(sample())], form))
    (benchy,) = importers.imported(tmp_path / "llama-benchy-json.json").rows
    assert (benchy.decode_tok_s, benchy.decode_min_tok_s, benchy.prefill_tok_s, round(benchy.ttft_s or 0, 6)) == (45.0, 40.0, 100.0, 0.2)
    (vllm,) = importers.imported(tmp_path / "vllm.json").rows
    assert (round(vllm.ttft_s or 0, 6), vllm.acceptance_rate, vllm.acceptance_length) == (0.2, 0.75, 2.5)
    assert vllm.decode_tok_s == pytest.approx(1 / 0.0225)  # median of 25 and 20 ms per token


@pytest.mark.parametrize("name", ["bench_decode", "llama-benchy-0.4.0", "vllm-bench-0.32"])
def test_optional_fields_may_be_missing(name: str, tmp_path: Path) -> None:
    plain = json.loads((DATA / f"{name}.json").read_text())
    marks = next(each.marks for each in importers.IMPORTERS if each.marks <= plain.keys())
    bare = {key: plain[key] for key in marks}
    if "benchmarks" in bare:
        bare["benchmarks"] = [{"concurrency": 1}]
    if "runs" in bare:
        bare["runs"] = [{}]
    (tmp_path / "x.json").write_text(json.dumps(bare))
    (row,) = importers.imported(tmp_path / "x.json").rows
    assert row.ttft_s is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not readable as JSON"),
        ("[1]", "is no result file of bench_decode, llama-benchy, vllm bench serve"),
        ('{"phase": "prose"}', "is no result file of"),
        ('{"phase": "p", "runs": 3, "tok_s_median": 1}', "a result file of bench_decode, but malformed"),
        ('{"benchmarks": [3], "latency_mode": "none"}', "a result file of llama-benchy, but malformed"),
        ('{"benchmarks": [], "latency_mode": "none"}', "a result file of llama-benchy, but malformed"),
    ],
)
def test_files_that_are_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidMeasurement, match=said):
        importers.imported(tmp_path / "x.json")


def test_imported_shown_beside_ours_and_no_evidence(tmp_path: Path) -> None:
    done = invoke("receipt.import", *(str(path) for path in sorted(DATA.glob("*.json"))), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("FOREIGN") == 3
    write(seal(sample()), tmp_path / "ours.json")
    shown = invoke("table", str(tmp_path))
    ours, theirs = shown.stdout.split("\n\n", 1)
    assert len(ours.splitlines()) == 3
    assert theirs.startswith("Figures of other tools. FOREIGN, unsealed")
    assert len([line for line in theirs.splitlines() if line.startswith("| ")]) == 5
    checked = invoke("receipt.check", str(tmp_path))
    assert checked.returncode == 0
    assert checked.stdout.count("foreign: readable, unsealed, nothing to recompute") == 3
    cards = [each.card for each in registry.load(registry.documents(tmp_path)).of("foreign")]
    assert [card.valid for card in cards] == [False] * 3


def test_a_table_of_ours_never_holds_foreign_rows(tmp_path: Path) -> None:
    found = importers.imported(DATA / "bench_decode.json")
    (tmp_path / "f.json").write_text(model.text(found))
    assert registry.load([tmp_path / "f.json"], ["performance"]).found == []
    assert foreign.table([found]).rows[0][-1] == found.protocol


def test_the_document_is_strict(tmp_path: Path) -> None:
    plain = importers.imported(DATA / "bench_decode.json").model_dump(mode="json")
    (tmp_path / "x.json").write_text(json.dumps({**plain, "sealed": True}))
    with pytest.raises(InvalidMeasurement, match="field sealed"):
        model.read(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(json.dumps({**plain, "surprise": 1}))
    with pytest.raises(InvalidMeasurement, match="field surprise"):
        model.read(tmp_path / "x.json")


def test_import_goes_on_after_a_bad_file(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    done = invoke("receipt.import", str(tmp_path / "bad.json"), str(DATA / "bench_decode.json"), "--out", str(tmp_path / "out"))
    assert (done.returncode, "bad.json: is no result file" in done.stderr) == (3, True)
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert invoke("receipt.import").returncode == 2
