"""A comparison as a short text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.compare.model import Comparison, EndpointResult, Interval


def text(found: Comparison) -> str:
    """Arms, one block per endpoint, control, notes, verdict, scope."""
    lines = [f"A {found.a.name}: {_settings(found.a.settings)}", f"B {found.b.name}: {_settings(found.b.settings)}", ""]
    lines += _table(found.endpoints)
    for endpoint in found.endpoints:
        lines += ["", *_details(endpoint)]
    lines += ["", *(f"control {c.endpoint}: {c.change:+.1%}, allowed {c.tolerance:.1%}" for c in found.control or ())]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join([*lines, f"verdict: {found.verdict}", found.scope])


def _settings(settings: dict[str, str | int | float | bool | None]) -> str:
    return ", ".join(f"{name.upper()}={value}" for name, value in settings.items()) or "no recorded setting differs"


def _table(endpoints: Sequence[EndpointResult]) -> list[str]:
    head = ["endpoint", "figure", "A", "B", "boots", "change", "interval", "p (Holm)", "verdict"]
    rows = [head, *(_row(endpoint) for endpoint in endpoints)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(endpoint: EndpointResult) -> list[str]:
    a, b = ([boot.value for boot in boots] for boots in (endpoint.a, endpoint.b))
    p = endpoint.test.p if endpoint.test.p_holm is None else endpoint.test.p_holm
    return [
        endpoint.name + ("" if endpoint.primary else " (guard)"),
        endpoint.figure,
        f"{statistics.median(a):.2f}",
        f"{statistics.median(b):.2f}",
        f"{len(a)}+{len(b)}",
        f"{endpoint.change:+.1%}",
        _span(endpoint.interval),
        f"{p:.3f}",
        endpoint.verdict,
    ]


def _span(interval: Interval) -> str:
    low, high = ("unbounded" if end is None else f"{end:+.1%}" for end in (interval.low, interval.high))
    return f"{low} to {high}"


# Why the test may be trusted; the false-alarm rates are in results/calibration.
_VALID = {
    "free": "holds for exchangeable boots; in ABBA order drift and positive autocorrelation only make it more careful",
    "block": "holds by the drawn order inside blocks, whatever the drift",
}


def _details(endpoint: EndpointResult) -> list[str]:
    test, tail = endpoint.test, endpoint.tail
    drawn = f"{test.splits} splits drawn, error {test.p_error:.4f}" if test.p_error else f"all {test.splits} splits"
    least = "none with so few boots" if endpoint.detectable is None else f"{endpoint.detectable:.1%}"
    sd = "unknown" if endpoint.boot_sd is None else f"{endpoint.boot_sd:.2%}"
    return [
        f"{endpoint.name}: {endpoint.verdict}: {endpoint.why}",
        f"  test: {test.kind} permutation of boot medians, {drawn}; smallest possible p {test.p_smallest:.3f}; {_VALID[test.kind]}",
        f"  minimum detectable change (80 % of repeats): {least}; spread of boots {sd}",
        f"  slow runs: {tail.slow_share_a:.0%} and {tail.slow_share_b:.0%}, 10th percentile "
        f"{tail.low_ratio_a:.3f} and {tail.low_ratio_b:.3f} of the boot median: {tail.verdict}",
        f"  side figures (A, B): {_side(endpoint)}",
        f"  description only: hierarchical bootstrap {_span(endpoint.bootstrap)}",
    ]


def _side(endpoint: EndpointResult) -> str:
    forms = {
        "ttft_s": ("TTFT ms", 1000.0, ".0f"),
        "acceptance_length": ("acceptance length", 1.0, ".2f"),
        "step_s": ("engine step ms", 1000.0, ".1f"),
    }
    parts = []
    for name, (label, scale, form) in forms.items():
        a, b = endpoint.side_a.get(name), endpoint.side_b.get(name)
        if a is not None and b is not None:
            parts.append(f"{label} {format(a * scale, form)}, {format(b * scale, form)}")
    return "; ".join(parts) or "none known"
