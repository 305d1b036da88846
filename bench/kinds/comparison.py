"""A comparison receipt as the registry sees it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench import grid
from bench.compare.model import EndpointResult, Interval, Sealed
from bench.grid import Grid
from bench.kinds.registry import Card


def card(found: Sealed) -> Card:
    """settings: those in which the candidate differs from the baseline; supports them only when nothing got worse."""
    settings = dict(found.b.settings)
    return Card(
        "comparison", found.id, found.seal, found.created_utc, found.model, found.kit, settings=settings, supports=found.exit_code == 0
    )


def table(comparisons: Sequence[Sealed]) -> Grid:
    """One row for each endpoint of each comparison."""
    head = ("date", "kit", "A", "B", "endpoint", "figure", "A median", "B median", "boots", "change", "95 % interval", "verdict", "receipt")
    rows = [_row(found, endpoint) for found in comparisons for endpoint in found.endpoints]
    return Grid(head, tuple(rows))


def _row(found: Sealed, endpoint: EndpointResult) -> tuple[str, ...]:
    a, b = ([boot.value for boot in boots] for boots in (endpoint.a, endpoint.b))
    return (
        found.created_utc[:10],
        found.kit or "-",
        found.a.name,
        found.b.name,
        endpoint.name + ("" if endpoint.primary else " (guard)"),
        endpoint.figure,
        f"{statistics.median(a):.1f}",
        f"{statistics.median(b):.1f}",
        f"{len(a)}+{len(b)}",
        f"{endpoint.change:+.1%}",
        span(endpoint.interval),
        endpoint.verdict,
        found.id,
    )


def span(interval: Interval) -> str:
    low, high = ("unbounded" if end is None else f"{end:+.1%}" for end in (interval.low, interval.high))
    return f"{low} to {high}"


def _settings(found: Sealed) -> str:
    names = sorted({*found.a.settings, *found.b.settings})
    pairs = [f"{name.upper()} {found.a.settings.get(name)} -> {found.b.settings.get(name)}" for name in names]
    return ", ".join(pairs) or "no recorded setting differs"


def block(comparisons: Sequence[Sealed]) -> list[str]:
    """The verdict first, then the endpoints, what differs, and the scope."""
    lines: list[str] = []
    for found in comparisons:
        order = f"plan {found.plan[:19]}" if found.plan else "no plan"
        lines += [f"**{found.verdict}** ({found.a.name} -> {found.b.name}: {_settings(found)}; {order})", ""]
        lines += [f"- {endpoint.name}: {endpoint.verdict}: {endpoint.why}" for endpoint in found.endpoints]
        lines += [f"- failed gate: {gate}" for gate in found.failed_gates]
        lines += [f"- control {c.endpoint}: {c.change:+.1%}, allowed {c.tolerance:.1%}" for c in found.control or ()]
        lines += [f"- note: {note}" for note in found.notes]
        lines += ["", found.scope, ""]
    return [*lines, grid.markdown(table(comparisons))]
