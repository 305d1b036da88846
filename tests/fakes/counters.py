"""GET /metrics: counters that move by what was really served, in the dialect of vLLM or of llama-server."""

from collections import Counter
from collections.abc import Iterable, Iterator

from tests.fakes.script import Reply, Scenario

SPEC = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"


def moved(reply: Reply, tokens: int, whole: int) -> Counter[str]:
    """What one request has added to the totals once `tokens` of its `whole` tokens are out: the prompt parts in full,
    the speculation and foreign parts in proportion (in full for a reply without tokens)."""
    total = Counter(generation=tokens, prompt=reply.prompt_tokens, cached=reply.cached_tokens)
    total["generation"] += _share(reply.foreign_tokens, tokens, whole)
    if reply.spec:
        amounts = (reply.spec.drafts, reply.spec.draft_tokens, reply.spec.accepted)
        total.update({name: _share(n, tokens, whole) for name, n in zip(SPEC, amounts, strict=True)})
        total.update({f"pos{i}": _share(n, tokens, whole) for i, n in enumerate(reply.spec.per_position)})
    return total


def _share(amount: int, tokens: int, whole: int) -> int:
    return amount * tokens // whole if whole else amount


class Counters:
    """Totals of the server. Mutable; one event loop only. Work is done at a scrape, not at each send."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._scrapes = 0
        self._ended: Counter[str] = Counter()
        self._meters: set[Meter] = set()

    @property
    def running(self) -> int:
        return sum(meter.running for meter in self._meters)

    @property
    def total(self) -> Counter[str]:
        return sum((meter.moved() for meter in self._meters), self._ended)

    def start(self, meter: "Meter") -> None:
        self._meters.add(meter)

    def end(self, meter: "Meter") -> None:
        """Fold a finished request in, so that a scrape does not grow with the number of requests."""
        if meter in self._meters:
            self._meters.remove(meter)
            self._ended += meter.moved()

    def text(self) -> str:
        """The scrape. Raises ValueError where the scenario has no metrics."""
        self._scrapes += 1
        if self._scenario.metrics is None:
            raise ValueError("this scenario has no metrics")
        dialect = _vllm if self._scenario.metrics == "vllm" else _llamacpp
        return "\n".join(dialect(self, self._scenario)) + "\n"

    def gauges(self) -> tuple[int, int]:
        """(running, waiting), with the somebody else of a busy server."""
        limit = self._scenario.busy_scrapes
        if limit is not None and self._scrapes > limit:
            return self.running, 0
        return self.running + self._scenario.initial_running, self._scenario.initial_waiting

    def positions(self) -> int:
        """Number of per-position series: known from the script, as a server knows its draft length from the start."""
        return max((len(reply.spec.per_position) for reply in self._scenario.replies if reply.spec), default=0)

    def has_spec(self) -> bool:
        return any(reply.spec for reply in self._scenario.replies)


class Meter:
    """One request's part in the counters. Set `tokens` before the bytes leave: a client that has read a token (or the
    end) then never scrapes an older state. None: nothing has been sent yet, not even the prompt counts."""

    def __init__(self, counters: Counters, reply: Reply) -> None:
        self._counters, self._reply = counters, reply
        self._whole = reply.tokens
        self.tokens: int | None = None
        self.running = True
        counters.start(self)

    def moved(self) -> Counter[str]:
        return Counter() if self.tokens is None else moved(self._reply, self.tokens, self._whole)

    def close(self) -> None:
        """The request no longer runs, though bytes may follow."""
        self.running = False

    def end(self) -> None:
        """Nothing follows."""
        self.running = False
        self._counters.end(self)


def _vllm(counters: Counters, scenario: Scenario) -> Iterator[str]:
    running, waiting = counters.gauges()
    total = counters.total
    yield from _vllm_series(scenario, "num_requests_running", "gauge", running)
    yield from _vllm_series(scenario, "num_requests_waiting", "gauge", waiting)
    yield from _vllm_series(scenario, "prompt_tokens", "counter", total["prompt"])
    yield from _vllm_series(scenario, "generation_tokens", "counter", total["generation"])
    yield from _vllm_series(scenario, "prefix_cache_queries", "counter", total["prompt"])
    yield from _vllm_series(scenario, "prefix_cache_hits", "counter", total["cached"])
    yield from _vllm_series(scenario, "num_preemptions", "counter", 0)
    if counters.has_spec():
        for name in SPEC:
            yield from _vllm_series(scenario, name, "counter", total[name])
        for i in range(counters.positions()):
            yield from _vllm_series(scenario, PER_POSITION, "counter", total[f"pos{i}"], f',position="{i}"')


def _vllm_series(scenario: Scenario, name: str, kind: str, value: int, label: str = "") -> Iterator[str]:
    """As prometheus_client writes: floats, `_total`, and a `_created` time that is no count. Summed over the engines
    the series give `value`."""
    suffix = "_total" if kind == "counter" else ""
    yield f"# HELP vllm:{name}{suffix} {name} of the scripted server."
    yield f"# TYPE vllm:{name}{suffix} {kind}"
    for engine, part in enumerate(_parts(value, scenario.engines)):
        labels = f'{{engine="{engine}",model_name="{scenario.models[0]}"{label}}}'
        yield f"vllm:{name}{suffix}{labels} {float(part)}"
        if kind == "counter":
            yield f"vllm:{name}_created{labels} 1.7600000001234e+09"


def _parts(value: int, engines: int) -> Iterable[int]:
    return [value - value // engines * (engines - 1)] + [value // engines] * (engines - 1)


def _llamacpp(counters: Counters, scenario: Scenario) -> Iterator[str]:
    """llama-server: `prompt_tokens_total` are the tokens really processed, without the cached ones."""
    running, waiting = counters.gauges()
    total = counters.total
    yield from _llama_head("prompt_tokens_total", "counter", total["prompt"] - total["cached"])
    yield from _llama_head("prompt_tokens_cached_total", "counter", total["cached"])
    yield from _llama_head("tokens_predicted_total", "counter", total["generation"])
    yield from _llama_head("requests_processing", "gauge", running)
    yield from _llama_head("requests_deferred", "gauge", waiting)
    if counters.has_spec():
        for name in SPEC:
            yield from _llama_head(f"{name}_total", "counter", total[name])
        for i in range(counters.positions()):
            yield f'llamacpp:{PER_POSITION}_total{{position="{i}"}} {total[f"pos{i}"]}'


def _llama_head(name: str, kind: str, value: int) -> Iterator[str]:
    yield f"# HELP llamacpp:{name} {name} of the scripted server."
    yield f"# TYPE llamacpp:{name} {kind}"
    yield f"llamacpp:{name} {value}"
