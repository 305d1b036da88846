"""The launcher's tasks. Each is parsing, one call, printing."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from typing import Any

import cli
from cluster.errors import LaunchError
from cluster.settings import FIELDS, ROOT, as_json, example, load


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _cluster(kit: str | None) -> Any:
    from cluster import lifecycle

    return lifecycle.Running(load({"kit": kit}))


@cli.task(help={"kit": "a name from kits/ (default: KIT, else local)", "json": "print the run record as JSON"})
def up(ctx: Any, kit: str | None = None, json: bool = False) -> None:
    """Launch the kit and wait until it is ready. Running with the same settings: says so."""
    from cluster import lifecycle

    record = lifecycle.up(_cluster(kit), _say)
    if json:
        print(_dumps(record))


@cli.task(help={"kit": "a name from kits/"})
def down(ctx: Any, kit: str | None = None) -> None:
    """Stop what up started, and verify that nothing of it is left."""
    from cluster import lifecycle

    lifecycle.down(_cluster(kit), _say)


@cli.task(help={"kit": "a name from kits/"})
def restart(ctx: Any, kit: str | None = None) -> None:
    """Validate the settings, then stop and start."""
    from cluster import lifecycle

    lifecycle.restart(_cluster(kit), _say)


@cli.task(help={"kit": "a name from kits/", "json": "print one JSON document", "passive": "send no one-token request"})
def status(ctx: Any, kit: str | None = None, json: bool = False, passive: bool = False) -> int:
    """Process, API and engine of the kit; exit 1 unless it is ready."""
    from cluster import lifecycle

    seen = lifecycle.status(_cluster(kit), passive=passive)
    if json:
        print(_dumps(dataclasses.asdict(seen)))
    else:
        _print_status(seen)
    return 0 if seen.ready else 1


def _print_status(seen: Any) -> None:
    mark = {True: "yes", False: "no", None: "not asked"}
    print(f"kit {seen.kit}: {seen.state}" + (f" ({seen.detail})" if seen.detail else ""))
    print(f"  process {mark[seen.process]}, api {mark[seen.api]}, engine {mark[seen.engine]}")
    if seen.record:
        record, age = seen.record, time.time() - seen.record["started_unix_s"]
        print(f"  {record['base_url']}/v1, model {record['model']}, pid {record['pid']}, boot {record['boot']}, {age:.0f} s")
        print(f"  log {record['log']}")


@cli.task(help={"kit": "a name from kits/", "lines": "how many last lines (default 60)", "follow": "go on printing"})
def logs(ctx: Any, kit: str | None = None, lines: str | None = None, follow: bool = False) -> None:
    """The server's log; it outlives the server (the newest 10 are kept)."""
    from cluster import state

    count = cli.integer("lines", lines, low=1) or 60
    name = load({"kit": kit}).kit.name
    path = state.newest_log(name)
    if path is None:
        raise LaunchError(f"kit {name} has no log yet", hint="invoke up")
    subprocess.run(["tail", "-n", str(count), *(["-F"] if follow else []), str(path)])


@cli.task(help={"kit": "a name from kits/", "json": "print one JSON document", "write-example": "write .env.example from the settings"})
def config(ctx: Any, kit: str | None = None, json: bool = False, write_example: bool = False) -> None:
    """Every effective setting with its value, source and meaning; secrets masked."""
    if write_example:
        (ROOT / ".env.example").write_text(example())
        return
    effective = load({"kit": kit})
    if json:
        print(as_json(effective))
        return
    public = effective.public()
    for name, field in FIELDS.items():
        value = "" if public[name] is None else public[name]
        print(f"{name.upper():18} {value!s:26} {effective.sources[name]:16} {field.description}")


def _dumps(value: Any) -> str:
    return json.dumps(value, indent=2)
