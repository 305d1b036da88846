"""Findings as text: one block each, errors first."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from cluster.doctor.finding import LEVELS, Finding

_WIDTH = 140


def counted(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning, 3 infos`."""
    numbers = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    return ", ".join(f"{number} {level}{'' if number == 1 else 's'}" for level, number in numbers.items())


def table(kit: str, findings: Sequence[Finding]) -> str:
    """Level, id, where and what in columns; below each, why it matters (not for infos) and what to try."""
    widths = [max((len(text) for text in column), default=0) for column in zip(*map(_columns, findings), strict=False)]
    lines = [f"kit {kit}: {counted(findings)}"]
    for finding in findings:
        head = "  ".join(text.ljust(width) for text, width in zip(_columns(finding), widths, strict=True))
        indent = " " * (widths[0] + 2)
        lines += _wrapped(finding.what, f"{head}  ", indent)
        lines += _wrapped(finding.why, f"{indent}why: ", f"{indent}     ") if finding.level != "info" else []
        lines += _wrapped(finding.hint, f"{indent}try: ", f"{indent}     ")
    return "\n".join(lines)


def _columns(finding: Finding) -> tuple[str, str, str]:
    return finding.level.upper() if finding.level == "error" else finding.level, finding.id, finding.where


def _wrapped(text: str, first: str, following: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=following, break_long_words=False, break_on_hyphens=False)
