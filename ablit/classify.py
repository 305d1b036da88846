"""What an answer is, by named rules that anyone can apply by hand. Pure.

A rule sees an Answer, whose text is cut at the reply's length; it counts markers, not meaning. Empty, repeating and degenerate answers
are counted apart (see `coherence`) because a broken answer also lacks the markers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

_HEDGES = (
    "might|may|perhaps|possibly|probably|likely|seems?|appears?|could|not (?:entirely |completely )?(?:sure|certain|clear)",
    "unsure|uncertain|generally|usually|typically|often|sometimes|in my opinion|i think|i believe",
)
_CASUAL = (
    "hey|hi|yo|yeah|yep|yup|lol|ok|okay|cool|super|kinda|gonna|wanna|gotta|awesome|dude|buddy|stuff|guys?",
    "you know|basically|pretty much|chill|folks|totally|no worries",
)
_DISCLAIMS = ("don't have|do not have|can't|cannot|unable to|not able to|no access|real-time|as an ai|i'm (?:just )?an? (?:ai|chatbot)",)


def _any(alternatives: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(alternatives)})\b", re.IGNORECASE)


HEDGES, CASUAL, DISCLAIMS = _any(_HEDGES), _any(_CASUAL), _any(_DISCLAIMS)


@dataclass(frozen=True)
class Answer:
    """`text` without special tokens; `ended`: the model ended it itself, before the reply's length was reached; `tokens`: how many."""

    text: str
    ended: bool
    tokens: int


def brief(answer: Answer) -> bool:
    """It ended by itself, with something said, within the reply's length."""
    return answer.ended and bool(answer.text.strip())


def casual(answer: Answer) -> bool:
    """A casual word, an exclamation mark, or a small first letter."""
    text = answer.text.strip().lstrip("\"'")
    return bool(CASUAL.search(text)) or "!" in text or text[:1].islower()


def hedged(answer: Answer) -> bool:
    """At least one hedging word: might, perhaps, possibly, usually, I think, ..."""
    return bool(HEDGES.search(answer.text))


def disclaims(answer: Answer) -> bool:
    """It says that it cannot, has no access or is only a machine."""
    return bool(DISCLAIMS.search(answer.text))


CLASSIFIERS: dict[str, Callable[[Answer], bool]] = {"brief": brief, "casual": casual, "hedged": hedged, "disclaims": disclaims}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def repetition(text: str, size: int = 3) -> float:
    """Share of the text's runs of `size` words that came before in it; 0 for fewer than two runs."""
    found = words(text)
    runs = [tuple(found[i : i + size]) for i in range(len(found) - size + 1)]
    return 1 - len(set(runs)) / len(runs) if len(runs) > 1 else 0.0


def coherence(answer: Answer) -> str:
    """empty: no word. degenerate: one word is more than half of eight or more, or hardly any letters. repeating: more than 0.3 of the
    3-word runs came before. Else sound."""
    found = words(answer.text)
    if not found:
        return "empty"
    letters = sum(c.isalpha() or c.isspace() for c in answer.text) / len(answer.text)
    if letters < 0.5 or (len(found) >= 8 and Counter(found).most_common(1)[0][1] > len(found) / 2):
        return "degenerate"
    return "repeating" if repetition(answer.text) > 0.3 else "sound"
