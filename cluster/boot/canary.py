"""The first questions to a server that says it is ready: a known answer, text that is no rubbish, a drafter that works.

A start can end with every light green and a broken engine: all output "!!!!" and nothing accepted (launcher study 6.18), or an
acceptance of exactly 1.00 at every position, which no real text gives (6.19). Judging is pure; only `ask` opens a connection.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

from cluster import health
from cluster.health import Server
from cluster.metrics import Reading
from cluster.settings import Effective

QUESTION = "What is the capital of France? Answer with one word."
PROSE = "Describe a walk through an old town on a market day, in plain prose."
_DEADLINE_S = 600  # a first request may compile kernels
_TOKENS, _THINKING_TOKENS, _PROSE_TOKENS = 32, 512, 384
_MIN_DRAFT_TOKENS = 64
_MIN_DRAFTS_FOR_ONE = 24  # prose is never accepted whole so often in a row: published acceptance in prose is 35 to 75 %
_MIN_LENGTH = 16  # characters; a shorter text shows no pattern


@dataclass(frozen=True)
class Answer:
    """What the server generated, reasoning included, and how many tokens it says that was."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Plan:
    """What to ask. `expect`: a word that the answer must hold (None: only that tokens come). `drafts`: a drafter model is at work."""

    expect: str | None
    thinks: bool
    drafts: bool


def plan(effective: Effective) -> Plan:
    """The questions for these settings. An n-gram's drafts come from the text itself: they show nothing about a drafter."""
    settings, llama = effective.settings, effective.kit.engine == "llama"
    return Plan(settings.canary_expect, bool(settings.reasoning_parser) and not llama, settings.spec_method in ("dflash", "mtp"))


def degenerate(text: str) -> str | None:
    """What is wrong with a text that no sane model writes; None for any other text, a short one included."""
    solid = "".join(text.split())
    if len(solid) < _MIN_LENGTH:
        return None
    broken = text.count("\ufffd")
    if broken > len(text) / 10:
        return f"{broken} of {len(text)} characters are broken"
    character, count = Counter(solid).most_common(1)[0]
    if count >= 0.8 * len(solid):
        return f"{count} of {len(solid)} characters are {character!r}"
    repeated = re.search(r"(?:^|\s)(\S+)(?:\s+\1){15,}(?:\s|$)", text)
    return f"{repeated[1][:20]!r} is repeated without end" if repeated else None


def judge_answer(answer: Answer, expect: str | None) -> str | None:
    """What is wrong with the answer to QUESTION, or None. Without `expect` the model is none that could answer: any tokens do."""
    if answer.tokens < 1:
        return "the first answer was empty"
    if expect is None:
        return None
    bad = degenerate(answer.text)
    if bad:
        return f"the first answer is degenerate: {bad}: {answer.text[:120]!r}"
    if expect.casefold() not in answer.text.casefold():
        return f"asked {QUESTION!r}, the model did not say {expect!r} but {answer.text[:200]!r}"
    return None


def judge_drafts(before: Reading | None, after: Reading | None) -> str | None:
    """What is wrong with the drafter's work between two readings; None also where it drafted too little to be judged."""
    if before is None or after is None or None in (after.drafts, after.draft_tokens, after.accepted_tokens):
        return None
    drafts, tokens, accepted = (
        (getattr(after, name) or 0) - (getattr(before, name) or 0) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if tokens >= _MIN_DRAFT_TOKENS and accepted <= 0:
        return f"none of {tokens:.0f} draft tokens was accepted"
    old = before.accepted_at + (0.0,) * len(after.accepted_at)
    steps = [new - was for was, new in zip(old, after.accepted_at, strict=False)]
    if drafts >= _MIN_DRAFTS_FOR_ONE and steps and all(step == drafts for step in steps):
        return f"all {drafts:.0f} drafts were accepted whole, which real text never gives: the verification is broken"
    return None


def check(server: Server, plan: Plan) -> str | None:
    """What is wrong with the server, or None."""
    before = health.counters(server) if plan.drafts else None
    answer, refused = ask(server, QUESTION, _THINKING_TOKENS if plan.thinks else _TOKENS)
    wrong = refused or judge_answer(answer, plan.expect)
    if wrong or not plan.drafts:
        return wrong
    prose, refused = ask(server, PROSE, _PROSE_TOKENS)
    bad = degenerate(prose.text) if plan.expect else None
    return refused or judge_drafts(before, health.counters(server)) or (f"the second answer is degenerate: {bad}" if bad else None)


def ask(server: Server, question: str, max_tokens: int) -> tuple[Answer, str | None]:
    """One greedy answer, and why there is none."""
    body = {"model": server.model, "messages": [{"role": "user", "content": question}], "max_tokens": max_tokens, "temperature": 0}
    status, text = health.fetch(server, "/v1/chat/completions", body, _DEADLINE_S)
    if status != 200:
        return Answer("", 0), f"the first question was not answered (status {status}): {text.strip()[:300]}"
    try:
        plain = json.loads(text)
        message = plain["choices"][0]["message"]
        words = [message.get(name) or "" for name in ("reasoning", "reasoning_content", "content")]
        return Answer("\n".join(word for word in words if word), int(plain["usage"]["completion_tokens"])), None
    except (ValueError, LookupError, TypeError) as error:
        return Answer("", 0), f"the first answer is no chat completion ({error!r}): {text.strip()[:300]}"
