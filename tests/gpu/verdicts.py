"""What must hold of the engines' answers. An answer is engine.py's: `ids`, `logprobs`, `leads` of one prompt."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tests.gpu.engines import PAIRS, THIN, TIE, Pair

Answers = list[dict[str, Any]]


def alike(found: Answers, wanted: Answers, near: float, margins: list[list[float]] | None = None) -> str:
    """ "" if the ids agree and their log-probabilities are near; after a near tie that was decided otherwise, the rest is not compared.

    A log-probability may be further off where the router's margin is thin.
    """
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        thin = margins[number] if margins else [1.0] * len(one["ids"])
        if reason := differing(one, other, near, thin):
            return f"prompt {number}, {reason}"
    return ""


def differing(one: dict[str, Any], other: dict[str, Any], near: float, margins: list[float]) -> str:
    for place, (mine, theirs) in enumerate(zip(one["ids"], other["ids"], strict=True)):
        if mine != theirs:
            if min(one["leads"][place], other["leads"][place]) < TIE:
                return ""
            return f"token {place}: {mine} instead of {theirs}, which led by {other['leads'][place]:.3f}"
        if abs(one["logprobs"][place] - other["logprobs"][place]) > near and margins[place] > THIN:
            return f"token {place}: log-probability {one['logprobs'][place]:.3f}, not {other['logprobs'][place]:.3f}"
    return ""


def compared(found: Answers, wanted: Answers) -> dict[str, Any]:
    """How many ids agree from the start, of how many; the largest differences of their log-probabilities and the median."""
    gaps: list[float] = []
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs, here, there in zip(one["ids"], other["ids"], one["logprobs"], other["logprobs"], strict=True):
            if mine != theirs:
                break
            gaps.append(round(abs(here - there), 5))
    total = sum(len(row["ids"]) for row in wanted)
    largest = sorted(gaps, reverse=True)[:3]
    return {"equal_ids": len(gaps), "ids": total, "largest_logprob_differences": largest, "median": statistics.median(gaps or [0.0])}


def verdicts(answers: dict[str, Answers], pairs: Sequence[Pair] = PAIRS) -> Iterator[dict[str, Any]]:
    for pair in pairs:
        if pair.found in answers and pair.wanted in answers:
            given = answers[pair.found], answers[pair.wanted]
            reason = alike(*given, pair.near, margins(given[1], answers.get("transformers", [])))
            if pair.differ:
                reason = "" if reason else "the answers are alike, and the weights are not"
            what = f"{pair.found} {'differs from' if pair.differ else 'answers as'} {pair.wanted}"
            yield {"what": what, "failed": reason, "allowed": pair.near, **compared(*given)}


def margins(answers: Answers, known: Answers) -> list[list[float]] | None:
    """Those that transformers gave, if the answers are to the same prompts and the same."""
    same = [row["ids"] for row in answers] == [row["ids"] for row in known]
    return [row["margins"] for row in known] if same else None


def drafted(results: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Speculation really took place."""
    for name, result in results.items():
        if ("mtp" in name or "dflash" in name) and "counters" in result:
            count = result["counters"].get("vllm:spec_decode_num_draft_tokens", 0)
            yield {"what": f"{name} drafted", "failed": "" if count else "no draft tokens were counted", "draft_tokens": count}


def spread(runs: list[list[dict[str, Any]]]) -> list[list[float]]:
    """Per prompt and token; a prompt's list ends where the ids of two runs part."""
    found = []
    for same in zip(*runs, strict=True):
        steps = zip(*(zip(row["ids"], row["logprobs"], strict=True) for row in same), strict=True)
        agreeing = itertools.takewhile(lambda step: len({token for token, _ in step}) == 1, steps)
        found.append([round(max(value for _, value in step) - min(value for _, value in step), 4) for step in agreeing])
    return found
