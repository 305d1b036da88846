"""From boots to verdicts, by rules fixed beforehand. Pure.

FASTER: the (Holm-adjusted) p is at most alpha and the change is positive; SLOWER the same downwards, or the whole interval lies
below -margin; NOT SLOWER: the interval's lower end is above -margin; else INCONCLUSIVE. Fewer than four boots of an arm, an
unfinished plan, or an order of boots that cannot tell drift from effect: DESCRIPTIVE ONLY.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.compare import stats
from bench.compare.load import Boot
from bench.compare.model import BootValue, ControlResult, EndpointResult, Interval, TailResult, TestResult, Word

MIN_BOOTS = 4
# A tail counts as changed from here on: share of slow runs up, or 10th-percentile ratio down, by this much.
SLOW_SHARE_STEP, LOW_RATIO_STEP = 0.10, 0.05


@dataclass(frozen=True)
class Rules:
    """What decides. blocks: slot -> block when the plan's test permutes inside blocks. doubt: why all is descriptive only, or "".

    draws: of the bootstrap, which decides nothing.
    """

    primary: tuple[str, ...]
    margin: float = 0.02
    alpha: float = stats.ALPHA
    blocks: Mapping[int, int] | None = None
    doubt: str = ""
    draws: int = 10_000


@dataclass(frozen=True)
class Pair:
    """One endpoint's boots of both arms, and the side figures of each."""

    name: str
    figure: str
    a: Sequence[Boot]
    b: Sequence[Boot]
    side_a: dict[str, float | None] = field(default_factory=dict)
    side_b: dict[str, float | None] = field(default_factory=dict)

    @property
    def ordered(self) -> list[Boot]:
        return sorted([*self.a, *self.b], key=lambda boot: (boot.slot if boot.slot is not None else -1, boot.first_utc, boot.boot))


def design(pair: Pair, blocks: Mapping[int, int] | None = None) -> stats.Design:
    """The boots as the test sees them; blocks need the slots of a plan."""
    ordered, of_b = pair.ordered, {boot.boot for boot in pair.b}
    numbers = None if blocks is None else tuple(blocks[boot.slot] for boot in ordered if boot.slot is not None)
    return stats.Design(tuple(math.log(boot.value) for boot in ordered), tuple(boot.boot in of_b for boot in ordered), numbers)


def order_doubt(pair: Pair) -> str:
    """Why the order of the boots confounds drift with the effect; "" when the arms' mean places differ by at most one."""
    places = {boot.boot: at for at, boot in enumerate(pair.ordered)}
    a = sum(places[boot.boot] for boot in pair.a) / len(pair.a)
    b = sum(places[boot.boot] for boot in pair.b) / len(pair.b)
    if abs(a - b) <= 1:
        return ""
    word = "".join("B" if boot in pair.b else "A" for boot in pair.ordered)
    return f"the boots ran in the order {word}: a drift would look like a difference (plan with invoke bench-plan)"


def judge(pairs: Sequence[Pair], rules: Rules) -> list[EndpointResult]:
    """Every endpoint's result; Holm over the primary ones."""
    designs = [design(pair, rules.blocks) for pair in pairs]
    shifts = [stats.shift(each, rules.alpha) for each in designs]
    first = [i for i, pair in enumerate(pairs) if pair.name in rules.primary]
    holm = dict(zip(first, stats.holm([shifts[i].p for i in first]), strict=True))
    return [_result(pair, designs[i], shifts[i], holm.get(i), rules) for i, pair in enumerate(pairs)]


def _result(pair: Pair, dealt: stats.Design, shift: stats.Shift, holm: float | None, rules: Rules) -> EndpointResult:
    runs_a, runs_b = [boot.runs for boot in pair.a], [boot.runs for boot in pair.b]
    low, high = stats.bootstrap([_logs(runs) for runs in runs_a], [_logs(runs) for runs in runs_b], rules.draws)
    word, why = _word(pair, shift, holm, rules)
    places = {boot.boot: at for at, boot in enumerate(pair.ordered)}
    return EndpointResult(
        name=pair.name,
        figure=pair.figure,
        primary=holm is not None,
        a=tuple(BootValue(boot=x.boot, at=places[x.boot], value=x.value, runs=x.runs) for x in pair.a),
        b=tuple(BootValue(boot=x.boot, at=places[x.boot], value=x.value, runs=x.runs) for x in pair.b),
        change=math.expm1(shift.estimate),
        interval=_interval(shift.low, shift.high),
        bootstrap=_interval(low, high),
        boot_sd=stats.boot_sd(dealt),
        detectable=None if (least := stats.detectable(dealt)) is None else math.expm1(least),
        test=TestResult(
            kind="free" if dealt.blocks is None else "block",
            splits=shift.splits,
            p=shift.p,
            p_error=shift.error,
            p_smallest=shift.p_smallest,
            p_holm=holm,
        ),
        tail=tail_verdict(runs_a, runs_b),
        side_a=pair.side_a,
        side_b=pair.side_b,
        verdict=word,
        why=why,
    )


def _logs(runs: Sequence[float]) -> list[float]:
    return [math.log(value) for value in runs]


def _interval(low: float, high: float) -> Interval:
    """Log limits as fractions; infinite ones as None."""
    return Interval(low=math.expm1(low) if math.isfinite(low) else None, high=math.expm1(high) if math.isfinite(high) else None)


def _word(pair: Pair, shift: stats.Shift, holm: float | None, rules: Rules) -> tuple[Word, str]:
    doubt = _doubt(pair, rules)
    if doubt:
        return "DESCRIPTIVE ONLY", doubt
    margin = math.log1p(-rules.margin)
    found = holm is not None and holm <= rules.alpha + 1e-12
    if found and shift.low > 0:  # a p of alpha or less leaves 0 outside the interval
        return "FASTER", f"p = {holm:.3g}"
    if found:
        return "SLOWER", f"p = {holm:.3g}"
    if shift.high < margin:
        return "SLOWER", f"the whole interval is below -{rules.margin:.1%}"
    if shift.low > margin:
        return "NOT SLOWER", f"the whole interval is above -{rules.margin:.1%}"
    return "INCONCLUSIVE", f"the interval reaches below -{rules.margin:.1%}, and no difference is shown"


def _doubt(pair: Pair, rules: Rules) -> str:
    if rules.doubt:
        return rules.doubt
    fewest = min(len(pair.a), len(pair.b))
    if fewest < MIN_BOOTS:
        return f"{fewest} boots of an arm; {MIN_BOOTS} are needed before any difference can reach p = {rules.alpha:g}"
    return "" if rules.blocks is not None else order_doubt(pair)


def tail_verdict(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> TailResult:
    """worse: the tail changed by a step (see SLOW_SHARE_STEP) and a permutation of the boots' slow shares says p <= 0.05, one-sided.

    suspect: it changed by a step, which chance may explain. A slow mode hits some runs and leaves every median alone.
    """
    before, after, p = stats.tail(a), stats.tail(b), stats.tail_p(a, b)
    stepped = (
        after.slow_share - before.slow_share >= SLOW_SHARE_STEP - 1e-12 or before.low_ratio - after.low_ratio >= LOW_RATIO_STEP - 1e-12
    )
    return TailResult(
        slow_share_a=before.slow_share,
        slow_share_b=after.slow_share,
        low_ratio_a=before.low_ratio,
        low_ratio_b=after.low_ratio,
        p=p,
        verdict="fine" if not stepped else "worse" if p <= stats.ALPHA and after.slow_share > before.slow_share else "suspect",
    )


def control(pair: Pair, tolerance: float) -> ControlResult:
    """How far the control is from the arm that it repeats; pair.a: the arm, pair.b: the control."""
    change = math.expm1(stats.hodges_lehmann(design(pair)))
    return ControlResult(endpoint=pair.name, change=change, tolerance=tolerance, held=abs(change) <= tolerance)


@dataclass(frozen=True)
class Overall:
    """The verdict over all endpoints in one sentence, and the exit code."""

    text: str
    exit_code: int


def overall(results: Sequence[EndpointResult], controls: Sequence[ControlResult] | None, failed_gates: Sequence[str]) -> Overall:
    """1 when anything got worse; 4 when anything is undecided; else 0."""
    if failed_gates:
        return Overall(f"REGRESSION: the candidate failed an output gate: {failed_gates[0]}", 1)
    if any(result.verdict == "DESCRIPTIVE ONLY" for result in results):
        return Overall(f"DESCRIPTIVE ONLY: {next(r.why for r in results if r.verdict == 'DESCRIPTIVE ONLY')}", 4)
    drifted = [each for each in controls or () if not each.held]
    if drifted:
        far = drifted[0]
        return Overall(
            f"INCONCLUSIVE: the control differs from itself by {far.change:+.1%} in {far.endpoint}, more than {far.tolerance:.1%}", 4
        )
    worse = [r.name for r in results if r.verdict == "SLOWER"] + [f"{r.name} (slow runs)" for r in results if r.tail.verdict == "worse"]
    if worse:
        return Overall(f"REGRESSION: {', '.join(worse)}", 1)
    open_ends = [r.name for r in results if r.verdict == "INCONCLUSIVE"] + [
        f"{r.name} (slow runs)" for r in results if r.tail.verdict == "suspect"
    ]
    faster = [r.name for r in results if r.verdict == "FASTER"]
    gain = f"FASTER in {', '.join(faster)}" if faster else ""
    if open_ends:
        return Overall(f"INCONCLUSIVE: {f'{gain}, but ' if gain else ''}undecided: {', '.join(open_ends)}", 4)
    return Overall(gain or "NOT SLOWER within the margin, and no gain shown", 0)
