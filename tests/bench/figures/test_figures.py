"""Figures against stored references (tests/data/figures), and what they must show whatever they look like.

Tolerance: root mean square difference of 2 of 255 over all pixels; a changed colour, marker or label is above it (see the last
test). To store new references, after looking at them: FIGURES=write python -m pytest tests/bench/figures
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images

from bench import plot, quality
from bench.compare import build
from bench.compare.model import Comparison
from bench.compare.verdict import Rules
from bench.derive import derived
from bench.errors import InvalidMeasurement
from bench.figures import comparison, performance, style
from bench.figures import quality as quality_figures
from bench.quality import AblationPoint, Basis, KldPoint
from bench.receipt import Receipt, seal
from tests.bench.compare.support import ABBA, receipt
from tests.bench.rounds_sample import grouped
from tests.bench.samples import run, sample

REFERENCES = Path(__file__).parents[2] / "data" / "figures"
TOLERANCE = 2.0
LONG = "an-organisation/" + "a-very-long-name-of-a-model-" * 6 + "4bpw"


def receipts() -> list[Receipt]:
    """Two runs, three runs of another model with a very long name, lanes, and a single run."""
    long = sample(run(0, 25.0), run(1, 31.25), run(2, 40.0), phase="code").model_copy(update={"model": LONG})
    return [seal(sample(arm="a|b")), seal(derived(long)), seal(grouped()), seal(sample(run(0, 60.0), phase="json", kit="spark2"))]


def compared(a: tuple[float, ...] = (40, 40.5, 41, 41.5), b: tuple[float, ...] = (50, 50.5, 51, 51.5), order: str = ABBA) -> Comparison:
    left = {"A": list(a), "B": list(b)}
    made = [receipt({"A": "stock", "B": "edited"}[c], f"boot{i}", i, [left[c][0] - 1, left[c].pop(0)]) for i, c in enumerate(order)]
    question = build.Question([r for r in made if r.arm == "stock"], [r for r in made if r.arm == "edited"], Rules(("prose",), 0.02))
    return build.compare(question)


KLD = [
    KldPoint("ours, 4 bpw", 0.02, "panel A", True, 0.018, 0.022, 0.001, 20480, 80e6),
    KldPoint("ours, 8 bpw", 0.004, "panel A", True, 0.003, 0.005, 0.001, 20480, 150e6),
    KldPoint("a published one with a rather long name", 0.03, "P7a", False, None, None, None, None, 176e6),
]
BASIS = Basis("a", "tiny", "in process", 100, "brief, 32 tokens", 2560, 5)
SERVED = Basis("b", "tiny", "on kit two (2 ranks)", 4, "brief, 4 tokens", 20_480, 40, top=20)
SWEEP = [
    AblationPoint(BASIS, layers, alpha, effect := 0.1 * row + 0.08 * alpha, kld := 0.004 * row + 0.012 * alpha, effect - 0.06,
                  effect + 0.06, 0.8 * kld, 1.2 * kld, direction="brief-15", front=alpha == 2)
    for row, layers in enumerate(("10-29", "15-29", "20-29")) for alpha in (0.5, 1.0, 2.0)
]  # fmt: skip
SWEEP += [AblationPoint(BASIS, "10-29", 1.0, 0.01, 0.011, -0.05, 0.07, control=True, direction="random-0")]
OVER_HTTP = [replace(point, basis=SERVED) for point in SWEEP]

FIGURES: dict[str, Callable[[], Figure]] = {
    "decode": lambda: performance.decode_figure(receipts()),
    "ttft": lambda: performance.ttft_figure(receipts()),
    "acceptance": lambda: performance.acceptance_figure(receipts()),
    "latency": lambda: performance.latency_figure(receipts()),
    "change": lambda: comparison.change_figure([compared(), compared((40, 41, 40), (40, 42, 39), "ABBABA")]),
    "boots": lambda: comparison.boots_figure(compared()),
    "kld": lambda: quality_figures.kld_figure(KLD),
    "size": lambda: quality_figures.size_figure(KLD),
    "sweep": lambda: quality_figures.sweep_figure(SWEEP),
    "pareto": lambda: quality_figures.pareto_figure(SWEEP),
}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """pyplot keeps every figure that nobody closes, and warns at the twentieth."""
    yield
    plt.close("all")


@pytest.mark.parametrize("theme", style.THEMES)
@pytest.mark.parametrize("name", FIGURES)
def test_as_stored(name: str, theme: str, tmp_path: Path) -> None:
    file = f"{name}-{theme}.png"
    made = style.written(FIGURES[name], tmp_path / file, style.THEMES[theme])
    if os.environ.get("FIGURES") == "write":
        REFERENCES.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, REFERENCES / file)
    expected = tmp_path / f"expected-{file}"
    shutil.copy(REFERENCES / file, expected)  # the comparison writes beside its files
    assert compare_images(str(expected), str(made), TOLERANCE) is None


@pytest.mark.parametrize("change", ["colour", "label"])
def test_the_tolerance_sees_a_small_change(change: str, tmp_path: Path) -> None:
    def other() -> Figure:
        figure = performance.decode_figure(receipts())
        if change == "label":
            figure.axes[0].set_xlabel("decode throughput, tok/min")
        else:
            figure.axes[0].collections[2].set_color(style.DARK.colours[3])
        return figure

    made = style.written(other, tmp_path / "made.png", style.LIGHT)
    plain = style.written(FIGURES["decode"], tmp_path / "plain.png", style.LIGHT)
    assert compare_images(str(plain), str(made), TOLERANCE) is not None


@pytest.mark.parametrize("name", FIGURES)
def test_axes_have_units_and_n_is_shown(name: str) -> None:
    with style.themed(style.LIGHT):
        figure = FIGURES[name]()
    axes = figure.axes[0]
    words = [axes.get_xlabel(), axes.get_ylabel(), *(label.get_text() for label in axes.get_yticklabels()), axes.get_title()]
    words += [figure.get_suptitle(), *(text.get_text() for legend in figure.legends for text in legend.get_texts())]
    text = " ".join(words)
    assert "n = " in text
    units = ("tok/s", "ms", "s (median)", "percent", "nats", "drafts", "alpha", "GB")
    assert any(unit in text for unit in units)


def test_figures_do_not_change_the_process() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    style.svg(FIGURES["decode"], style.DARK)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("draw", [performance.decode_figure, performance.ttft_figure, performance.acceptance_figure,
                                  performance.latency_figure, quality_figures.kld_figure, quality_figures.size_figure,
                                  quality_figures.sweep_figure, quality_figures.pareto_figure])  # fmt: skip
def test_nothing_to_draw_is_no_crash(draw: Callable[[list[object]], Figure]) -> None:
    assert style.svg(partial(draw, []), style.LIGHT).startswith(b"<?xml")


def test_missing_figures_leave_an_empty_row() -> None:
    """No tokens are stated: no rate, but the row and its n stay."""
    bare = sample()
    runs = [each.model_copy(update={"trace": each.trace.model_copy(update={"usage": None, "tokens": (None,) * 11})}) for each in bare.runs]
    unknown = seal(derived(bare.model_copy(update={"runs": tuple(runs)})))
    assert unknown.summary.decode_tok_s is None
    with style.themed(style.LIGHT):
        figure = performance.decode_figure([unknown])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["prose\n(local)\nn = 2"]
    assert np.asarray(figure.axes[0].collections[-1].get_offsets()).size == 0


def test_the_interval_is_that_of_the_receipt() -> None:
    with style.themed(style.LIGHT):
        figure = performance.decode_figure([seal(sample(run(0, 40.0), run(1, 50.0), run(2, 45.0)))])
    lines = [each for each in figure.axes[0].collections if isinstance(each, LineCollection)]
    ends = [np.asarray(segment)[:, 0].tolist() for line in lines for segment in line.get_segments()]
    assert ends == [pytest.approx([40.0, 50.0], abs=0.01), pytest.approx([45.0, 45.0], abs=0.01)]


def test_long_names_keep_both_ends() -> None:
    assert style.short("abcdefghij", 10) == "abcdefghij"
    assert style.short("abcdefghijk", 10) == "abcd…ghijk"
    assert all(len(line) <= 26 for name in performance.names(receipts()) for line in name.splitlines())


def test_published_kld_rows() -> None:
    rows = {row.label: row for row in quality.published() if row.protocol == "P7a"}
    exl3 = rows["EXL3 4 bpw (this checkpoint)"]
    assert (exl3.mean, exl3.positions, exl3.size_bytes, exl3.ours) == (0.024555, 51175, 176e9, False)
    suite = {row.label: row for row in quality.published() if row.protocol == "P7b"}
    official = suite["Official FP8 (same stack)"]
    assert (official.mean, official.low, official.high, official.positions) == (0.028104, 0.02721, 0.02898, 10_480_640)
    awq = suite["AWQ W4A16"]
    assert (awq.mean, awq.low, awq.high, awq.positions) == (0.077026, 0.069561, 0.085387, 221_076)


def words_of(figure: Figure) -> str:
    axes = figure.axes[0]
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return " ".join([figure.get_suptitle(), axes.get_xlabel(), axes.get_ylabel(), *legend]).replace("\n", " ")


def ringed(figure: Figure) -> list[tuple[float, float]]:
    rings = [each for each in figure.axes[0].collections if str(each.get_label()).startswith("on the front")]
    return [(float(x), float(y)) for ring in rings for x, y in np.asarray(ring.get_offsets())]


def test_points_of_two_bases_share_no_figure() -> None:
    """The same edit measured in process and over HTTP: another KLD, other prompts."""
    here = AblationPoint(BASIS, "10-29", 2.0, 0.41, 0.0369, direction="brief-15")
    there = AblationPoint(SERVED, "10-29", 2.0, 0.0, 0.0192, direction="brief-15")
    control = AblationPoint(SERVED, "10-29", 2.0, 0.0, 0.0044, direction="random-0", control=True)
    alike = replace(here, basis=replace(BASIS, key="other settings, told in the same words"))
    points = [here, there, control, alike]
    assert quality.by_basis(points) == [(BASIS, [here]), (SERVED, [there, control]), (alike.basis, [alike])]
    assert quality.by_direction(points) == [("brief-15", [here]), ("brief-15", [there]), ("brief-15", [alike])]
    with style.themed(style.LIGHT):
        for draw in (quality_figures.sweep_figure, quality_figures.pareto_figure):
            with pytest.raises(ValueError, match="3 bases in one figure"):
                draw(points)
            assert style.svg(partial(draw, [here]), style.LIGHT).startswith(b"<?xml")


def test_directions_and_kinds_of_edit_have_a_heat_map_each() -> None:
    a, b = AblationPoint(BASIS, "1", 1, 0.1, 0.01, direction="a"), AblationPoint(BASIS, "1", 1, 0.3, 0.02, direction="b")
    down, control = replace(a, edit="+down"), replace(a, control=True, direction="random-1")
    assert quality.by_direction([a, control, b, down]) == [("a", [a]), ("b", [b]), ("a +down", [down])]
    with pytest.raises(ValueError, match="2 directions in one figure"):
        quality_figures.sweep_figure([a, b])


def test_a_cell_of_two_edits_says_both() -> None:
    """Two kernels of the same layers and alpha: none of them hides the other."""
    a, b = (AblationPoint(BASIS, "1-9", 2, effect, 0.1, direction="a", edit="kernel") for effect in (0.25, 0.5))
    with style.themed(style.LIGHT):
        figure = quality_figures.sweep_figure([a, b])
    assert [text.get_text() for text in figure.axes[0].texts] == ["+0.25\n+0.50"]
    assert figure.axes[0].images[0].get_array().tolist() == [[0.375]]  # type: ignore[union-attr]


def test_what_the_figures_say() -> None:
    with style.themed(style.LIGHT):
        pareto, served, sweep = quality_figures.pareto_figure(SWEEP), quality_figures.pareto_figure(OVER_HTTP), FIGURES["sweep"]()
    basis = "tiny in process; 2,560 positions in 5 windows; n = 100 prompts (brief, 32 tokens)"
    assert f"{basis}. Lines: 95 % intervals (KLD's too narrow: fewer than 10 windows)" in words_of(pareto)
    assert "lower bound" not in words_of(pareto)
    assert f"brief-15, {basis}" in words_of(sweep)
    assert "tiny on kit two (2 ranks); 20,480 positions in 40 windows; n = 4 prompts (brief, 4 tokens)." in words_of(served)
    assert "top 20 and the rest: a lower bound" in words_of(served)
    assert "narrow" not in words_of(served)
    net = "stock rate less edited rate (net)"
    assert net in words_of(pareto)
    assert sweep.axes[1].get_ylabel().replace("\n", " ") == net


def test_rings_are_round_the_points_that_the_table_puts_on_the_front() -> None:
    """Not round those that are best by their means: the second is beaten in both, but not surely."""
    best = AblationPoint(BASIS, "1", 1, 0.4, 0.03, direction="a", front=True)
    beaten = AblationPoint(BASIS, "2", 1, 0.3, 0.05, direction="a", front=True)
    surely = AblationPoint(BASIS, "3", 1, 0.0, 0.01, direction="a", front=False)
    control = AblationPoint(BASIS, "1", 1, 0.9, 0.02, direction="random-0", control=True)
    with style.themed(style.LIGHT):
        figure = quality_figures.pareto_figure([best, beaten, surely, control])
    assert ringed(figure) == [(0.03, 0.4), (0.05, 0.3)]
    assert figure.axes[0].get_xscale() == "linear"


def test_a_wide_range_of_kld_has_a_logarithmic_scale() -> None:
    low, high = (AblationPoint(BASIS, "1", 1, 0.4, kld, direction="a") for kld in (0.001, 0.03))
    with style.themed(style.LIGHT):
        assert quality_figures.pareto_figure([low, high]).axes[0].get_xscale() == "log"
        assert quality_figures.pareto_figure([replace(low, kld=0.0), high]).axes[0].get_xscale() == "linear"


def test_layers_in_their_order() -> None:
    points = [AblationPoint(BASIS, layers, 1, 0.1, 0.1, direction="a") for layers in ("10-29", "2-9", "10-12,14")]
    with style.themed(style.LIGHT):
        ticks = quality_figures.sweep_figure(points).axes[0].get_yticklabels()
    assert [tick.get_text() for tick in ticks] == ["2-9", "10-12,14", "10-29"]


def test_all_files_of_ablation_points(tmp_path: Path) -> None:
    names = [path.name for path in plot.write_ablation([*SWEEP, *OVER_HTTP], tmp_path)]
    ends = (".png", ".svg", "-dark.png", "-dark.svg")
    assert names == [f"{name}{end}" for name in ("pareto", "pareto-2", "sweep", "sweep-2") for end in ends]
    with pytest.raises(InvalidMeasurement, match="no valid ablation receipt to plot"):
        plot.write_ablation([], tmp_path)


def test_all_files_of_a_receipt_folder(tmp_path: Path) -> None:
    names = [path.name for path in plot.write(receipts(), tmp_path)]
    assert names == [
        f"{name}{end}" for name in ("decode", "ttft", "acceptance", "latency") for end in (".png", ".svg", "-dark.png", "-dark.svg")
    ]
