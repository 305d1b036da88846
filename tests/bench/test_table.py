"""Tables and figures from receipts only."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from bench import plot, table
from bench.derive import derived
from bench.errors import InvalidMeasurement
from bench.receipt import Receipt, seal, write
from tests.bench.rounds_sample import grouped
from tests.bench.samples import run, sample

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(seal(sample(arm="a|b")), tmp_path / "a.json")
    write(seal(sample(run(0, 25.0), run(1, 31.25), run(2, 40.0), phase="code", kit=None)), tmp_path / "b.json")
    write(seal(sample(run(0), run(1, error="broken off"))), tmp_path / "invalid-one.json")
    (tmp_path / "broken.json").write_text("{")
    return tmp_path


def invoke(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True)


def test_markdown_golden(folder: Path) -> None:
    done = invoke("table", str(folder))
    assert done.returncode == 0
    # two runs at 40 and 50 tok/s: median 45; 6 of 8 draft tokens accepted in 4 drafts, twice: 0.75 and 1 + 12/8
    columns = (
        "date | kit | model | phase | arm | runs | decode tok/s, median (min-max) | TTFT ms, median "
        "| acceptance rate | acceptance length | receipt"
    )
    assert done.stdout.splitlines() == [
        f"| {columns} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 2026-11-29 | local | test\\|model | prose | a\\|b | 2 | 45.0 (40.0-50.0) | 200 | 0.750 | 2.50 | 0123456789ab |",
        "| 2026-11-29 | - | test\\|model | code | default | 3 | 31.2 (25.0-40.0) | 200 | 0.750 | 2.50 | 0123456789ab |",
    ]
    assert "broken.json: not readable as JSON" in done.stderr
    assert "invalid-one.json: marked invalid: run 1: broken off" in done.stderr


def test_json_has_raw_values(folder: Path) -> None:
    rows = json.loads(invoke("table", str(folder / "a.json"), "--json").stdout)
    assert [(row["decode_tok_s"], row["ttft_s"], row["acceptance_rate"]) for row in rows] == [(45.0, 0.2, 0.75)]


def test_no_receipt_at_all(tmp_path: Path) -> None:
    done = invoke("table", str(tmp_path))
    assert done.returncode == 2
    assert "no receipt in" in done.stderr
    assert table.markdown([]).startswith("No valid receipt yet")


def test_check_names_the_field_and_goes_on(folder: Path) -> None:
    text = (folder / "a.json").read_text()
    (folder / "a.json").write_text(text.replace('"arm": "a|b"', '"arm": "c"'))
    done = invoke("receipt.check", str(folder / "a.json"), str(folder / "b.json"), str(folder / "invalid-one.json"))
    assert done.returncode == 3
    assert "a.json: field seal" in done.stderr
    assert "b.json: sound, valid" in done.stdout
    assert "invalid-one.json: sound, marked invalid" in done.stdout


def sealed(folder: Path) -> list[Receipt]:
    return table.load([folder / "a.json", folder / "b.json"])[0]


def test_figures_are_written_and_the_same_receipts_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = plot.write(sealed(folder), tmp_path / "one")
    second = plot.write(sealed(folder), tmp_path / "two")
    assert [path.name for path in first[:4]] == ["decode.png", "decode.svg", "decode-dark.png", "decode-dark.svg"]
    assert len(first) == 16
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG")


def test_every_run_is_a_point_and_the_axes_are_named(folder: Path) -> None:
    figure = plot.decode_figure(sealed(folder))
    axes = figure.axes[0]
    dots = [each for each in axes.collections if isinstance(each, PathCollection)]
    points = sorted(np.round(np.concatenate([np.asarray(each.get_offsets())[:, 0] for each in dots]), 6).tolist())
    assert points == [25.0, 31.25, 40.0, 40.0, 50.0]
    assert axes.get_xlabel() == "decode throughput, tok/s"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["prose\n(local, a|b)\nn = 2", "code\n(server)\nn = 3"]


def test_acceptance_line_has_the_stated_positions(folder: Path) -> None:
    line = plot.acceptance_figure(sealed(folder)).axes[0].lines[0]
    # 4 drafts a run: position 1 accepted in all 4, position 2 in 2
    assert np.asarray(line.get_ydata()).tolist() == [1.0, 0.5]


def test_lanes_and_depth_have_columns_only_where_there_are_some() -> None:
    plain, lanes = seal(sample()), seal(grouped())
    deep = sample()
    deep = derived(deep.model_copy(update={"protocol": deep.protocol.model_copy(update={"phase": "prefill", "depth_tokens": 20})}))
    head, _, *rows = table.markdown([plain, lanes, seal(deep)]).splitlines()
    assert "| lanes | depth, tokens | runs |" in head
    assert "| group steady tok/s | group wall tok/s | prefill tok/s | cached share | TTFT ms, median |" in head
    assert "goodput" not in head
    # by kit, phase, arm, lanes: prefill at depth 20, prose alone, prose of two lanes
    assert "| prefill | default | - | 20 | 2 | 45.0 (40.0-50.0) | - | - | 100 | 0% | 200 |" in rows[0]
    assert "| prose | default | - | - | 2 | 45.0 (40.0-50.0) | - | - | - | - | 200 |" in rows[1]
    # two lanes: decode rates 1, 1, 0.75 and 0.75; steady 2 and 1.5; wall 1.6 twice; TTFT 1, 1.5, 1, 1 s
    assert "| prose | default | 2 | - | 4 | 0.9 (0.8-1.0) | 1.8 | 1.6 | - | - | 1000 |" in rows[2]


def test_columns_that_every_reader_expects_stay_also_when_empty() -> None:
    head = table.markdown([seal(grouped())]).splitlines()[0]  # nothing was drafted
    assert head.endswith("| TTFT ms, median | acceptance rate | acceptance length | receipt |")


def test_throughput_against_latency() -> None:
    axes = plot.latency_figure([seal(grouped()), seal(sample())]).axes[0]
    (line,) = axes.lines  # one kit, phase and arm
    # one lane: TTFT 0.2 s, 11 tokens in 0.45 and 0.4 s; two lanes: median over rounds of 1.25 and 1 s, 1.6 tok/s
    assert np.asarray(line.get_xdata()).tolist() == pytest.approx([0.2, 1.125])
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([(11 / 0.45 + 11 / 0.4) / 2, 1.6])
    assert [note.get_text() for note in axes.texts] == ["1", "2"]


def test_nothing_to_plot(tmp_path: Path) -> None:
    with pytest.raises(InvalidMeasurement, match="no valid receipt to plot"):
        plot.write([], tmp_path)


def test_readme_table_comes_from_the_committed_receipts() -> None:
    names = re.findall(r"^<!-- table: (.*) -->$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert names, "README.md has no generated table"
    receipts, left_out = table.load([ROOT / "results" / "receipts" / name for name in names[0].split()])
    assert not left_out
    assert table.markdown(receipts) in (ROOT / "README.md").read_text()
