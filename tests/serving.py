"""The examples of docs/serving.md: fenced blocks, each marked `run` or `not-run`, in the order of the document."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "serving.md"


@dataclass(frozen=True)
class Example:
    """language: sh, python or json. before: the paragraph above it, which tells a reader whether it is run."""

    heading: str
    before: str
    language: str
    run: bool
    text: str


def examples(document: str) -> list[Example]:
    """Every fenced block. Raises ValueError for one that is not marked, or of another language."""
    found, heading, before = [], "", ""
    for part in re.split(r"(^```.*?^```$)", document, flags=re.MULTILINE | re.DOTALL):
        if not part.startswith("```"):
            heading = (re.findall(r"^## (.+)$", part, re.MULTILINE) or [heading])[-1]
            before = part.strip().split("\n\n")[-1]
            continue
        first, _, text = part.partition("\n")
        mark = re.fullmatch(r"```(sh|python|json) (run|not-run)", first)
        if mark is None:
            raise ValueError(f"under {heading}: {first} needs a language and `run` or `not-run`")
        found.append(Example(heading, before, mark[1], mark[2] == "run", text.removesuffix("```")))
    return found


def requests(document: str) -> list[str]:
    """The JSON requests that only Sparks can answer."""
    return [each.text for each in examples(document) if each.language == "json"]
