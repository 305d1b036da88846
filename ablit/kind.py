"""An ablation receipt as the registry of kinds (bench/kinds) sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ablit import pareto, stats, table
from ablit.receipt import Receipt
from ablit.spec import shown
from bench import grid as grids
from bench.grid import Grid
from bench.kinds.registry import Card
from bench.quality import FEW_WINDOWS, AblationPoint, Basis

NOTE = (
    "KLD: KL(unedited || edited), nats per position of the sealed windows, full vocabulary, 95 % bootstrap over the windows; few "
    f"windows: fewer than {FEW_WINDOWS}, and such an interval is too narrow (it covers about 80 % with 5, 90 % with 10, 94 % with 40). "
    "First-token KLD is another quantity: the first answer token of the chat prompts. 1 - TV: what sampled speculation with the "
    "unedited model as drafter would accept. Rates: share of held-out prompts, Wilson 95 %; p: exact two-sided McNemar test against the "
    "unedited answers; net (a gate): more prompts lost the behaviour than gained it. Unsound: empty, repeating or degenerate answers. A "
    "front is drawn inside one model, panel and prompt set only."
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
    """For the figures: the effect is how much of the behaviour went away, the unedited rate less the edited one, with the interval of
    that paired difference. Whether a point is on the front is decided where the table's is, in pareto."""
    return [point for group in groups(receipts) for point in _points(group)]


def _points(group: Sequence[Receipt]) -> list[AblationPoint]:
    names, shared = _names(group), _basis(group[0])
    return [_point(row, shared, names[row.receipt.spec.direction]) for row in pareto.rows(group) if row.receipt.control != "twin"]


def _basis(receipt: Receipt) -> Basis:
    side, at, windows = receipt.behaviour[0], receipt.served, receipt.panel.windows
    return Basis(
        key=pareto.basis(receipt),
        model=receipt.model.name,
        where=f"on kit {at.kit} ({at.ranks} {'ranks' if at.ranks > 1 else 'rank'})" if at else "in process",
        prompts=len(side.edited),
        judge=f"{side.classifier}, {side.reply_tokens} tokens",
        positions=sum(window.positions for window in windows),
        windows=len(windows),
        top=at.k if at else None,
    )


def _names(group: Sequence[Receipt]) -> dict[str, str]:
    """How each direction is called in the figures: directions that share a name are told apart by their sha256."""
    found = {receipt.spec.direction: table.label(receipt) for receipt in group if receipt.control != "twin"}
    often = Counter(found.values())
    return {key: f"{name} {key[:6]}" if often[name] > 1 else name for key, name in found.items()}


def _point(row: pareto.Row, shared: Basis, name: str) -> AblationPoint:
    receipt, summary, side = row.receipt, row.receipt.summary, row.receipt.behaviour[0]
    low, high = stats.difference([c == "1" for c in side.stock], [c == "1" for c in side.edited])
    kld_low, kld_high = summary.kld_interval or (None, None)
    return AblationPoint(
        basis=shared,
        layers=shown(receipt.spec.layers),
        alpha=receipt.spec.alpha,
        effect=summary.sides[0].stock_rate - summary.sides[0].rate,
        kld=summary.kld,
        low=low,
        high=high,
        kld_low=kld_low,
        kld_high=kld_high,
        control=receipt.control is not None,
        source=receipt.id,
        direction=name,
        edit=table.edit(receipt.spec),
        front=row.front,
    )
