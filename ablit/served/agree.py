"""Does a served sweep measure what the in-process lab measures? In the lab environment, for a model that both can run:

    python -m cli.lab_env ablit.served.agree FOLDER MODEL DIRECTION OUT.json

FOLDER: of the served sweep, with its work/ (the stock capture). MODEL: the folder that the kit served. DIRECTION: the file that was given
to the sweep. Every point is edited here by the same formula, captured over the same windows and reduced to the same top-k form.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablit import directions, edit, model, pareto
from ablit.edit import Vectors
from ablit.model import Loaded
from ablit.provenance import tool
from ablit.receipt import Receipt
from ablit.served import direction as files
from ablit.served import panel
from bench.errors import BadRequest, BenchError
from bench.kld import capture, distance, local, windows
from bench.kld.capture import Capture
from bench.kld.summary import scores
from bench.receipt import seal_of
from bench.sealed import write

MEASURE = "spark-lab/ablit-served-agree/v1"


@dataclass(frozen=True)
class Lab:
    """The model here, and how the windows are cut; `fields`: of a capture's description."""

    loaded: Loaded
    cut: tuple[windows.Window, ...]
    fields: dict[str, Any]

    @classmethod
    def of(cls, loaded: Loaded, per_stratum: int) -> Lab:
        sealed = windows.load()
        cut = local.cut(sealed, loaded.tokenizer, per_stratum)
        fields = {"model": loaded.facts.name, "weights_sha256": None, "tokenizer_sha256": None, **capture.panel_fields(sealed, cut)}
        return cls(loaded, cut, fields)

    def captured(self, name: str) -> Capture:
        """The model as it is now, over the whole vocabulary."""
        states = local.final_states(self.loaded.model, self.cut, lambda line: None)
        return local.captured(self.loaded.model, states, {**self.fields, "edit": name})


def compare(folder: Path, loaded: Loaded, direction: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures of both ways, point by point. Raises BadRequest when there is nothing to compare."""
    found, _ = pareto.load(sorted(folder.glob("*.json")))
    points = [receipt for receipt in found if receipt.served and receipt.control != "twin"]
    stock_file = folder / "work" / f"{points[0].served.stock.boot}.npz" if points and points[0].served else None
    if stock_file is None or not stock_file.is_file():
        raise BadRequest(f"{folder} holds no served points, or not the stock capture of them\ntry: the --out of a finished served sweep")
    over_http = capture.read(stock_file)
    lab = Lab.of(loaded, _per_stratum(points[0]))
    say("stock model in this process")
    stock = lab.captured("stock")
    reduced = capture.as_top_k(stock, over_http.meta.k or 1)
    distance.refuse_unlike(reduced, over_http)
    engines = scores(distance.positions(reduced, over_http))
    rows = [_row(lab, stock, reduced, receipt, _vectors(receipt, direction, loaded), say) for receipt in points]
    floor = points[0].served.floor.mean if points[0].served else None
    return {
        "k": over_http.meta.k,
        "positions": sum(cut.positions for cut in over_http.meta.windows),
        "floor_http_twice": floor,
        "stock_in_process_against_http": {"mean": engines.mean, "max": engines.max, "top1_agreement": engines.top1_agreement},
        "points": rows,
    }


def _per_stratum(receipt: Receipt) -> int:
    names = [window.name.rpartition("-")[0] for window in receipt.panel.windows]
    return max(names.count(name) for name in set(names))


def _vectors(receipt: Receipt, direction: Path, loaded: Loaded) -> Vectors:
    """The direction of the point as the ranks loaded it: the file itself, or the control that was drawn beside it."""
    name = receipt.spec.direction
    real = files.read(direction)
    chosen = files.random_like(real, int(name.removeprefix("random-"))) if receipt.control == "random" else real
    if chosen.sha256 != receipt.direction.get("sha256"):
        raise BadRequest(f"receipt {receipt.id} is of another direction than {direction}\ntry: the file that the sweep was given")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{receipt.direction.get('name', 'direction')}.safetensors"
        path.write_bytes(chosen.content)
        return directions.open_file(path, loaded)


def _row(lab: Lab, stock: Capture, reduced: Capture, receipt: Receipt, vectors: Vectors, say: Callable[[str], None]) -> dict[str, Any]:
    say(f"point {receipt.id}: {receipt.direction.get('name')} alpha {receipt.spec.alpha:g}, edited in this process")
    with edit.edited(lab.loaded.model, receipt.spec, vectors):
        edited = lab.captured(receipt.id)
    here = panel.facts(reduced, capture.as_top_k(edited, reduced.meta.k or 1))
    pairs = list(zip(here.windows, receipt.panel.windows, strict=True))
    positions = sum(window.positions for window in here.windows)
    kld = sum(window.kld for window in here.windows) / positions
    return {
        "receipt": receipt.id,
        "direction": receipt.direction.get("name"),
        "layers": list(receipt.spec.layers),
        "alpha": receipt.spec.alpha,
        "kld_http": receipt.summary.kld,
        "kld_in_process": kld,
        "difference": receipt.summary.kld - kld,
        "largest_window_difference": max(abs(a.kld - b.kld) / a.positions for a, b in pairs),
        "agree_http": sum(window.agree for window in receipt.panel.windows),
        "agree_in_process": sum(window.agree for window in here.windows),
        "kld_in_process_full_vocabulary": scores(distance.positions(stock, edited)).mean,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> int:
    if len(words) != 4:
        _say("error: four words are needed: FOLDER MODEL DIRECTION OUT.json")
        return BadRequest.exit_code
    folder, where, direction, out = map(Path, words)
    try:
        found = compare(folder, model.load(where, "float32", _say), direction, _say)
    except BenchError as error:
        _say(f"error: {error}")
        return error.exit_code
    command = f"python -m cli.lab_env ablit.served.agree {folder.name} {where.name} {direction.name} {out.name}"
    document = {"measure": MEASURE, "command": command, "tool": tool(), **found}
    write({**document, "seal": seal_of(document)}, out)
    for row in found["points"]:
        _say(f"{row['direction']} alpha {row['alpha']:g}: over HTTP {row['kld_http']:.7f}, in process {row['kld_in_process']:.7f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
