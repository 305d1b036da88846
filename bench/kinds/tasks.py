"""The tasks on receipts of every kind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cli
from bench.errors import BadRequest, InvalidMeasurement

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS, FOREIGN = ROOT / "results" / "receipts", ROOT / "results" / "foreign"
_PATHS = "receipts: files or folders (default results/receipts/)"
_SINCE = "a git revision: only what this working tree changed since it left there"


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _files(paths: str) -> list[Path]:
    """The files that a task's words name; a folder stands for all receipts below it but those under invalid/."""
    from bench.kinds.registry import documents
    from bench.receipt import find

    given = [Path(word) for word in paths.splitlines()] or [RECEIPTS]
    folders = [path for path in given if path.is_dir() and documents(path)]
    found = [file for path in given for file in (documents(path) if path in folders else find([path]))]
    return list(dict.fromkeys(found))


@cli.task(name="check", help={"paths": _PATHS, "changed_since": _SINCE})
def receipt_check(ctx: Any, paths: str = "", changed_since: str | None = None) -> int:
    """Recompute every figure of each receipt from its raw facts, and verify schema and seal; exit 3 when one is off.

    --changed-since REV: the receipts of a pull request, and that each default it changes in kits/ has a valid one; exit 1 if not.
    """
    if changed_since is not None:
        if paths:
            raise BadRequest("--changed-since finds the receipts itself; leave out the paths")
        return _check_changed(changed_since)
    from bench.kinds.registry import Card, call, kind_of
    from bench.receipt import shown

    bad = 0
    for path in _files(paths):
        try:
            kind = kind_of(path)
            if kind is None:
                continue
            card: Card = call(kind.card)(call(kind.check)(path))
            print(f"{shown(path)}: {_state(card)}")
        except InvalidMeasurement as error:
            _note(f"error: {error}")
            bad += 1
    return 3 if bad else 0


def _state(card: Any) -> str:
    if card.seal is None:
        return "foreign: readable, unsealed, nothing to recompute"
    return "sound, marked invalid" if card.reasons else "sound, valid"


def _check_changed(revision: str) -> int:
    from bench.kinds import changed

    verdict = changed.judge(changed.since(ROOT, revision))
    for line in verdict.good:
        print(line)
    for line in verdict.notes:
        _note(f"note: {line}")
    for line in verdict.problems:
        _note(f"error: {line}")
    print(f"{len(verdict.good)} sound receipts, {len(verdict.problems)} problems since {revision}")
    return 1 if verdict.problems else 0


@cli.task(name="markdown", help={"paths": _PATHS, "changed_since": _SINCE})
def receipt_markdown(ctx: Any, paths: str = "", changed_since: str | None = None) -> int:
    """The block for a pull request: verdicts, figures, identity, seals, how to check, what is not claimed; exit 3 when one is left out."""
    from bench.kinds import changed, pull_request, registry

    files = changed.since(ROOT, changed_since).documents if changed_since else _files(paths)
    pile = registry.load(files)
    for line in pile.left_out:
        _note(f"left out: {line}")
    if not pile.found:
        raise InvalidMeasurement("no valid receipt among these files\ntry: invoke bench")
    print(pull_request.block(pile, ROOT))
    return 3 if pile.left_out else 0


@cli.task(name="migrate", help={"paths": _PATHS, "out": "folder for the migrated files (default: beside each, as NAME.migrated.json)"})
def receipt_migrate(ctx: Any, paths: str = "", out: str | None = None) -> int:
    """Bring old performance receipts under the present schema and rules: raw facts kept, figures computed anew, the old seal named."""
    from bench.kinds import migrate
    from bench.receipt import shown, write

    bad = 0
    for path in _files(paths):
        try:
            new = migrate.migrated(path)
        except InvalidMeasurement as error:
            _note(f"error: {error}")
            bad += 1
            continue
        if new is None:
            print(f"{shown(path)}: follows the present rules already")
            continue
        target = Path(out) / path.name if out else path.with_name(f"{path.stem}.migrated.json")
        write(new, target)
        print(f"{shown(path)} -> {shown(target)}: changed {', '.join(new.migrated.changed if new.migrated else ())}")
    return 3 if bad else 0


@cli.task(
    name="import",
    help={"paths": "result files of bench_decode, llama-benchy or vllm bench serve", "out": "folder (default results/foreign/)"},
)
def receipt_import(ctx: Any, paths: str = "", out: str | None = None) -> int:
    """Take other tools' results in as foreign: unsealed, protocol named, shown beside the receipts and never compared with them."""
    from bench.foreign import importers, model
    from bench.receipt import shown

    if not paths:
        raise BadRequest("name a result file\ntry: invoke receipt.import result.json")
    bad = 0
    for path in [Path(word) for word in paths.splitlines()]:
        try:
            found = importers.imported(path)
        except InvalidMeasurement as error:
            _note(f"error: {error}")
            bad += 1
            continue
        target = (Path(out) if out else FOREIGN) / f"{found.tool.replace(' ', '-')}-{found.source_sha256[:12]}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(model.text(found), encoding="utf-8")
        print(f"{shown(path)} -> {shown(target)}: {found.tool}, {len(found.rows)} rows, FOREIGN")
    return 3 if bad else 0
