"""Receipts as a table. The only module that imports pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench import grid as grids
from bench.cells import Cell
from bench.check import check
from bench.errors import InvalidMeasurement
from bench.grid import Grid
from bench.receipt import Receipt, shown
from bench.spread import Spread

# A column in brackets is left out where no row has anything in it.
COLUMNS = {
    "date": "date",
    "kit": "kit",
    "model": "model",
    "phase": "phase",
    "arm": "arm",
    "lanes": "[lanes]",
    "depth": "[depth, tokens]",
    "runs": "runs",
    "decode": "decode tok/s, median (min-max)",
    "steady": "[group steady tok/s]",
    "wall": "[group wall tok/s]",
    "prefill": "[prefill tok/s]",
    "cached": "[cached share]",
    "during": "[rate kept during prefill]",
    "goodput": "[goodput req/s (within objectives)]",
    "ttft": "TTFT ms, median",
    "acceptance": "acceptance rate",
    "length": "acceptance length",
    "receipt": "receipt",
}


def load(paths: Sequence[Path]) -> tuple[list[Receipt], list[str]]:
    """The sound receipts among the files `paths`, and one line for each that was left out with the reason."""
    good, left_out = [], []
    for path in paths:
        try:
            receipt = check(path)
        except InvalidMeasurement as error:
            left_out.append(str(error))
            continue
        if receipt.valid:
            good.append(receipt)
        else:
            left_out.append(f"{shown(path)}: marked invalid: {'; '.join(receipt.invalid_because)}")
    return good, left_out


def frame(receipts: Sequence[Receipt]) -> pd.DataFrame:
    """One row per receipt, or per cell where it has some, with raw values: seconds, tokens per second; NaN where unknown."""
    return pd.DataFrame([row for receipt in receipts for row in _rows(receipt)])


def _rows(receipt: Receipt) -> list[dict[str, Any]]:
    whole = _row(receipt)
    return [{**whole, **_cell(receipt, cell)} for cell in receipt.summary.cells] if receipt.summary.cells else [whole]


def _row(receipt: Receipt) -> dict[str, Any]:
    summary, acceptance, protocol = receipt.summary, receipt.summary.acceptance, receipt.protocol
    group, goodput = summary.group, summary.goodput
    return {
        "created_utc": receipt.created_utc,
        "kit": receipt.system.kit,
        "model": receipt.model,
        "phase": protocol.phase,
        "arm": receipt.arm,
        "lanes": protocol.concurrency,
        "depth_tokens": protocol.depth_tokens,
        "runs": summary.runs,
        **_spread("decode", summary.decode_tok_s),
        "steady_tok_s": _of(group.steady_tok_s, "median") if group else None,
        "wall_tok_s": _of(group.wall_tok_s, "median") if group else None,
        "prefill_tok_s": _of(summary.prefill_tok_s, "median"),
        "cached_share": summary.cached_share,
        "during_share": None,
        "goodput_req_s": _of(goodput.goodput_req_s, "median") if goodput else None,
        "attainment": _of(goodput.attainment, "median") if goodput else None,
        "ttft_s": _of(summary.ttft_s, "median"),
        "acceptance_rate": acceptance.acceptance_rate if acceptance else None,
        "acceptance_length": acceptance.acceptance_length if acceptance else None,
        "receipt": receipt.id,
        "seal": receipt.seal,
    }


def _cell(receipt: Receipt, cell: Cell) -> dict[str, Any]:
    """What a cell has of its own. Acceptance is known of all requests together only."""
    label = f" ({cell.label})" if cell.label and receipt.protocol.phase != "mixed" else ""
    mixed = receipt.summary.mixed if cell.asked == "incumbent" else None
    return {
        "phase": f"{receipt.protocol.phase}: {cell.asked}{label}",
        "runs": cell.requests,
        **_spread("decode", cell.decode_tok_s),
        "prefill_tok_s": _of(cell.prefill_tok_s, "median"),
        "cached_share": cell.cached_share,
        "during_share": _of(mixed.during_share, "median") if mixed else None,
        "ttft_s": _of(cell.ttft_s, "median"),
        "acceptance_rate": None,
        "acceptance_length": None,
    }


def _spread(name: str, value: Spread | None) -> dict[str, float | None]:
    ends = {f"{name}_{end}_tok_s": _of(value, end) for end in ("min", "max")}
    return {f"{name}_tok_s": _of(value, "median"), **ends}


def _of(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else float(getattr(spread, name))


def grid(receipts: Sequence[Receipt]) -> Grid:
    """The performance table, sorted by kit, phase, arm, lanes, depth and time. Columns in brackets that are empty are left out."""
    if not receipts:
        return Grid(tuple(title for title in COLUMNS.values() if not title.startswith("[")), ())
    data = frame(receipts).sort_values(["kit", "phase", "arm", "lanes", "depth_tokens", "created_utc"], kind="stable")
    rows = [_cells(row) for row in data.to_dict("records")]
    used = [name for name, title in COLUMNS.items() if not title.startswith("[") or any(row[name] != "-" for row in rows)]
    return Grid(tuple(COLUMNS[name].strip("[]") for name in used), tuple(tuple(row[name] for name in used) for row in rows))


def markdown(receipts: Sequence[Receipt]) -> str:
    """The performance table as markdown, or what to do where there is no receipt."""
    return grids.markdown(grid(receipts)) if receipts else "No valid receipt yet; `invoke bench` writes one."


def _text(value: Any, form: str = "{}", scale: float = 1) -> str:
    return "-" if pd.isna(value) else form.format(value * scale if scale != 1 else value)


def _cells(row: dict[Any, Any]) -> dict[str, str]:
    """The row as text; columns that say nothing of this phase are "-"."""
    decode, goodput = _text(row["decode_tok_s"], "{:.1f}"), _text(row["goodput_req_s"], "{:.2f}")
    if decode != "-":
        decode += f" ({row['decode_min_tok_s']:.1f}-{row['decode_max_tok_s']:.1f})"
    if goodput != "-":
        goodput += f" ({row['attainment']:.0%})"
    deep = not pd.isna(row["depth_tokens"])
    return {
        "date": str(row["created_utc"])[:10],
        "kit": _text(row["kit"]),
        "model": str(row["model"]),
        "phase": _text(row["phase"]),
        "arm": str(row["arm"]),
        "lanes": _text(row["lanes"]) if row["lanes"] > 1 else "-",
        "depth": _text(row["depth_tokens"], "{:.0f}"),
        "runs": _text(row["runs"]),
        "decode": decode,
        "steady": _text(row["steady_tok_s"], "{:.1f}"),
        "wall": _text(row["wall_tok_s"], "{:.1f}"),
        "prefill": _text(row["prefill_tok_s"], "{:.0f}") if deep else "-",
        "cached": _text(row["cached_share"], "{:.0%}") if deep else "-",
        "during": _text(row["during_share"], "{:.0%}"),
        "goodput": goodput,
        "ttft": _text(row["ttft_s"], "{:.0f}", 1000),
        "acceptance": _text(row["acceptance_rate"], "{:.3f}"),
        "length": _text(row["acceptance_length"], "{:.2f}"),
        "receipt": _text(row["receipt"]),
    }
