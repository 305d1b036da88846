"""The tasks of planned comparisons. Glue: it asks the launcher for fresh boots; the rest of bench knows no launcher."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cli
from bench.errors import BadRequest, InvalidMeasurement

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS, CAMPAIGNS = ROOT / "results" / "receipts", ROOT / "results" / "campaigns"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


@dataclass(frozen=True)
class CompareFlags:
    """Flags of `invoke compare`."""

    paths: str | None = cli.flag("the candidate's receipts, or with --arms all receipts: files or folders (default results/receipts/)")
    against: str | None = cli.flag("the baseline's receipts: files or folders, separated by commas")
    arms: str | None = cli.flag("BASELINE,CANDIDATE: take the receipts of these two arms")
    plan: str | None = cli.flag("a plan (file or folder): arms, order, endpoints and limits are the plan's")
    primary: str | None = cli.flag("endpoints to test, separated by commas (default: all); the others are guarded by --margin")
    margin: float = cli.flag("how much slower an endpoint may be, percent", 2, kind="number", low=0.01)
    differs: str | None = cli.flag("what the arms differ in beside settings: weights, engine, tool")
    json: bool = cli.flag("print the comparison receipt", False)
    out: str | None = cli.flag("write the comparison receipt to this file")


@cli.flag_task(CompareFlags)
def compare(ctx: Any, flags: CompareFlags) -> int:
    """Is the candidate faster than the baseline? Unit: boot. Exit 0 no regression, 1 regression, 3 unlike or invalid, 4 undecided."""
    from bench.compare import build, show
    from bench.compare.gates import DIFFERS
    from bench.sealed import write

    for word in (differs := _words(flags.differs)):
        cli.choice("differs", word, DIFFERS)
    comparison = build.seal(build.compare(_question(flags, differs)))
    if flags.out:
        write(comparison.model_dump(mode="json"), Path(flags.out))
    print(comparison.model_dump_json(indent=2) if flags.json else show.text(comparison))
    return comparison.exit_code


def _question(flags: CompareFlags, differs: tuple[str, ...]) -> Any:
    from bench.campaign.runner import opened
    from bench.compare import build
    from bench.compare.load import key, read_sound
    from bench.compare.verdict import Rules
    from bench.receipt import find

    if sum(bool(given) for given in (flags.against, flags.arms, flags.plan)) != 1:
        raise BadRequest("say what to compare: CANDIDATE --against BASELINE, or --arms BASELINE,CANDIDATE, or --plan PLAN")
    if flags.plan:
        if flags.primary or flags.paths:
            raise BadRequest("--plan fixes receipts, endpoints and margin; leave out the paths and --primary")
        campaign = opened(Path(flags.plan))
        return build.of_plan(campaign, read_sound(build.planned_receipts(campaign)), differs)
    paths = [Path(word) for word in (flags.paths or "").splitlines()] or [RECEIPTS]
    if flags.against:
        a, b = read_sound(find([Path(word) for word in _words(flags.against)])), read_sound(find(paths))
    else:
        a, b = _by_arm(flags, paths)
    primary = _words(flags.primary) or tuple(dict.fromkeys(key(receipt) for receipt in b))
    return build.Question(a, b, Rules(primary, flags.margin / 100), differs)


def _by_arm(flags: CompareFlags, paths: Sequence[Path]) -> tuple[list[Any], list[Any]]:
    """The receipts of the two arms; those of other arms do not matter, sound or not."""
    from bench.compare.load import read_sound
    from bench.receipt import find, read

    names = _words(flags.arms)
    if len(names) != 2:
        raise BadRequest(f"--arms takes two names, BASELINE,CANDIDATE; not '{flags.arms}'")
    files = find(paths)
    wanted = [path for path in files if _arm_of(path, read) in (*names, None)]
    receipts = read_sound(wanted)
    return [r for r in receipts if r.arm == names[0]], [r for r in receipts if r.arm == names[1]]


def _arm_of(path: Path, read: Any) -> str | None:
    try:
        return str(read(path).arm)
    except InvalidMeasurement:
        return None


_SET_RULE = cli.flag("ARM:NAME=VALUE, a setting of one arm; may be repeated").metadata


@dataclass(frozen=True)
class PlanFlags:
    """Flags of `invoke bench-plan`."""

    arms: str = cli.flag("BASELINE,CANDIDATE: names of the two arms", "")
    set: list[str] = field(default_factory=list, metadata=_SET_RULE)
    kit: str | None = cli.flag("the kit to run on (default: KIT, else local)")
    boots: int = cli.flag("fresh boots per arm", 4, kind="whole", low=1, high=50)
    phase: str = cli.flag("phases to measure at each boot, separated by commas", "prose")
    primary: str | None = cli.flag("phases whose difference is tested (default: all); the others are guarded by --margin")
    runs: int = cli.flag("measured requests per prompt at each boot", 5, kind="whole", low=1, high=1000)
    max_tokens: int | None = cli.flag("longest answer (default: the workload's own)", kind="whole", low=1)
    concurrency: tuple[int, ...] = cli.flag("lanes at once, as 1,4: one endpoint each (default: the phase's own)", (), kind="list", low=1)
    margin: float = cli.flag("how much slower an endpoint may be, percent", 2, kind="number", low=0.01)
    control: bool = cli.flag("boot the baseline twice as often, as an arm of its own that must not differ", False)
    test: str = cli.flag(
        "free: ABBA order; block: random order inside blocks, exact under any drift, 5 boots or more", "free", choices=("free", "block")
    )
    seed: int | None = cli.flag("seed of the order (default: drawn)", kind="whole", low=0)
    out: str | None = cli.flag("folder of the campaign (default results/campaigns/ID/)")


@cli.flag_task(PlanFlags, iterable=["set"])
def bench_plan(ctx: Any, flags: PlanFlags) -> None:
    """Write and seal the plan of a comparison before its first run: arms (--set ARM:NAME=VALUE), order, endpoints, limits."""
    from bench.campaign import plan as plans
    from bench.receipt import shown
    from cluster import settings

    names = _words(flags.arms)
    if len(names) != 2:
        raise BadRequest("--arms takes two names: BASELINE,CANDIDATE")
    given = _settings(flags.set, names)
    first, second = (plans.Arm(name=name, settings=given[name]) for name in names)
    kit = settings.load({"kit": flags.kit}).kit.name
    for arm in (first, second):
        _effective(kit, arm)
    work = plans.Work(phases=_words(flags.phase), runs=flags.runs, max_tokens=flags.max_tokens, concurrency=flags.concurrency)
    wanted = plans.Wanted(
        kit=kit,
        arms=(first, second),
        boots=flags.boots,
        work=work,
        primary=_words(flags.primary) or work.phases,
        margin=flags.margin / 100,
        test="block" if flags.test == "block" else "free",
        control=flags.control,
        seed=flags.seed,
    )
    plan = plans.make(wanted)
    folder = Path(flags.out) if flags.out else CAMPAIGNS / plan.id
    plans.write(plan, folder / "plan.json")
    print(f"{shown(folder / 'plan.json')}: {' '.join(plan.order)}")
    _say(f"next: invoke bench-run {shown(folder)}")


_SET = re.compile(r"([^:=]+):([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def _settings(given: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """`ARM:NAME=VALUE` words as arm -> setting -> value."""
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for word in given:
        match = _SET.fullmatch(word)
        if not match or match[1] not in found:
            raise BadRequest(f"--set {word}: takes ARM:NAME=VALUE with ARM one of {', '.join(names)}")
        found[match[1]][match[2].upper()] = match[3]
    return found


def _effective(kit: str, arm: Any) -> Any:
    """The arm's settings, known and allowed. Raises BadSettings; touches nothing."""
    from cluster import constraints, settings
    from cluster.budget import fit

    for name in arm.settings:
        if name not in settings.NAMES and name not in settings.ALIASES:
            raise BadRequest(f"arm {arm.name}: unknown setting {name}\ntry: invoke config lists every setting")
    effective = settings.load({"kit": kit, **arm.settings})
    constraints.check(effective)
    fit.refuse(effective)
    return effective


@cli.task(help={"paths": "the plan: its file or its folder", "status": "print how far it is, run nothing"})
def bench_run(ctx: Any, paths: str = "", status: bool = False) -> None:
    """Execute a plan: a fresh boot per slot, measured and tagged. Interrupted: call it again, it repeats that slot and goes on."""
    from bench.campaign import runner

    if not paths or "\n" in paths:
        raise BadRequest("name one plan\ntry: invoke bench-run results/campaigns/ID")
    campaign = runner.opened(Path(paths))
    if status:
        print("\n".join(runner.progress(campaign)))
        return
    arms = {arm.name: _effective(campaign.plan.kit, arm) for arm in campaign.plan.arms}
    try:
        runner.run(campaign, lambda arm, folder: _boot_and_measure(campaign.plan, arms[arm.name], arm, folder), _say)
    finally:
        _down(next(iter(arms.values())))


def _boot_and_measure(plan: Any, effective: Any, arm: Any, folder: Path) -> list[Any]:
    """Restart the kit with the arm's settings, then measure every phase of the plan."""
    from bench import bench_decode
    from bench.receipt import System
    from bench.run import Options
    from cluster import identity, lifecycle, session

    with session.opened(effective) as cluster:
        record = lifecycle.restart(cluster, _say)
    options = Options(runs=plan.work.runs, max_tokens=plan.work.max_tokens, arm=arm.name)
    system = System.model_validate(identity.system(record))
    key = effective.settings.vllm_api_key
    job = bench_decode.Job(record["base_url"], plan.work.phases, record["model"], key, folder, system, options, plan.work.concurrency)
    return [one.receipt for one in bench_decode.bench(job, _say)]


def _down(effective: Any) -> None:
    from cluster import lifecycle, session

    with session.opened(effective) as cluster:
        lifecycle.down(cluster, _say)
