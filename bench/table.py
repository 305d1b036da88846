"""Receipts as a table. The only module that imports pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.check import check
from bench.errors import InvalidMeasurement
from bench.receipt import Receipt, shown
from bench.summarize import Spread

COLUMNS = {
    "date": "date",
    "kit": "kit",
    "model": "model",
    "phase": "phase",
    "arm": "arm",
    "runs": "runs",
    "decode": "decode tok/s, median (min-max)",
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
    """One row per receipt with raw values: seconds, tokens per second; NaN where unknown."""
    return pd.DataFrame([_row(receipt) for receipt in receipts])


def _row(receipt: Receipt) -> dict[str, Any]:
    summary, acceptance = receipt.summary, receipt.summary.acceptance
    return {
        "created_utc": receipt.created_utc,
        "kit": receipt.system.kit,
        "model": receipt.model,
        "phase": receipt.protocol.phase,
        "arm": receipt.arm,
        "runs": summary.runs,
        "decode_tok_s": _of(summary.decode_tok_s, "median"),
        "decode_min_tok_s": _of(summary.decode_tok_s, "min"),
        "decode_max_tok_s": _of(summary.decode_tok_s, "max"),
        "ttft_s": _of(summary.ttft_s, "median"),
        "acceptance_rate": acceptance.acceptance_rate if acceptance else None,
        "acceptance_length": acceptance.acceptance_length if acceptance else None,
        "receipt": receipt.id,
        "seal": receipt.seal,
    }


def _of(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else float(getattr(spread, name))


def markdown(receipts: Sequence[Receipt]) -> str:
    """The performance table, sorted by kit, phase, arm and time."""
    if not receipts:
        return "No valid receipt yet; `invoke bench` writes one."
    data = frame(receipts).sort_values(["kit", "phase", "arm", "created_utc"])
    rows = [_cells(row) for row in data.to_dict("records")]
    head = list(COLUMNS.values())
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _cells(row: dict[Any, Any]) -> list[str]:
    def text(value: Any, form: str = "{}", scale: float = 1) -> str:
        return "-" if pd.isna(value) else form.format(value * scale if scale != 1 else value)

    decode = text(row["decode_tok_s"], "{:.1f}")
    if decode != "-":
        decode += f" ({row['decode_min_tok_s']:.1f}-{row['decode_max_tok_s']:.1f})"
    cells = {
        "date": str(row["created_utc"])[:10],
        "kit": text(row["kit"]),
        "model": _escaped(row["model"]),
        "phase": text(row["phase"]),
        "arm": _escaped(row["arm"]),
        "runs": text(row["runs"]),
        "decode": decode,
        "ttft": text(row["ttft_s"], "{:.0f}", 1000),
        "acceptance": text(row["acceptance_rate"], "{:.3f}"),
        "length": text(row["acceptance_length"], "{:.2f}"),
        "receipt": text(row["receipt"]),
    }
    return [cells[name] for name in COLUMNS]


def _escaped(text: Any) -> str:
    return str(text).replace("|", "\\|")
