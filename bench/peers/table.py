"""The peers receipt and its tables in markdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.peers.judged import FIGURES, Figure, Verdict
from bench.peers.runs import Row
from bench.trace import Fact

_NAMES: dict[Figure, str] = {
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "time per token, ms",
    "tokens": "tokens per request",
    "decode_tok_s": "decode, tok/s",
    "output_tok_s": "output, tok/s",
}


PARTS = ("rows", "live", "costs")


class Cost(Fact):
    """CPU time per 1,000 one-token chunks of one tool: from the difference of a long and a short run, so that its start costs nothing.
    short_cpu_s, long_cpu_s: of every such run, of which the least counts."""

    peer: str
    streams: int
    gap_s: float
    cpu_s_per_1000: float | None
    short_cpu_s: tuple[float, ...] = ()
    long_cpu_s: tuple[float, ...] = ()
    failure: str | None = None


class Receipt(Fact):
    """rows: scripted server; live: a real server, of which only the local kit's says what is true; costs: CPU under load.
    kit: engine and model of the local kit."""

    kind: str = "spark-lab peers 1"
    created_utc: str
    command: str
    python: str
    cores: int
    load_before: float
    rows: tuple[Row, ...] = ()
    live: tuple[Row, ...] = ()
    kit: str | None = None
    costs: tuple[Cost, ...] = ()


def joined(older: Receipt, newer: Receipt) -> Receipt:
    """`newer`, with the parts that it has not measured taken from `older`, and both commands."""
    kept = {name: getattr(older, name) for name in PARTS if not getattr(newer, name)}
    if "live" in kept:
        kept["kit"] = older.kit
    if not any(kept.values()):
        return newer
    return newer.model_copy(update={**kept, "command": f"{older.command}; {newer.command}"})


def table(receipt: Receipt) -> str:
    """One line per tool and case: each figure with its error against the truth; **bold** is wrong, - is not reported."""
    lines = [
        "| tokens per chunk | usage | tool | " + " | ".join(_NAMES[figure] for figure in FIGURES) + " |",
        "|---|---|---|" + "---|" * len(FIGURES),
    ]
    for row in receipt.rows:
        if row.verdicts and row.peer == receipt.rows[0].peer:
            true = " | ".join(_number(verdict.true) for verdict in row.verdicts)
            lines.append(f"| {row.per_chunk} | {row.usage} | *the truth* | {true} |")
        lines.append(f"| {row.per_chunk} | {row.usage} | {_tool(row)} | {_cells(row)} |")
    return "\n".join(lines)


def summary_table(receipt: Receipt) -> str:
    """One line per tool: the largest error of each figure over all cases, how many figures were wrong, and the CPU cost."""
    costs = {cost.peer: cost.cpu_s_per_1000 for cost in receipt.costs}
    head, rule, *lines = _summary(receipt.rows)
    last = [f" {'-' if costs.get(name) is None else f'{costs[name]:.4f}'} |" for name in wrong(receipt.rows)]
    return "\n".join([f"{head} CPU s per 1,000 tokens |", f"{rule}---|", *(line + cost for line, cost in zip(lines, last, strict=True))])


def live_summary(receipt: Receipt) -> str:
    """The same of the real server, without the cost."""
    return "\n".join(_summary(receipt.live))


def _summary(rows: Sequence[Row]) -> list[str]:
    lines = ["| tool | " + " | ".join(_NAMES[figure] for figure in FIGURES) + " | wrong |", "|---|" + "---|" * (len(FIGURES) + 1)]
    for name, (bad, told) in wrong(rows).items():
        own = [row for row in rows if row.peer == name]
        cells = " | ".join(_worst([v for row in own for v in row.verdicts if v.figure == figure]) for figure in FIGURES)
        lines.append(f"| {_tool(own[0])} | {cells} | {bad} of {told} |")
    return lines


def _worst(verdicts: list[Verdict]) -> str:
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    if not errors:
        return "-"
    text = f"{max(errors, key=abs):+.1%}"
    return f"**{text}**" if any(verdict.wrong for verdict in verdicts) else text


def live_table(receipt: Receipt) -> str:
    """What each tool reports of the real server, with its error against what that server says of the same requests, where it does."""
    lines = ["| streams | tool | prompt tokens | " + " | ".join(_NAMES[figure] for figure in FIGURES) + " |"]
    lines.append("|---|---|---|" + "---|" * len(FIGURES))
    lines += [f"| {row.streams} | {_tool(row)} | {_number(row.prompt_tokens)} | {_cells(row)} |" for row in receipt.live]
    return "\n".join(lines)


def cost_table(receipt: Receipt) -> str:
    lines = ["| tool | streams | gap, ms | CPU s per 1,000 tokens |", "|---|---|---|---|"]
    for cost in receipt.costs:
        value = f"failed: {cost.failure}" if cost.cpu_s_per_1000 is None else f"{cost.cpu_s_per_1000:.4f}"
        lines.append(f"| {cost.peer} | {cost.streams} | {cost.gap_s * 1000:g} | {value} |")
    return "\n".join(lines)


def cost_verdict(receipt: Receipt, ours: str) -> str | None:
    """Our CPU time per token against half of the best peer's; None where either was not measured."""
    known = {cost.peer: cost.cpu_s_per_1000 for cost in receipt.costs if cost.cpu_s_per_1000 is not None}
    peers = {name: value for name, value in known.items() if name != ours}
    if ours not in known or not peers:
        return None
    best = min(peers, key=lambda name: peers[name])
    share = known[ours] / peers[best]
    return f"CPU per token: {share:.2f} of the best peer's ({best}); goal: at most 0.50, {'met' if share <= 0.5 else 'missed'}"


def wrong(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Tool -> (figures that were wrong, figures that it reported)."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        bad, all_ = found.get(row.peer, (0, 0))
        said = [verdict for verdict in row.verdicts if verdict.said is not None]
        found[row.peer] = (bad + sum(verdict.wrong for verdict in said), all_ + len(said))
    return found


def _tool(row: Row) -> str:
    return f"{row.peer} {row.version}".strip()


def _cells(row: Row) -> str:
    if row.verdicts:
        return " | ".join(_cell(verdict) for verdict in row.verdicts)
    return " | ".join(_number(getattr(row.said, figure)) for figure in FIGURES) if row.said else _failed(row)


def _failed(row: Row) -> str:
    words = " ".join((row.failure or "no figure").split()).replace("|", "/")[:160]
    return f"failed: {words} |" + " |" * (len(FIGURES) - 2) + " "


def _cell(verdict: Verdict) -> str:
    if verdict.said is None or verdict.error is None:
        return "-"
    text = f"{_number(verdict.said)} ({verdict.error:+.1%})"
    return f"**{text}**" if verdict.wrong else text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
