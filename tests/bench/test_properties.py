"""Properties that hold for any measurement, and parsers that meet any input. Derandomized: the same examples each time."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import counters
from bench.errors import InvalidMeasurement
from bench.groups import Lane, group
from bench.measure import measure
from bench.receipt import canonical, read, seal, seal_of
from bench.trace import Trace, Usage
from tests.bench.rounds_sample import grouped
from tests.bench.samples import run, sample

quick = settings(derandomize=True, max_examples=150, deadline=None, database=None)

# Times in binary fractions, so that shifting and scaling by powers of two is exact.
TICKS = st.integers(1, 64).map(lambda n: n / 16)
LANES = st.lists(
    st.tuples(st.integers(0, 32).map(lambda n: n / 16), st.lists(st.tuples(TICKS, st.integers(1, 8)), min_size=1, max_size=12)),
    min_size=1,
    max_size=6,
)


def made(start_s: float, chunks: list[tuple[float, int]], scale: float = 1.0) -> Lane:
    """Chunks as (gap before, tokens in it)."""
    t, n, times, tokens = 0.0, 0, [], []
    for gap, more in chunks:
        t, n = t + gap, n + more
        times.append(t * scale)
        tokens.append(n)
    trace = Trace(
        t_s=tuple(times), kinds="c" * len(times), tokens=tuple(tokens), chunk_counts="usage", t_end_s=times[-1],
        usage=Usage(prompt_tokens=5, completion_tokens=n, cached_tokens=0), finish_reason="length",
    )  # fmt: skip
    return Lane(start_s * scale, trace, measure(trace))


@quick
@given(LANES, st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_scaling_all_times_scales_the_figures(lanes: Any, k: float) -> None:
    one, other = group([made(*each) for each in lanes]), group([made(start_s, chunks, k) for start_s, chunks in lanes])
    for name in ("wall_tok_s", "steady_tok_s"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None)
        assert a is None or b == pytest.approx(a / k, rel=1e-12)
    for name in ("wall_s", "steady_s", "ttft_p50_s", "ttft_max_s"):
        a, b = getattr(one, name), getattr(other, name)
        assert a is None or b == pytest.approx(a * k, rel=1e-12)
    assert (one.tokens, one.steady_tokens, one.cut_tokens) == (other.tokens, other.steady_tokens, other.cut_tokens)
    assert one.fairness == other.fairness or other.fairness == pytest.approx(one.fairness)


@quick
@given(LANES, st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_scaling_the_times_of_a_request_scales_every_figure_of_it(lanes: Any, k: float) -> None:
    """Each figure is a time, a rate or a count, and its name says which."""
    start_s, chunks = lanes[0]
    one, other = (made(start_s, chunks, scale).metrics.model_dump() for scale in (1.0, k))
    for name, value in one.items():
        power = -1 if name.endswith("_tok_s") else 1 if name.endswith("_s") else 0
        assert (value is None) == (other[name] is None), name
        assert not isinstance(value, float | int) or other[name] == pytest.approx(value * k**power, rel=1e-12), name
    assert one["ttft_s"] is not None


@quick
@given(LANES, st.randoms(use_true_random=False))
def test_the_order_of_lanes_changes_no_figure(lanes: Any, rng: Any) -> None:
    given_lanes = [made(*each) for each in lanes]
    shuffled = rng.sample(given_lanes, len(given_lanes))
    one, other = group(given_lanes).model_dump(), group(shuffled).model_dump()
    assert sorted(map(str, one.pop("lane_tok_s"))) == sorted(map(str, other.pop("lane_tok_s")))
    assert one == other


@quick
@given(LANES)
def test_bounds_of_group_figures(lanes: Any) -> None:
    """All tokens are counted once, none twice; the steady span lies inside the wall; the fastest lane is no slower than the slowest."""
    found = group([made(*each) for each in lanes])
    assert found.tokens == sum(n for _, chunks in lanes for _, n in chunks)
    if found.steady_s is not None:
        assert found.wall_s is not None
        assert found.steady_tokens is not None
        assert 0 < found.steady_s <= found.wall_s
        assert 0 <= found.steady_tokens <= (found.tokens or 0)
    assert found.fairness is None or 0 < found.fairness <= 1


@quick
@given(st.permutations(range(4)))
def test_the_order_of_runs_changes_no_summary(order: list[int]) -> None:
    payload = sample(run(0, 25.0), run(1, 40.0), run(2, 50.0), run(3, 31.25))
    shuffled = sample(*(payload.runs[i] for i in order))
    assert shuffled.summary == payload.summary
    assert shuffled.valid == payload.valid


@quick
@given(st.sampled_from([0.5, 2.0, 4.0]))
def test_scaling_a_receipt_scales_its_summary(k: float) -> None:
    one, other = grouped().summary.group, grouped(k).summary.group
    assert one is not None
    assert other is not None
    for name in ("wall_tok_s", "steady_tok_s"):
        assert getattr(other, name).median == pytest.approx(getattr(one, name).median / k)
    assert other.fairness == one.fairness


# ---------------------------------------------------------------- parsers

VALUES = st.one_of(st.integers(-5, 10**9).map(str), st.sampled_from(["NaN", "+Inf", "-Inf", "1e3", "0x10", "", "1.5", "ten", "1 2 3"]))
NAMES = st.sampled_from(
    ["vllm:generation_tokens_total", "vllm:prompt_tokens_total", "llamacpp:tokens_predicted_total", "vllm:num_requests_running",
     "vllm:num_preemptions_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total", "other", "# HELP vllm:x", "vllm:gen_created"]
)  # fmt: skip
LABELS = st.sampled_from(["", "{}", '{engine="0"}', '{engine="1",position="3"}', '{position="x"}', "{broken", '{a="}"}', '{a="\\""}'])
LINES = st.one_of(st.tuples(NAMES, LABELS, VALUES).map(lambda parts: f"{parts[0]}{parts[1]} {parts[2]}"), st.text(max_size=60))


@quick
@given(st.lists(LINES, max_size=12).map("\n".join))
def test_any_metrics_text_is_read_or_refused_and_zero_only_where_zero_is_stated(text: str) -> None:
    found = counters.parse(text)
    if found is None:
        return
    stated = {line.split("{")[0].split(" ")[0] for line in text.splitlines()}
    known = {
        "vllm": {"generation_tokens": "vllm:generation_tokens_total", "preemptions": "vllm:num_preemptions_total"},
        "llamacpp": {"generation_tokens": "llamacpp:tokens_predicted_total"},
    }[found.dialect]
    for ours, theirs in known.items():
        assert getattr(found, ours) is None or theirs in stated
    assert found.dialect == "vllm" or found.preemptions is None


def test_a_damaged_position_reserves_no_memory() -> None:
    text = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="999999999999"} 1\nvllm:generation_tokens_total 2'
    found = counters.parse(text)
    assert found is not None
    assert (found.generation_tokens, found.accepted_per_position) == (2, ())


@quick
@given(st.binary(max_size=400))
def test_any_bytes_as_metrics(data: bytes) -> None:
    assert counters.parse(data.decode(errors="replace")) is None or b"vllm:" in data or b"llamacpp:" in data


SOUND = seal(grouped()).model_dump(mode="json")
ODD: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(place for key, value in inner for place in places(value, (*at, key)))] if at else [
        place for key, value in inner for place in places(value, (key,))
    ]  # fmt: skip


PLACES = places(SOUND)


@settings(derandomize=True, max_examples=300, deadline=None, database=None)
@given(st.sampled_from(PLACES), ODD, st.booleans())
def test_a_receipt_with_anything_put_anywhere_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: Any, odd: Any, reseal: bool
) -> None:
    plain = json.loads(json.dumps(SOUND))
    inner = plain
    for key in place[:-1]:
        inner = inner[key]
    changed = inner[place[-1]] != odd or type(inner[place[-1]]) is not type(odd)
    inner[place[-1]] = odd
    if reseal:
        plain["seal"] = seal_of(plain)
    path = _file(tmp_path_factory, canonical(plain))
    with contextlib.suppress(InvalidMeasurement):
        receipt = read(path)
        assert reseal or not changed
        assert all(math.isfinite(run.trace.t_end_s) for run in receipt.runs)


@quick
@given(st.binary(max_size=300))
def test_any_bytes_as_a_receipt(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = _file(tmp_path_factory, "")
    path.write_bytes(data)
    with pytest.raises(InvalidMeasurement):
        read(path)


def _file(factory: pytest.TempPathFactory, text: str) -> Path:
    path = factory.getbasetemp() / "r.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path
