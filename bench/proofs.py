"""What makes a run usable: was the server ours alone, and is the output language rather than garbage? Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from bench.counters import Counters, delta
from bench.measure import RequestMetrics, ratio
from bench.trace import Fact

_NAN = re.compile(r"\bnan\b", re.IGNORECASE)
# A unit of up to 40 characters, twelve times in a row. Counting and tables vary from unit to unit and do not match.
_LOOP = re.compile(r"(?=(\S[\s\S]{0,39}?)\1{11})")


class Isolation(Fact):
    """Proof from the server's counters that nobody else used it during a run; None where the server offers no counter.

    idle: no request ran or waited before and after. own_generation / own_prompt: the totals moved by exactly this request's
    tokens. `held` is False when any of them is False, None when none could be checked.
    """

    idle: bool | None
    own_generation: bool | None
    own_prompt: bool | None
    held: bool | None


def isolation(before: Counters | None, after: Counters | None, *own: RequestMetrics) -> Isolation:
    """Compare two counter readings with what this client knows it caused between them: one request, or all of a round."""
    moved = delta(before, after)
    idle = None if before is None or after is None else _idle(before, after)
    generation = _same(moved.generation_tokens, _total(metrics.n_tokens for metrics in own))
    prompt = _same(moved.prompt_tokens, _total(metrics.prompt_tokens for metrics in own))
    known = [check for check in (idle, generation, prompt) if check is not None]
    return Isolation(idle=idle, own_generation=generation, own_prompt=prompt, held=all(known) if known else None)


def _idle(before: Counters, after: Counters) -> bool | None:
    gauges = (before.running, before.waiting, after.running, after.waiting)
    known = [gauge for gauge in gauges if gauge is not None]
    return not any(known) if known else None


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum, or None when any part is unknown."""
    known = list(counts)
    return sum(n for n in known if n is not None) if known and None not in known else None


def _same(moved: int | None, own: int | None) -> bool | None:
    return None if moved is None or own is None else moved == own


class CacheProof(Fact):
    """What share of a prompt the server took from its prefix cache, read from data and never from intent. None: not stated.

    source: the request's own usage, else the server's counters around a request that ran alone. share = cached / prompt tokens.
    label: cold, when no more was cached than the part that every request shares (chat template, see `common_tokens`) or 5 %; warm,
    when all but 5 % was; else partial (an edited prompt, or a cache of coarse pages). prefill_tok_s: uncached prompt tokens / TTFT.
    """

    source: Literal["usage", "counters"] | None
    cached_tokens: int | None
    share: float | None
    label: Literal["cold", "warm", "partial"] | None
    prefill_tok_s: float | None


_COLD_SHARE, _WARM_SHARE = 0.05, 0.95


def cache_proof(metrics: RequestMetrics, counted: int | None, common_tokens: int | None) -> CacheProof:
    """`counted`: how far the server's counter of cached tokens moved while this request ran alone.

    common_tokens: an upper bound for the tokens that any two requests have in common, such as the prompt tokens of the warm-up.
    """
    cached = metrics.cached_tokens if metrics.cached_tokens is not None else counted
    source: Literal["usage", "counters"] | None = None if cached is None else "counters" if metrics.cached_tokens is None else "usage"
    prompt = metrics.prompt_tokens
    uncached = None if prompt is None or cached is None else prompt - cached
    return CacheProof(
        source=source,
        cached_tokens=cached,
        share=ratio(cached, prompt),
        label=_label(cached, prompt, common_tokens or 0),
        prefill_tok_s=ratio(uncached, metrics.ttft_s),
    )


def _label(cached: int | None, prompt: int | None, common: int) -> Literal["cold", "warm", "partial"] | None:
    if cached is None or not prompt:
        return None
    if cached <= max(common, _COLD_SHARE * prompt):
        return "cold"
    return "warm" if cached >= _WARM_SHARE * prompt else "partial"


class Health(Fact):
    """Faults of one answer's text. Words are matched on word boundaries: "finance" holds no nan.

    A loop is no fault of the server by itself (small models fall into them under greedy decoding), but it makes the next
    tokens predictable and so inflates acceptance: it is noted, and fails only a probe.
    """

    empty: bool
    nan: bool
    broken_utf8: bool
    loop: bool

    @property
    def sound(self) -> bool:
        return not (self.empty or self.nan or self.broken_utf8)


def health(text: str) -> Health:
    """Check an answer. nan: the word stands alone at least once. broken_utf8: a replacement character. loop: see _LOOP."""
    return Health(
        empty=not text.strip(),
        nan=bool(_NAN.search(text)),
        broken_utf8="\ufffd" in text.rstrip("\ufffd"),  # a last character cut by max_tokens is no fault
        loop=bool(_LOOP.search(text[-4000:])),
    )


class Probe(Fact):
    """A question whose answer must hold each of `expect` as whole words, in this order, in any letter case."""

    id: str
    question: str
    max_tokens: int
    expect: tuple[str, ...]


PROBES = (
    Probe(id="capital", question="Name the capital city of France.", max_tokens=64, expect=("paris",)),
    Probe(id="count", question="Count from 1 to 9, with a comma between the numbers.", max_tokens=64, expect=tuple("123456789")),
    Probe(id="sky", question="In one sentence: what colour is a clear sky at noon?", max_tokens=64, expect=("blue",)),
)


class ProbeResult(Fact):
    """A probe's answer and verdict; `passed` also needs a sound text."""

    id: str
    text: str
    passed: bool
    error: str | None = None


def judge(id: str, text: str, error: str | None) -> ProbeResult:
    """Whether `text` is a good answer to the probe called `id`; an unknown probe (of another version) never passes."""
    probe = next((probe for probe in PROBES if probe.id == id), None)
    pattern = r"[\s\S]*?".join(rf"\b{re.escape(word)}\b" for word in probe.expect) if probe else r"(?!)"
    passed = error is None and re.search(pattern, text, re.IGNORECASE) is not None and _readable(text)
    return ProbeResult(id=id, text=text, passed=passed, error=error)


def _readable(text: str) -> bool:
    found = health(text)
    return found.sound and not found.loop
