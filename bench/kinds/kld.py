"""A KLD receipt as the registry sees it."""

from __future__ import annotations

from collections.abc import Sequence

from bench import grid, quality
from bench.grid import Grid
from bench.kinds.registry import Card
from bench.kld.receipt import Receipt
from bench.quality import KldPoint

HEAD = (
    "whose", "candidate", "reference", "support", "mean KLD, nats", "95 % interval", "median", "p90", "p99", "p99.9", "max", "same top-1",
    "top-1 lost", "noise floor", "positions", "protocol", "receipt",
)  # fmt: skip
NOTE = (
    "KL(reference || candidate), nats per token. Interval: bootstrap over windows. Lost: the reference's most likely token left the "
    "candidate's first 20. Rows of different protocols must not be compared; PUBLISHED rows were measured by others, with other windows."
)


def protocol(receipt: Receipt) -> str:
    """What two rows must have in common to be compared."""
    size = sum(len(window.positions().kld) for window in receipt.windows[:1])
    return f"{receipt.panel} ({receipt.panel_sha256[:8]}), {len(receipt.windows)} x {size}, {support(receipt)}, {receipt.reference.source}"


def support(receipt: Receipt) -> str:
    return "full vocabulary" if receipt.support == "full" else f"top {receipt.k} and rest: LOWER BOUND"


def card(receipt: Receipt) -> Card:
    return Card("kld", receipt.id, receipt.seal, receipt.created_utc, receipt.candidate.model, None, supports=False)


def table(receipts: Sequence[Receipt]) -> Grid:
    """Our receipts, one row each, then the published panels."""
    return Grid(HEAD, (*map(_row, receipts), *map(_published, quality.published())), note=NOTE)


def ours(receipts: Sequence[Receipt]) -> Grid:
    """Our receipts alone."""
    return Grid(HEAD, tuple(map(_row, receipts)), note=NOTE)


def _row(receipt: Receipt) -> tuple[str, ...]:
    found, (low, high) = receipt.summary.scores, receipt.summary.interval
    figures = (found.median, found.p90, found.p99, found.p999, found.max)
    return (
        "ours",
        _side(receipt.candidate.model, receipt.candidate.edit, receipt.candidate.dtype),
        _side(receipt.reference.model, receipt.reference.edit, receipt.reference.dtype),
        support(receipt),
        f"{found.mean:.6f}",
        f"{low:.6f} to {high:.6f}",
        *(f"{each:.4f}" for each in figures),
        f"{found.top1_agreement:.4f}",
        f"{found.lost_from_top_k:.4f}",
        "-" if receipt.floor is None else f"{receipt.floor.mean:.6f}",
        f"{found.positions:,}",
        protocol(receipt),
        receipt.id,
    )


def _side(model: str, edit: str, dtype: str | None) -> str:
    return f"{model}, {edit}" + (f", {dtype}" if dtype else "")


def _published(point: KldPoint) -> tuple[str, ...]:
    interval = "-" if point.low is None or point.high is None else f"{point.low:.6f} to {point.high:.6f}"
    positions = f"{point.positions:,}" if point.positions else "-"
    blank = ("-",) * 7
    return (
        "PUBLISHED", point.label, "BF16 of the same model", "full vocabulary", f"{point.mean:.6f}", interval, *blank, "-", positions,
        point.protocol, point.source,
    )  # fmt: skip


def points(receipts: Sequence[Receipt]) -> list[KldPoint]:
    """For figures beside the published panels."""
    return [
        KldPoint(
            label=_side(receipt.candidate.model, receipt.candidate.edit, receipt.candidate.dtype),
            mean=receipt.summary.scores.mean,
            protocol=protocol(receipt),
            ours=True,
            low=receipt.summary.interval[0],
            high=receipt.summary.interval[1],
            floor=receipt.floor.mean if receipt.floor else None,
            positions=receipt.summary.scores.positions,
            source=receipt.id,
        )
        for receipt in receipts
    ]


def strata(receipt: Receipt) -> Grid:
    """One comparison by stratum and by the reference's confidence."""
    found = receipt.summary
    rows = [(row.name, f"{row.positions:,}", f"{row.mean:.6f}", f"{row.max:.4f}", f"{row.top1_agreement:.4f}") for row in found.strata]
    for bucket in found.buckets:
        mean, agreement = ("-" if value is None else f"{value:.4f}" for value in (bucket.mean, bucket.top1_agreement))
        rows.append((f"confidence from {bucket.low:g}", f"{bucket.positions:,}", mean, "-", agreement))
    return Grid(("part", "positions", "mean KLD, nats", "max", "same top-1"), tuple(rows))


def windows(receipt: Receipt) -> Grid:
    """One comparison by window."""
    rows = [(row.name, f"{row.mean:.6f}", f"{row.max:.4f}", f"{row.top1_agreement:.4f}") for row in receipt.summary.windows]
    return Grid(("window", "mean KLD, nats", "max", "same top-1"), tuple(rows))


def block(receipts: Sequence[Receipt]) -> list[str]:
    """Each comparison with its parts; nothing published beside it."""
    lines = [grid.markdown(ours(receipts)), "", NOTE, ""]
    for receipt in receipts:
        lines += [f"Receipt {receipt.id} by part:", "", grid.markdown(strata(receipt)), ""]
    return lines
