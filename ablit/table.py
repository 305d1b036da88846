"""Ablation receipts as a markdown table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ablit.pareto import Row
from ablit.receipt import Receipt
from ablit.spec import EditSpec, shown
from bench.quality import FEW_WINDOWS

COLUMNS = (
    "direction", "layers", "alpha", "1 - alpha", "KLD, nats (95 %)", "positions / windows", "p99", "first-token KLD", "agreement", "1 - TV",
    "rate, stock", "rate, edited (95 %)", "lost / gained", "p", "other side", "unsound", "front", "fails", "receipt",
)  # fmt: skip


# a served point has these beside: lengths and speeds are stock > edited
SERVED = ("floor, nats", "acceptance length", "decode, tok/s", "kit")


def columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """What `cells` gives for the rows: those of served points only where there is one."""
    last = COLUMNS[-1:]
    return (*COLUMNS[:-1], *SERVED, *last) if any(row.receipt.served for row in rows) else COLUMNS


def label(receipt: Receipt) -> str:
    """How a point is called: unedited twin, random-N, or where the direction was read."""
    return "unedited twin" if receipt.control == "twin" else receipt.direction.get("name", receipt.spec.direction[:12])


def edit(spec: EditSpec) -> str:
    """What the edit is beside o_proj at one alpha: `kernel`, `+down`, both, or nothing."""
    return " ".join(word for word, there in (("kernel", spec.kernel), ("+down", "down_proj" in spec.targets)) if there)


def cells(row: Row, wide: bool = False) -> list[str]:
    """The texts of a row under COLUMNS; `wide`: with those of SERVED before the last. A KLD of the top-k form is marked as a lower
    bound, its 1 - TV as an upper one."""
    plain = _cells(row)
    return [*plain[:-1], *_served(row.receipt), plain[-1]] if wide else plain


def _served(receipt: Receipt) -> list[str]:
    at = receipt.served
    if at is None:
        return ["-"] * len(SERVED)
    lengths = [f"{boot.speculation.length:.2f}" if boot.speculation else "-" for boot in (at.stock, at.edited)]
    speeds = [f"{boot.speed.decode_tok_s:.1f}" if boot.speed and boot.speed.decode_tok_s else "-" for boot in (at.stock, at.edited)]
    return [f"{at.floor.mean:.2g}", " > ".join(lengths), " > ".join(speeds), at.kit]


def _cells(row: Row) -> list[str]:
    receipt, summary = row.receipt, row.receipt.summary
    side, other = summary.sides[0], summary.sides[1:]
    spec = receipt.spec
    alpha = f"{spec.alpha:g} {edit(spec)}".strip()
    low = ">= " if receipt.panel.form == "top-k" else ""
    windows = receipt.panel.windows
    return [
        label(receipt),
        shown(spec.layers),
        alpha,
        f"{1 - spec.alpha:g}" + (" (over-projects)" if spec.alpha > 2 else ""),
        f"{low}{summary.kld:.4f}{_interval(receipt)}",
        f"{sum(window.positions for window in windows):,} / {len(windows)}",
        f"{receipt.panel.p99:.3f}",
        "-" if side.first_token_kld is None else f"{low}{side.first_token_kld:.3f}",
        f"{summary.agreement:.3f}",
        f"{'<= ' if low else ''}{summary.acceptance:.3f}",
        f"{side.stock_rate:.0%}",
        f"{side.rate:.0%} ({side.interval[0]:.0%}-{side.interval[1]:.0%})",
        f"{side.lost} / {side.gained}",
        f"{side.p:.1g}" if side.p < 0.001 else f"{side.p:.3f}",
        " ".join(f"{each.stock_rate:.0%}>{each.rate:.0%}" for each in other) or "-",
        f"{side.unsound}/{len(receipt.behaviour[0].edited)}",
        "yes" if row.front else ("control" if receipt.control else "-"),
        ", ".join(row.failed) or "-",
        receipt.id,
    ]


def _interval(receipt: Receipt) -> str:
    """That of the KLD in brackets, marked where it rests on too few windows; nothing where there is none."""
    interval, few = receipt.summary.kld_interval, len(receipt.panel.windows) < FEW_WINDOWS
    return f" ({interval[0]:.4f}-{interval[1]:.4f}{', few windows' if few else ''})" if interval else ""


def markdown(rows: Sequence[Row]) -> str:
    names = columns(rows)
    lines = [names, ["---"] * len(names), *(cells(row, names != COLUMNS) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
