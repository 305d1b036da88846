"""A performance receipt as the registry sees it."""

from __future__ import annotations

from collections.abc import Sequence

from bench import grid, table
from bench.grid import Grid
from bench.kinds.registry import Card
from bench.receipt import Receipt


def card(receipt: Receipt) -> Card:
    reasons = receipt.invalid_because if not receipt.valid else ()
    system = receipt.system
    return Card(
        "performance",
        receipt.id,
        receipt.seal,
        receipt.created_utc,
        receipt.model,
        system.kit,
        reasons,
        dict(system.settings) if system.settings else None,
    )


# What names the weights; hashes are shortened.
_WEIGHTS = ("file", "repo", "revision", "sha256", "manifest_sha256")


def arm_settings(receipts: Sequence[Receipt]) -> list[str]:
    """A line for each kit and arm with the settings in which the receipts of that kit differ; none where all are alike."""
    lines = []
    for kit in dict.fromkeys(receipt.system.kit for receipt in receipts):
        own = [receipt for receipt in receipts if receipt.system.kit == kit and receipt.system.settings]
        names = sorted({name for receipt in own for name in receipt.system.settings or {}})
        differing = [name for name in names if len({repr((r.system.settings or {}).get(name)) for r in own}) > 1]
        for receipt in own if differing else ():
            words = ", ".join(f"{name.upper()}={(receipt.system.settings or {}).get(name)}" for name in differing)
            lines.append(f"- kit {kit}, arm {receipt.arm}: {words}")
    return list(dict.fromkeys(lines))


def identity(receipts: Sequence[Receipt]) -> Grid:
    """What was measured with what: one row for each combination that occurs."""
    head = ("kit", "model", "engine", "weights", "hardware", "tool", "commit", "client")
    return Grid(head, tuple(dict.fromkeys(_identity(receipt) for receipt in receipts)))


def _identity(receipt: Receipt) -> tuple[str, ...]:
    tool, system = receipt.tool, receipt.system
    weights, hardware = system.weights or {}, system.hardware or {}
    named = [str(value)[: 12 if name != "file" else None] for name, value in weights.items() if value and name in _WEIGHTS]
    machine = ", ".join(str(hardware[name]) for name in ("cpu", "gpu", "cores", "system") if hardware.get(name))
    dirty = " (with local changes)" if tool.git_dirty else ""
    return (
        system.kit or "-",
        receipt.model,
        system.engine or "-",
        " ".join(named) or "-",
        machine or "-",
        f"{tool.name} {tool.version}",
        (tool.git_commit or "unknown")[:12] + dirty,
        tool.client,
    )


def reproduce(receipt: Receipt) -> str:
    """The command that measured it, as far as the receipt knows; the kit must run with the recorded settings."""
    protocol = receipt.protocol
    words = ["invoke bench", f"--kit {receipt.system.kit}" if receipt.system.kit else "--base-url URL", f"--phase {protocol.phase}"]
    words += [f"--runs {protocol.runs}", f"--max-tokens {protocol.max_tokens}"]
    words += [f"--concurrency {protocol.concurrency}"] if protocol.concurrency > 1 else []
    words += [] if protocol.depth_tokens is None else [f"--depths {protocol.depth_tokens}"]
    words += [f"--arm {receipt.arm}"] if receipt.arm != "default" else []
    return " ".join(words if protocol.salted else [*words, "--keep-prefix-cache"])


def block(receipts: Sequence[Receipt]) -> list[str]:
    """Figures, identity, and the commands."""
    lines = [grid.markdown(table.grid(receipts)), "", "Interval: slowest to fastest run of one boot. Boots are not sampled by it.", ""]
    gates = [f"- failed gate of {receipt.id}: {gate}" for receipt in receipts for gate in receipt.failed_gates]
    notes = [f"- note of {receipt.id}: {note}" for receipt in receipts for note in receipt.notes]
    lines += [*gates, *notes, *([""] if gates or notes else [])]
    lines += [grid.markdown(identity(receipts)), ""]
    if settings := arm_settings(receipts):
        lines += ["Settings that differ:", "", *settings, ""]
    return [*lines, "```sh", *dict.fromkeys(reproduce(receipt) for receipt in receipts), "```"]
