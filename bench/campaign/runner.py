"""Executing a plan: every slot is one fresh boot, measured and tagged. Resumable; the order is the plan's and never changes.

A campaign's folder holds plan.json, receipts/ (finished slots), receipts/invalid/ and journal.jsonl (one line per attempt and
outcome: nothing that was tried is forgotten). A slot's receipts move in only when all of its phases are there and valid.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.campaign.plan import Arm, Plan, read
from bench.errors import BenchError, InvalidMeasurement
from bench.receipt import Payload, Receipt, Slot, seal, shown, write
from bench.receipt import read as read_receipt

Say = Callable[[str], None]
# Boot the arm afresh, measure the plan's phases, and write the receipts into the folder.
Boot = Callable[[Arm, Path], Sequence[Receipt]]


@dataclass(frozen=True)
class Campaign:
    """A plan and its folder."""

    plan: Plan
    folder: Path

    @property
    def receipts(self) -> Path:
        return self.folder / "receipts"


@dataclass(frozen=True)
class State:
    """How far a campaign is: finished slots, and how many attempts each slot has had."""

    finished: frozenset[int]
    attempts: dict[int, int]

    @property
    def repeated(self) -> dict[int, int]:
        """Slots that needed more than one attempt."""
        return {slot: count for slot, count in sorted(self.attempts.items()) if count > 1}


def opened(path: Path) -> Campaign:
    """The campaign of the plan at `path` (the file or its folder)."""
    plan = read(path)
    return Campaign(plan, path if path.is_dir() else path.parent)


def _by_slot(campaign: Campaign) -> dict[int, dict[Path, Receipt]]:
    """The tagged receipts, by slot. Raises InvalidMeasurement for a receipt of another plan or a slot of the wrong arm."""
    found: dict[int, dict[Path, Receipt]] = {}
    for path in sorted(campaign.receipts.glob("*.json")):
        receipt = read_receipt(path)
        slot = receipt.plan
        if slot is None or slot.plan != campaign.plan.seal:
            raise InvalidMeasurement(f"{shown(path)}: field plan: the receipt belongs to {'another' if slot else 'no'} plan")
        if slot.slot >= len(campaign.plan.order) or campaign.plan.order[slot.slot] != receipt.arm:
            raise InvalidMeasurement(f"{shown(path)}: field plan.slot: slot {slot.slot} is not one of arm {receipt.arm}")
        found.setdefault(slot.slot, {})[path] = receipt
    return found


def finished(campaign: Campaign) -> dict[int, dict[Path, Receipt]]:
    """The receipts of every finished slot, one that holds every phase of the plan at every concurrency, by file."""
    wanted = _wanted(campaign)
    return {slot: made for slot, made in _by_slot(campaign).items() if wanted <= _holds(made.values())}


def _wanted(campaign: Campaign) -> set[tuple[str, int | None]]:
    """Phase and lanes of every receipt that a slot must have; lanes None: the phase's own."""
    work = campaign.plan.work
    return {(phase, lanes) for phase in work.phases for lanes in (work.concurrency or (None,))}


def _holds(receipts: Iterable[Receipt]) -> set[tuple[str, int | None]]:
    found = [receipt.protocol for receipt in receipts]
    return {(protocol.phase, lanes) for protocol in found for lanes in (protocol.concurrency, None)}


def state(campaign: Campaign) -> State:
    """What is done, from the receipts, and what was tried, from the journal."""
    attempts: dict[int, int] = {}
    for entry in journal(campaign):
        if entry["event"] == "start":
            attempts[int(entry["slot"])] = int(entry["attempt"])
    return State(frozenset(finished(campaign)), attempts)


def journal(campaign: Campaign) -> list[dict[str, str | int]]:
    """The attempts so far; a line that was cut off by a crash is left out."""
    path = campaign.folder / "journal.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    whole = [line for line in lines if line.endswith("}")]
    try:
        return [json.loads(line) for line in whole]
    except ValueError as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable: {error}") from None


def _note(campaign: Campaign, event: str, slot: int, attempt: int, detail: str = "") -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry = {"utc": now, "event": event, "slot": slot, "attempt": attempt, "arm": campaign.plan.order[slot], "detail": detail}
    path = campaign.folder / "journal.jsonl"
    cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut else "") + json.dumps(entry) + "\n")


def run(campaign: Campaign, boot: Boot, say: Say) -> None:
    """Fill every open slot, in order. Raises what ended a slot early; the next call repeats that slot and goes on."""
    with _alone(campaign):
        done = state(campaign)
        for slot in range(len(campaign.plan.order)):
            if slot in done.finished:
                continue
            attempt = done.attempts.get(slot, 0) + 1
            say(f"slot {slot + 1} of {len(campaign.plan.order)}: arm {campaign.plan.order[slot]}, attempt {attempt}")
            _fill(campaign, slot, attempt, boot)
    say(f"all {len(campaign.plan.order)} slots are filled: invoke compare --plan {shown(campaign.folder)}")


@contextlib.contextmanager
def _alone(campaign: Campaign) -> Iterator[None]:
    """The kernel drops the lock with the process, so a killed run leaves none behind."""
    campaign.receipts.mkdir(parents=True, exist_ok=True)
    with (campaign.folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BenchError(f"another bench-run works on {shown(campaign.folder)}\ntry: wait for it to finish") from None
        yield


def _fill(campaign: Campaign, slot: int, attempt: int, boot: Boot) -> None:
    partial = campaign.folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    _set_aside(campaign, slot)
    _note(campaign, "start", slot, attempt)
    try:
        made = boot(campaign.plan.arm(slot), partial)
        tagged = [_tagged(receipt, campaign.plan, slot, attempt) for receipt in made]
        _check(campaign, slot, tagged)
    except BaseException as error:
        _note(campaign, "failed", slot, attempt, f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    for receipt in tagged:
        write(receipt, campaign.receipts / f"{slot:03d}-{receipt.arm}-{receipt.protocol.phase}-{receipt.id}.json")
    shutil.rmtree(partial)
    _note(campaign, "done", slot, attempt)


def _set_aside(campaign: Campaign, slot: int) -> None:
    """Receipts of a slot that was cut off while its receipts moved in: kept, but under invalid/."""
    for path in _by_slot(campaign).get(slot, {}):
        (campaign.receipts / "invalid").mkdir(exist_ok=True)
        path.rename(campaign.receipts / "invalid" / path.name)


def _tagged(receipt: Receipt, plan: Plan, slot: int, attempt: int) -> Receipt:
    payload = Payload.model_validate(receipt.model_dump(exclude={"seal"}))
    return seal(payload.model_copy(update={"plan": Slot(plan=plan.seal, slot=slot, attempt=attempt), "arm": plan.order[slot]}))


def _check(campaign: Campaign, slot: int, fresh: Sequence[Receipt]) -> None:
    """Keep invalid ones apart and refuse the slot; refuse a boot that is not fresh."""
    bad = [receipt for receipt in fresh if not receipt.valid]
    for receipt in bad:
        write(receipt, campaign.receipts / "invalid" / f"{slot:03d}-{receipt.arm}-{receipt.protocol.phase}-{receipt.id}.json")
    if bad:
        reasons = "; ".join(reason for receipt in bad for reason in receipt.invalid_because)
        raise InvalidMeasurement(
            f"slot {slot + 1}: {reasons}\ntry: invoke bench-run {shown(campaign.folder)} (repeats this slot, then goes on)"
        )
    boots = {receipt.system.boot for receipt in fresh}
    used = {receipt.system.boot for made in finished(campaign).values() for receipt in made.values()}
    if len(boots) != 1 or None in boots or boots & used:
        raise InvalidMeasurement(f"slot {slot + 1}: field system.boot: not one fresh boot: {', '.join(map(str, sorted(boots, key=str)))}")
    missing = [phase for phase, lanes in _wanted(campaign) - _holds(fresh)]
    if missing:
        raise InvalidMeasurement(f"slot {slot + 1}: no receipt of phase {', '.join(sorted(missing))}")


def progress(campaign: Campaign) -> list[str]:
    """The plan and where it stands, as lines."""
    now, plan = state(campaign), campaign.plan
    lines = [f"plan {plan.id}, {plan.test} test, kit {plan.kit}, seed {plan.seed}, {plan.seal[:19]}"]
    for slot, arm in enumerate(plan.order):
        word = "done" if slot in now.finished else "open"
        again = f", {now.attempts[slot]} attempts" if slot in now.repeated else ""
        lines.append(f"  slot {slot + 1:2}  block {plan.blocks[slot] + 1}  {arm}: {word}{again}")
    lines.append(f"{len(now.finished)} of {len(plan.order)} slots done")
    return lines
