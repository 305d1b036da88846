"""Receipts in the forms that other tools write, so that scripts which read those go on working. Unknown is empty or null, never 0."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench.export import benchy, rows, vllm
from bench.receipt import Receipt

FORMATS = ("llama-benchy", "llama-benchy-json", "csv", "vllm")


def render(receipts: Sequence[Receipt], form: str) -> str:
    """The receipts as text in one of FORMATS. vllm: an object for one receipt, else a list of them."""
    if form == "llama-benchy":
        return benchy.markdown(receipts)
    if form == "llama-benchy-json":
        return json.dumps(benchy.report(receipts), indent=2)
    if form == "csv":
        return rows.csv_text(receipts)
    results = [vllm.result(receipt) for receipt in receipts]
    return json.dumps(results[0] if len(results) == 1 else results, indent=2)
