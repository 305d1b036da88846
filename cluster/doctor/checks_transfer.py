"""What the transfers of `invoke doctor --transfer` moved, against what the links say. Nothing without it."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.doctor.finding import CLUSTER, Check, Finding, Kind, Scene
from cluster.facts.transfer import Transfer

# A port that came up degraded moved 8 to 25 of 200 Gb/s (A15), 4 to 13 %. TCP from Python does not fill a fast link: the share is low.
LITTLE_SHARE = 0.15

LITTLE = Kind("link-moves-little", "warning", "a port that came up degraded says its full speed and moves a fraction of it", "A15")
RATE = Kind("transfer-rate", "info", "what a link moves is only seen by moving something", "A15")
FAILED = Kind("transfer-failed", "warning", "the ranks meet over the same addresses", "A15")
NOT_RUN = Kind("transfer-not-run", "info", "a transfer takes the link from the ranks, and the ranks from the transfer", "A15")


def moved(scene: Scene) -> Iterator[Finding]:
    for each in scene.gathered.transfers.done:
        way = f"{each.sender} to {each.receiver} by {each.way}"
        if each.gbit_s is None:
            hint = f"a firewall on {each.receiver} (sudo ufw status), or its address; ports 20000 to 29000 are used"
            yield FAILED.at(each.receiver, f"{way}: {each.problem}", hint)
        elif each.link_gbit_s and each.gbit_s < LITTLE_SHARE * each.link_gbit_s:
            what = f"{way}: {_amount(each)}; expected {LITTLE_SHARE * each.link_gbit_s:.3g} or more of the link's {each.link_gbit_s:g}"
            yield LITTLE.at(
                each.receiver, what, "again on a quiet node; then power both Sparks off for a minute, seat the cable, try another"
            )
        else:
            link = f"the link's {each.link_gbit_s:g}" if each.link_gbit_s else "an unknown link"
            yield RATE.at(each.receiver, f"{way}: {_amount(each)}, of {link}", "nothing; TCP from Python does not fill a fast link")


def _amount(each: Transfer) -> str:
    within = f" ({each.moved_bytes / (1 << 30):.2f} GiB in {each.seconds:.2f} s)" if each.moved_bytes and each.seconds else ""
    return f"{each.gbit_s:.3g} Gb/s{within}"


def not_run(scene: Scene) -> Iterator[Finding]:
    transfers = scene.gathered.transfers
    if transfers.refused:
        running = "; ".join(f"{role} runs {what}" for role, what in transfers.refused.items())
        yield NOT_RUN.at(CLUSTER, f"no transfer was made: {running}", "invoke down first, or --transfer --force")
    elif transfers.asked and not transfers.done:
        why = "one node has no link" if not scene.several else "there are not two nodes that answer and have an address"
        yield NOT_RUN.at(CLUSTER, f"no transfer was made: {why}", "nothing" if not scene.several else "what the errors above say")


CHECKS: tuple[Check, ...] = (moved, not_run)
