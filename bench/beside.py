"""Our decode figures beside those that others published for the same kit and phase, with a loud mark where the protocols differ."""

from __future__ import annotations

from collections.abc import Sequence

from bench.grid import Grid
from bench.receipt import Receipt
from bench.why_slow.reference import PROTOCOLS, TOPOLOGY, Reference, of

_HEAD = ("whose", "kit", "phase", "decode tok/s", "accepted per step", "date", "profile or receipt", "protocol", "may be compared?")
_PHASES = ("prose", "structured", "code")
NOTE = "PUBLISHED rows were measured by others, on other machines. DIFFERS: the protocols differ, so the rows must not be compared."


def grid(receipts: Sequence[Receipt], most: int = 3) -> Grid:
    """For each kit with published figures: our receipts of the phase, then the `most` closest published rows. Kits without a receipt
    show the published rows alone."""
    rows: list[tuple[str, ...]] = []
    for kit in TOPOLOGY:
        for phase in _PHASES:
            own = [receipt for receipt in receipts if receipt.system.kit == kit and receipt.protocol.phase == phase]
            plain = [receipt for receipt in own if receipt.protocol.concurrency == 1 and receipt.summary.decode_tok_s]
            rows += [_ours(receipt) for receipt in plain]
            rows += [_published(kit, each, plain) for each in of(kit, phase)[:most]]
    return Grid(_HEAD, tuple(rows), note=NOTE)


def differences(receipt: Receipt) -> list[str]:
    """What keeps the receipt from the protocol of the public bench_decode script (P2), the closest that anybody published with."""
    protocol = receipt.protocol
    found = ["ends at the last token, not at the end of the stream"]
    found += ["salted prompt"] if protocol.salted else []
    found += [f"{protocol.max_tokens} tokens instead of 400"] if protocol.max_tokens != 400 else []
    found += [f"{protocol.runs} runs instead of 5"] if protocol.runs != 5 else []
    return found


def _ours(receipt: Receipt) -> tuple[str, ...]:
    rate, acceptance = receipt.summary.decode_tok_s, receipt.summary.acceptance
    return (
        "ours",
        receipt.system.kit or "-",
        receipt.protocol.phase,
        "-" if rate is None else f"{rate.median:.1f} ({rate.min:.1f}-{rate.max:.1f})",
        "-" if acceptance is None else f"{acceptance.acceptance_length - 1:.2f}",
        receipt.created_utc[:10],
        f"{receipt.id}, arm {receipt.arm}",
        f"spark-lab, n = {receipt.summary.runs}",
        f"with P2 only in part: {'; '.join(differences(receipt))}",
    )


def _published(kit: str, each: Reference, own: Sequence[Receipt]) -> tuple[str, ...]:
    step = "-" if each.accepted_per_step is None else f"{each.accepted_per_step:.2f}"
    said = PROTOCOLS[each.protocol]
    mark = "DIFFERS" if own else "no receipt of ours"
    return ("PUBLISHED", kit, each.phase, f"{each.decode_tok_s:g}", step, each.date, each.profile, f"{each.protocol}: {said}", mark)
