"""invoke budget."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import math
from pathlib import Path
from typing import Any

import cli


@cli.task(help={"kit": "a name from kits/ (default: KIT)", "json": "print one JSON document"})
def budget(ctx: Any, kit: str | None = None, json: bool = False) -> int:
    """What the settings will take of each node's memory, and which change makes it fit. Opens no connection. Exit 1: does not fit."""
    from cluster.budget import fit, nodes
    from cluster.settings import load

    effective = load({"kit": kit})
    made = fit.budget(effective)
    here = {"local": nodes.meminfo_bytes(Path("/proc/meminfo").read_text())} if effective.kit.topology == "single" else {}
    problems = nodes.problems(effective, here)
    if json:
        spare = made.spare_node if math.isfinite(made.spare_node) else None
        derived = {"verdict": made.verdict, "fits": made.fits, "needed": made.needed, "spare_kv": made.spare_kv, "spare_node": spare}
        print(jsonlib.dumps({**dataclasses.asdict(made), **derived, "problems": [dataclasses.asdict(each) for each in problems]}, indent=2))
    else:
        print("\n".join([*rendered(made, effective.settings.max_model_len), *(f"{p.level}: {p.what}; try {p.hint}" for p in problems)]))
    return 1 if made.fits is False or problems else 0


def rendered(made: Any, tokens: int) -> list[str]:
    """The budget as lines of text."""
    if made.fits is None:
        return [f"kit {made.kit}: no memory figures are known for its model"]
    measured = "measured on another machine" if made.total is None else "published figures, not measured here"
    lines = [f"kit {made.kit}, ranks: {made.ranks}, GiB on each ({measured})"]
    lines += [f"  {line.gib:7.2f}  {line.name:24} {line.source}" for line in made.lines]
    lines.append(f"  {made.needed:7.2f}  in all" if made.total is None else f"  {made.spare_node:7.2f}  left of {made.total}")
    lines.append(f"KV: one request of {tokens} tokens needs {made.request:.2f} GiB; {made.per_token_bytes} bytes a further token;")
    lines.append(f"    the pool of {made.pool:.2f} GiB holds {made.at_once:.2f} of them")
    lines += [f"known not to boot: {each}" for each in made.known]
    lines.append(f"verdict: {made.verdict}")
    return [*lines, *(f"  try {advice}" for advice in made.advice)]
