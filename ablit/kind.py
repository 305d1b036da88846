"""An ablation receipt as the registry of kinds (bench/kinds) sees it."""

from __future__ import annotations

from collections.abc import Sequence

from ablit import pareto, table
from ablit.receipt import Receipt
from ablit.spec import shown
from bench import grid as grids
from bench.grid import Grid
from bench.kinds.registry import Card
from bench.quality import AblationPoint

NOTE = (
    "KLD: KL(unedited || edited), nats per position of the sealed windows, full vocabulary, 95 % window bootstrap. First-token KLD is "
    "another quantity: the first answer token of the chat prompts. 1 - TV: what sampled speculation with the unedited model as drafter "
    "would accept. Rates: share of held-out prompts, Wilson 95 %; p: exact McNemar test against the unedited answers. Unsound: empty, "
    "repeating or degenerate answers. A front is drawn inside one model, panel and prompt set only."
)

SERVED = (
    "With a kit named: measured over HTTP, one start of the kit a point. KLD is then over the most likely tokens and the rest, a lower "
    "bound (>=), and 1 - TV an upper one (<=); floor: KLD of the unedited model's second start. Acceptance length: 1 + accepted / drafts "
    "by the server's counters, stock > edited."
)


def card(receipt: Receipt) -> Card:
    kit = receipt.served.kit if receipt.served else None
    return Card("ablation", receipt.id, receipt.seal, receipt.created_utc, receipt.model.name, kit, supports=False)


def groups(receipts: Sequence[Receipt]) -> list[list[Receipt]]:
    """Receipts that belong to one front, in order of first appearance."""
    found: dict[object, list[Receipt]] = {}
    for receipt in receipts:
        found.setdefault(pareto.basis(receipt), []).append(receipt)
    return list(found.values())


def grid(receipts: Sequence[Receipt]) -> Grid:
    """One row a point, each group with its own front."""
    rows = [row for group in groups(receipts) for row in pareto.rows(group)]
    names = table.columns(rows)
    served = any(receipt.served for receipt in receipts)
    return Grid(names, tuple(tuple(table.cells(row, served)) for row in rows), note=f"{NOTE} {SERVED}" if served else NOTE)


def block(receipts: Sequence[Receipt]) -> list[str]:
    made = grid(receipts)
    return [grids.markdown(made), "", made.note, ""]


def points(receipts: Sequence[Receipt]) -> list[AblationPoint]:
    """For the figures: the effect is how much of the behaviour went away, the unedited rate less the edited one; its interval is that of
    the edited rate."""
    return [_point(receipt) for receipt in receipts if receipt.control != "twin"]


def _point(receipt: Receipt) -> AblationPoint:
    summary, side = receipt.summary, receipt.summary.sides[0]
    low, high = summary.kld_interval or (None, None)
    return AblationPoint(
        layers=shown(receipt.spec.layers),
        alpha=receipt.spec.alpha,
        effect=side.stock_rate - side.rate,
        kld=summary.kld,
        low=side.stock_rate - side.interval[1],
        high=side.stock_rate - side.interval[0],
        kld_low=low,
        kld_high=high,
        prompts=len(receipt.behaviour[0].edited),
        control=receipt.control is not None,
        source=receipt.id,
        direction=table.label(receipt),
        edit=table.edit(receipt.spec),
    )
