"""From receipts of two arms to a comparison: gates, tests, verdict, scope."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.campaign.plan import Plan
from bench.campaign.runner import Campaign, finished, state
from bench.compare import verdict
from bench.compare.gates import changed_settings, unlike
from bench.compare.load import boots, key, primary, side_figures
from bench.compare.model import ArmFacts, Comparison, ControlResult, Sealed
from bench.compare.verdict import Pair, Rules
from bench.errors import BadRequest, InvalidMeasurement
from bench.provenance import tool
from bench.receipt import Receipt, seal_of, shown


@dataclass(frozen=True)
class Question:
    """Baseline and candidate receipts, the rules, and the receipts of an A/A control where the plan has one."""

    a: Sequence[Receipt]
    b: Sequence[Receipt]
    rules: Rules
    differs: tuple[str, ...] = ()
    control: Sequence[Receipt] = ()
    plan: Plan | None = None
    notes: tuple[str, ...] = ()


def of_plan(campaign: Campaign, receipts: Sequence[Receipt], differs: tuple[str, ...] = ()) -> Question:
    """The question that a plan asks. Before the last slot is filled the answer is descriptive: looking early and stopping when it
    pleases would break the test's level. Raises InvalidMeasurement for a receipt older than the plan, BadRequest when an arm has none yet.
    """
    plan, now = campaign.plan, state(campaign)
    if not set(plan.pair) <= {r.arm for r in receipts}:
        raise BadRequest(f"plan {plan.id}: not every arm has a finished slot yet\ntry: invoke bench-run {shown(campaign.folder)}")
    early = [receipt.id for receipt in receipts if receipt.created_utc < plan.created_utc]
    if early:
        raise InvalidMeasurement(f"receipt {early[0]}: field created_utc: is before its plan was made")
    first, second = plan.pair
    left = len(plan.order) - len(now.finished)
    again = [f"slot {slot + 1} needed {count} attempts (see journal.jsonl)" for slot, count in now.repeated.items()]
    return Question(
        a=[r for r in receipts if r.arm == first],
        b=[r for r in receipts if r.arm == second],
        rules=Rules(
            primary=tuple(dict.fromkeys(key(r) for r in receipts if r.protocol.phase in plan.rules.primary)),
            margin=plan.rules.margin,
            alpha=plan.rules.alpha,
            blocks=dict(enumerate(plan.blocks)) if plan.test == "block" else None,
            doubt=f"the plan is unfinished: {left} of {len(plan.order)} slots are open" if left else "",
        ),
        differs=differs,
        control=[r for r in receipts if plan.control and r.arm == plan.control.name],
        plan=plan,
        notes=tuple(again),
    )


def planned_receipts(campaign: Campaign) -> list[Path]:
    """The files of the finished slots."""
    return [path for made in finished(campaign).values() for path in made]


def compare(question: Question) -> Comparison:
    """The comparison. Raises InvalidMeasurement naming every field in which the arms are unlike."""
    _refuse(question)
    pairs = _pairs(question.a, question.b)
    named = [name for name in question.rules.primary if name not in {pair.name for pair in pairs}]
    if named:
        raise InvalidMeasurement(
            f"field protocol.phase: no receipt of the primary endpoint {named[0]}; there are {', '.join(p.name for p in pairs)}"
        )
    results = tuple(verdict.judge(pairs, question.rules))
    controls = _controls(question)
    failed = tuple(f"{r.id}: {gate}" for r in question.b for gate in r.failed_gates)
    said = verdict.overall(results, controls, failed)
    changed = changed_settings(question.a[0], question.b[0])
    return Comparison(
        id=secrets.token_hex(6),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool=tool(),
        plan=question.plan.seal if question.plan else None,
        kit=question.a[0].system.kit,
        model=question.a[0].model,
        alpha=question.rules.alpha,
        margin=question.rules.margin,
        differs=question.differs,
        a=_facts(question.a, {name: pair[0] for name, pair in changed.items()}),
        b=_facts(question.b, {name: pair[1] for name, pair in changed.items()}),
        endpoints=results,
        control=controls,
        failed_gates=failed,
        notes=(*question.notes, *_work_notes(question)),
        verdict=said.text,
        scope=_scope(question, pairs),
        exit_code=said.exit_code,
    )


def seal(comparison: Comparison) -> Sealed:
    plain = comparison.model_dump(mode="json")
    return Sealed.model_validate({**plain, "seal": seal_of(plain)})


def _refuse(question: Question) -> None:
    for name, receipts in (("baseline", question.a), ("candidate", question.b)):
        if not receipts:
            raise InvalidMeasurement(f"field arm: no receipt of the {name}")
    reasons = unlike(question.a, question.b, question.differs)
    reasons += [f"receipt {r.id}: field failed_gates: the baseline failed {gate}" for r in question.a for gate in r.failed_gates]
    if question.control:
        reasons += [f"control: {reason}" for reason in unlike(question.a, question.control, question.differs)]
        changed = changed_settings(question.a[0], question.control[0])
        reasons += [f"control: field system.settings.{name} differs: {old!r} and {new!r}" for name, (old, new) in changed.items()]
    if reasons:
        raise InvalidMeasurement("the arms must not be compared:\n" + "\n".join(reasons))


def _pairs(a: Sequence[Receipt], b: Sequence[Receipt]) -> list[Pair]:
    names = list(dict.fromkeys(key(receipt) for receipt in a))
    return [_pair(name, [r for r in a if key(r) == name], [r for r in b if key(r) == name]) for name in names]


def _pair(name: str, a: Sequence[Receipt], b: Sequence[Receipt]) -> Pair:
    main = primary(a[0])
    return Pair(name, main.name if main else "", boots(a), boots(b), side_figures(a), side_figures(b))


def _controls(question: Question) -> tuple[ControlResult, ...] | None:
    if not question.control or question.plan is None:
        return None
    tolerance = question.plan.rules.control_tolerance
    return tuple(verdict.control(pair, tolerance[pair.name.partition(" ")[0]]) for pair in _pairs(question.a, question.control))


def _facts(receipts: Sequence[Receipt], settings: dict[str, str | int | float | bool | None]) -> ArmFacts:
    names = sorted({receipt.arm for receipt in receipts})
    return ArmFacts(name="+".join(names), settings=settings, receipts={receipt.id: receipt.seal for receipt in receipts})


def _work_notes(question: Question) -> list[str]:
    """Unequal work is no fault of the tool, but a shorter answer is measured at a shorter context."""
    found = []
    for name in dict.fromkeys(key(receipt) for receipt in question.a):
        tokens = [_tokens([r for r in receipts if key(r) == name]) for receipts in (question.a, question.b)]
        if tokens[0] and tokens[1] and abs(tokens[1] / tokens[0] - 1) > 0.02:
            found.append(f"{name}: unequal work: {tokens[0]:.0f} and {tokens[1]:.0f} tokens per run")
    return found


def _tokens(receipts: Sequence[Receipt]) -> float | None:
    counts = [run.metrics.n_tokens for receipt in receipts for run in receipt.runs if run.metrics.n_tokens]
    return sum(counts) / len(counts) if counts else None


def _scope(question: Question, pairs: Sequence[Pair]) -> str:
    first = question.a[0]
    n = ", ".join(f"{pair.name}: {len(pair.a)} and {len(pair.b)} boots" for pair in pairs)
    planned = "order and rules fixed before the first run" if question.plan else "no plan: the order of boots was not fixed before"
    return (
        f"Holds for kit {first.system.kit}, model {first.model}, these workloads and settings ({n}; {planned}). "
        "Says nothing of other prompts, context depths, concurrency, kits, or of answer quality."
    )
