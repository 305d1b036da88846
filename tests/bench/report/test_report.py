"""The page: what it holds, what is left out, and how it behaves in a real browser."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.compare import build as comparing
from bench.compare.verdict import Rules
from bench.foreign import importers, model
from bench.receipt import seal, write
from bench.report import build
from bench.sealed import write as write_sealed
from tests.bench.compare.support import ABBA, receipt, tagged, written
from tests.bench.report import chrome
from tests.bench.rounds_sample import grouped
from tests.bench.samples import run, sample

ROOT = Path(__file__).parents[3]
PICTURES = os.environ.get("REPORT_PICTURES")
LONG = "an-organisation/" + "a-very-long-name-of-a-model-" * 6 + "4bpw"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Receipts of two kits, a phase with one run, a very long model name, lanes, a comparison, a foreign file, and three broken files."""
    folder = tmp_path_factory.mktemp("results")
    left = {"A": [40, 40.5, 41, 41.5], "B": [50, 50.5, 51, 51.5]}
    arms = {"A": "stock", "B": "edited"}
    made = [tagged(f"sha256:{'0' * 64}", i, receipt(arms[c], f"boot{i}", i, [left[c].pop(0)] * 3)) for i, c in enumerate(ABBA)]
    written(folder / "campaigns" / "one" / "receipts", made)
    found = comparing.compare(
        comparing.Question([r for r in made if r.arm == "stock"], [r for r in made if r.arm == "edited"], Rules(("prose",), 0.02))
    )
    write_sealed(comparing.seal(found).model_dump(mode="json"), folder / "comparisons" / "one.json")
    alone = folder / "receipts"
    write(seal(sample(arm="<b>bold</b>")), alone / "a.json")
    write(seal(grouped()), alone / "b.json")
    write(seal(sample(run(0, 33.0), kit="spark2").model_copy(update={"model": LONG})), alone / "single-run.json")
    write(seal(sample(run(0), run(1, error="broken off"))), alone / "marked.json")
    (alone / "broken.json").write_text("{")
    write(seal(sample(arm="x")), alone / "edited.json")
    (alone / "edited.json").write_text((alone / "edited.json").read_text().replace('"arm": "x"', '"arm": "y"'))
    (folder / "foreign").mkdir()
    source = ROOT / "tests" / "data" / "foreign" / "bench_decode.json"
    (folder / "foreign" / "f.json").write_text(model.text(importers.imported(source)))
    (folder / "other.json").write_text('{"command": "something else"}')
    return folder


@pytest.fixture(scope="module")
def page(results: Path) -> Path:
    return build.write(build.pile_of(results), results / "report")


def test_everything_is_there_once(page: Path, results: Path) -> None:
    text = page.read_text()
    assert "<h3>Kit local</h3>" in text
    assert "<h3>Kit spark2</h3>" in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "<b>bold" not in text
    assert "Left out: 3" in text
    assert all(name in text for name in ("broken.json: not readable", "edited.json: field seal", "marked.json: marked invalid"))
    assert "FASTER in prose" in text
    assert "PUBLISHED" in text
    assert "DIFFERS" in text
    assert "FOREIGN, unsealed" in text
    assert LONG in text
    assert "single-run" in text


def test_links_lead_to_the_receipts(page: Path, results: Path) -> None:
    links = re.findall(r'<td><a href="([^"]+)">', page.read_text())
    assert len(links) == 13  # 8 boots, the comparison, three alone, the foreign one
    assert all((page.parent / link).resolve().is_file() for link in links)


def test_the_same_receipts_give_the_same_page(page: Path, results: Path) -> None:
    assert build.text(build.pile_of(results), page.parent) == page.read_text()


def test_kits_are_never_drawn_together(results: Path) -> None:
    """The table under each kit's heading holds that kit only."""
    text = build.text(build.pile_of(results), results / "report")
    part = text.split("<h3>Kit local</h3>")[1].split("<h3>")[0].split("</table>")[0]
    assert "<td>spark2</td>" not in part
    assert "<td>local</td>" in part


def test_empty_results(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "invoke", "report", "--results", str(tmp_path), "--out", str(tmp_path / "report")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report" / "index.html").read_text()
    for said in ("No valid performance receipt yet", "No comparison receipt yet", "No sound receipt at all", "No ablation receipt yet"):
        assert said in text
    argv[-3] = str(tmp_path / "absent")
    assert subprocess.run(argv, cwd=ROOT, capture_output=True).returncode == 2


def test_the_task_says_what_it_left_out(results: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "invoke", "report", "--results", str(results), "--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3
    assert "13 receipts, 3 left out" in done.stdout
    assert done.stderr.count("left out: ") == 3


def test_it_renders_from_the_committed_receipts(tmp_path: Path) -> None:
    pile = build.pile_of(ROOT / "results")
    assert pile.left_out == []
    assert build.write(pile, tmp_path).stat().st_size > 100_000


@pytest.fixture(scope="module")
def browser() -> str:
    """Its program. Where there is none the tests are skipped, except in CI, which must have it."""
    found = chrome.program()
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(chrome.HOW)
        pytest.skip(chrome.HOW)
    return found


_LOOK = """(() => {
  const sight = (e) => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
  const line = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const lum = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => line(v / 255)); return .2126 * r + .7152 * g + .0722 * b; };
  const paper = lum(getComputedStyle(document.body).backgroundColor);
  const ratio = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const contrast = (e) => ratio(lum(getComputedStyle(e).color), paper);
  return {
    images: [...document.images].map(i => ({
      done: i.complete && i.naturalWidth > 0, seen: sight(i), alt: i.alt, dark: i.currentSrc !== i.src,
      wide: i.getBoundingClientRect().width, natural: i.naturalWidth,
    })),
    overflow: document.documentElement.scrollWidth - window.innerWidth,
    font: parseFloat(getComputedStyle(document.body).fontSize),
    cell: parseFloat(getComputedStyle(document.querySelector('td')).fontSize),
    contrast: Math.min(...[...document.querySelectorAll('p, td, a, h2, figcaption, .warn, .note')].map(contrast)),
    headings: [...document.querySelectorAll('h2')].map(h => h.textContent),
    unnamed: [...document.querySelectorAll('[tabindex="0"]')].filter(e => !e.getAttribute('aria-label')).length,
  };
})()"""


VIEWS = [(390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")]
View = tuple[dict[str, Any], list[str], list[str]]


async def _looked(program: str, page: Path) -> dict[tuple[int, str], View]:
    """What every view shows, what the browser said meanwhile, and what it asked for."""
    seen = {}
    async with chrome.tab(program) as tab:
        for width, scheme in VIEWS:
            tab.said, tab.asked = [], []
            await tab.open(page.as_uri(), width, scheme)
            await tab.js("Promise.all([...document.images].map(i => i.decode()))")
            seen[width, scheme] = (await tab.js(_LOOK), tab.said, tab.asked)
            if PICTURES:
                await tab.picture(Path(PICTURES) / f"report-{width}-{scheme}.png")
    return seen


@pytest.fixture(scope="module")
def views(browser: str, page: Path) -> dict[tuple[int, str], View]:
    return asyncio.run(_looked(browser, page))


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_in_a_browser(views: dict[tuple[int, str], View], page: Path, width: int, scheme: str) -> None:
    found, said, asked = views[width, scheme]
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    assert len(found["images"]) == 12  # four for each kit, change and boots, two of KLD
    for image in found["images"]:
        assert (image["done"], image["seen"], bool(image["alt"])) == (True, True, True)
        assert image["wide"] >= 0.75 * image["natural"]  # letters of 10 points (13.3 pixels) stay 10 pixels or more
        assert image["dark"] == (scheme == "dark")
    assert found["overflow"] <= 0  # wide tables scroll by themselves, the page does not
    assert (found["font"], found["cell"]) == (16, 14)
    assert found["contrast"] >= 4.5
    assert found["headings"][0] == "Verdicts"
    assert found["unnamed"] == 0


_AT = "(() => { const e = document.activeElement; return [e.tagName, e.getAttribute('href') || e.getAttribute('aria-label') || ''," \
      " parseFloat(getComputedStyle(e).outlineWidth)]; })()"  # fmt: skip


async def _walked(program: str, page: Path) -> tuple[list[Any], list[Any], float]:
    """Where Tab leads in order; where Enter on the first stop leads; how far the arrow key moves a wide table."""
    async with chrome.tab(program) as tab:
        await tab.open(page.as_uri(), 390, "light")
        stops = []
        for _ in range(120):
            await tab.key("Tab", 9)
            stops.append(await tab.js(_AT))
            if stops[-1][0] == "BODY":
                break
        await tab.open(page.as_uri(), 390, "light")
        await tab.key("Tab", 9)
        await tab.enter()
        reached = await tab.js("[location.hash, document.activeElement.id]")
        await tab.js("document.querySelector('#performance .scroll').focus()")
        for _ in range(5):
            await tab.key("ArrowRight", 39)
        await asyncio.sleep(0.5)
        return stops, reached, float(await tab.js("document.querySelector('#performance .scroll').scrollLeft"))


def test_by_keyboard(browser: str, page: Path) -> None:
    stops, reached, moved = asyncio.run(_walked(browser, page))
    names = [name for _, name, _ in stops if name]
    assert names[0] == "#content"
    assert names[1] == "Overview"
    anchors = ["#verdicts", "#performance", "#published", "#foreign", "#kld", "#ablation", "#receipts"]
    assert names[2:9] == anchors
    regions = re.findall(r'role="region" tabindex="0" aria-label="([^"]+)"', page.read_text())
    links = re.findall(r'<td><a href="([^"]+)">', page.read_text())
    assert names[9:] == [*regions[1:], *links]
    assert all(outline >= 2 for tag, _, outline in stops if tag != "BODY")
    assert reached == ["#content", "content"]
    assert moved > 0
