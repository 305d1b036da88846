"""A foreign document as the registry sees it: never valid evidence, always with its protocol beside it."""

from __future__ import annotations

from collections.abc import Sequence

from bench import grid
from bench.foreign.model import Foreign, Row
from bench.grid import Grid
from bench.kinds.registry import Card

MARK = "FOREIGN, unsealed: measured by another tool with another protocol; not comparable with the receipts"


def card(found: Foreign) -> Card:
    return Card("foreign", found.source_sha256[:12], None, found.created, found.model, None)


def table(documents: Sequence[Foreign]) -> Grid:
    """One row for each figure set, the protocol in the last column."""
    head = (
        "tool", "date", "model", "test", "lanes", "depth, tokens", "runs", "decode tok/s", "total tok/s", "prefill tok/s", "TTFT ms",
        "acceptance rate", "acceptance length", "protocol (FOREIGN, unsealed)",
    )  # fmt: skip
    return Grid(head, tuple(_row(found, row) for found in documents for row in found.rows), note=MARK)


def _row(found: Foreign, row: Row) -> tuple[str, ...]:
    decode = _text(row.decode_tok_s, ".1f")
    if row.decode_min_tok_s is not None and row.decode_max_tok_s is not None:
        decode += f" ({row.decode_min_tok_s:.1f}-{row.decode_max_tok_s:.1f})"
    figures = (_text(row.total_tok_s, ".1f"), _text(row.prefill_tok_s, ".0f"), _text(row.ttft_s, ".0f", 1000))
    drafts = (_text(row.acceptance_rate, ".3f"), _text(row.acceptance_length, ".2f"))
    shape = (_text(row.lanes), _text(row.depth_tokens), _text(row.runs))
    date = (found.created or "-")[:10]
    return (found.tool, date, found.model or "-", row.test, *shape, decode, *figures, *drafts, found.protocol)


def _text(value: float | None, form: str = "", scale: float = 1) -> str:
    return "-" if value is None else format(value * scale if scale != 1 else value, form)


def block(documents: Sequence[Foreign]) -> list[str]:
    notes = [f"- {found.source_file}: {note}" for found in documents for note in found.notes]
    return [f"**{MARK}.**", "", grid.markdown(table(documents)), *([""] if notes else []), *notes]
