"""The block of markdown that a pull request carries for its receipts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import grid
from bench.grid import Grid
from bench.kinds.registry import KINDS, Found, Pile, call

_CLAIMS = {
    "comparison": "A verdict holds for the kit, model, workloads and settings that its scope names, and for nothing else.",
    "performance": "A performance receipt describes one boot. Two of them prove no difference: that takes a plan and `invoke compare`.",
    "foreign": "Figures of other tools are unsealed, follow other protocols, and are no part of any verdict.",
}
_QUALITY = "Nothing here speaks of answer quality unless a receipt of kind kld or ablation is listed."


def block(pile: Pile, root: Path) -> str:
    """Verdicts and figures, the receipts with their seals, what is left out, how to check it, what is not claimed.

    The same receipts give the same text. Paths are shown from `root`.
    """
    parts = [f"<!-- spark-lab: {len(pile.found)} receipts, {len(pile.left_out)} left out -->"]
    for kind in KINDS:
        if found := pile.of(kind.word):
            parts += [f"### {kind.title}", "\n".join(call(kind.block)([each.document for each in found])).rstrip()]
    parts += ["### Receipts", grid.markdown(_seals(pile.found, root))]
    kits = sorted({card.kit for each in pile.found if (card := each.card).kit})
    if len(kits) > 1:
        parts.append(f"These are receipts of {len(kits)} kits ({', '.join(kits)}); figures of different kits are not compared.")
    if pile.left_out:
        parts += [f"**Left out ({len(pile.left_out)}):**", "\n".join(f"- {line}" for line in pile.left_out)]
    parts += ["### How to check", f"```sh\n./lab receipt.check {' '.join(_name(each.path, root) for each in pile.found)}\n```"]
    claims = [text for word, text in _CLAIMS.items() if pile.of(word)]
    return "\n\n".join([*parts, "### What is not claimed", "\n".join(f"- {claim}" for claim in [*claims, _QUALITY])])


def _seals(found: Sequence[Found], root: Path) -> Grid:
    rows = [(_name(each.path, root), each.kind.word, each.card.id, each.card.seal or "none (foreign)") for each in found]
    return Grid(("file", "kind", "receipt", "seal"), tuple(rows))


def _name(path: Path, root: Path) -> str:
    whole = path.resolve()
    return str(whole.relative_to(root)) if whole.is_relative_to(root) else path.name
