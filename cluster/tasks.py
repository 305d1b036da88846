"""The launcher's tasks. Each is parsing, one call, printing."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
import time
from collections.abc import Callable
from typing import Any

import cli
from cluster.settings import FIELDS, ROOT, as_json, example, load


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _effective(kit: str | None, **flags: str | None) -> Any:
    """The settings, checked against every constraint and the memory budget. Touches nothing."""
    from cluster import constraints
    from cluster.budget import fit

    effective = load({"kit": kit, **flags})
    for note in (*effective.notes, *constraints.warnings(effective)):
        _say(f"note: {note}")
    constraints.check(effective)
    for line in fit.said(effective):
        _say(line)
    return effective


def _print_json(value: Any) -> None:
    print(jsonlib.dumps(value, indent=2))


_KIT = {"kit": "a name from kits/ (default: KIT; spark2 where .env names a WORKER_IP; else local)"}


@dataclasses.dataclass(frozen=True)
class StartFlags:
    """Flags of `invoke up` and `restart`; each --skip-X is the setting SKIP_X for one call."""

    kit: str | None = cli.flag(_KIT["kit"])
    json: bool = cli.flag("print the run record as JSON", False)
    dry: bool = cli.flag("print the plan, touch nothing", False)
    skip_download: bool = cli.flag("do not download weights", False)
    skip_sync: bool = cli.flag("do not bring the workers' weights to the head's", False)
    skip_pull: bool = cli.flag("leave images alone; refuse where they are missing or differ", False)
    skip_doctor: bool = cli.flag("start although doctor finds an error (kits of several nodes)", False)
    skip_selfcheck: bool = cli.flag("do not run the plugin's selfcheck in the image", False)

    def effective(self) -> Any:
        """The checked settings with these flags. Touches nothing."""
        skipped = [name for name in (field.name for field in dataclasses.fields(self)) if name.startswith("skip_") and getattr(self, name)]
        return _effective(self.kit, **dict.fromkeys(skipped, "1"))


@cli.flag_task(StartFlags)
def up(ctx: Any, flags: StartFlags) -> None:
    """Launch the kit and wait until it is ready. Running with the same settings: says so."""
    from cluster import lifecycle

    _launch(ctx, flags, lifecycle.up)


def _launch(ctx: Any, flags: StartFlags, how: Callable[..., Any]) -> None:
    from cluster import session

    effective = flags.effective()
    if flags.dry or ctx.config.run.dry:
        _print_plan("up", effective, flags.json)
        return
    _say(f"kit {effective.kit.name}: {effective.kit.summary}")
    with session.opened(effective) as cluster:
        record = how(cluster, _say)
    if flags.json:
        _print_json(record)


@cli.task(help={**_KIT, "dry": "print the plan, touch nothing"})
def down(ctx: Any, kit: str | None = None, dry: bool = False) -> None:
    """Stop what up started on every node, and verify that nothing of it is left."""
    from cluster import lifecycle, session

    if dry or ctx.config.run.dry:
        _print_plan("down", _effective(kit), False)
        return
    with session.opened(load({"kit": kit})) as cluster:
        lifecycle.down(cluster, _say)


@cli.flag_task(StartFlags)
def restart(ctx: Any, flags: StartFlags) -> None:
    """Validate the settings, then stop and start."""
    from cluster import lifecycle

    _launch(ctx, flags, lifecycle.restart)


@cli.task(help={**_KIT, "task": "up or down", "json": "print one JSON document"})
def plan(ctx: Any, kit: str | None = None, task: str = "up", json: bool = False) -> None:
    """What a task would run on which node, in order; opens no connection."""
    cli.choice("task", task, ("up", "down"))
    _print_plan(task, _effective(kit), json)


def _print_plan(task: str, effective: Any, as_document: bool) -> None:
    from cluster import plan as plans

    made = {"up": plans.plan_up, "down": plans.plan_down}[task](effective)
    if not as_document:
        print(plans.render(made))
        return
    stages = [{"stage": stage.name, "steps": [{"node": step.role, "runs": step.shown} for step in stage.steps]} for stage in made.stages]
    _print_json({"plan": made.title, "stages": stages})


@cli.task(help=_KIT)
def trust(ctx: Any, kit: str | None = None) -> None:
    """Accept the ssh host keys of the kit's nodes on first use, and print them; a key that changed is refused."""
    from cluster import connect

    effective = load({"kit": kit})
    print("\n".join(connect.trust_all(effective)) or f"kit {effective.kit.name}: no node is reached by ssh")


@cli.task(help={**_KIT, "json": "print one JSON document", "passive": "send no one-token request"})
def status(ctx: Any, kit: str | None = None, json: bool = False, passive: bool = False) -> int:
    """Every rank's process, the API and the engine of the kit; exit 1 unless it is ready."""
    from cluster import session
    from cluster import status as states

    with session.opened(load({"kit": kit})) as cluster:
        seen = states.look(cluster, passive=passive)
    _print_json(dataclasses.asdict(seen)) if json else _print_status(seen)
    return 0 if seen.ready else 1


def _print_status(seen: Any) -> None:
    mark = {True: "yes", False: "no", None: "not asked"}
    print(f"kit {seen.kit}: {seen.state}" + (f" ({seen.detail})" if seen.detail else ""))
    print(f"  process {mark[seen.process]}, api {mark[seen.api]}, engine {mark[seen.engine]}")
    for rank in seen.ranks if len(seen.ranks) > 1 else ():
        print(f"  rank {rank.rank} on {rank.role}: {rank.state}")
    if seen.record:
        record, age = seen.record, time.time() - seen.record["started_unix_s"]
        print(f"  {record['base_url']}/v1, model {record['model']}, boot {record['boot']}, {age:.0f} s, log {record['log']}")
        _print_image(record)


def _print_image(record: Any) -> None:
    image = record.get("image")  # a rank of an older version, or one without a container, has none
    if image:
        parts = {"identity": image["identity"][:16], "digest": image["digest"], "stamp": image["stamp"]}
        print(f"  image {record['settings']['image']}, " + ", ".join(f"{name} {value}" for name, value in parts.items() if value))


@cli.task(
    help={
        **_KIT,
        "interval": "seconds from one look to the next (default: WATCH_INTERVAL)",
        "restart": "restart after a confirmed failure, at most twice an hour",
        "once": "one look; exit 1 unless ready",
        "json": "events as JSON lines on stdout",
    }
)
def watch(
    ctx: Any, kit: str | None = None, interval: str | None = None, restart: bool = False, once: bool = False, json: bool = False
) -> int:
    """Look at a running kit until Ctrl-C, one line per change of its state; never acts on a single bad look."""
    from cluster import session
    from cluster import watch as watching

    acts = restart and not once and not ctx.config.run.dry
    effective = _effective(kit) if acts else load({"kit": kit})
    settings = effective.settings
    every_s = cli.number("interval", interval, low=1)
    options = watching.Options(settings.watch_interval if every_s is None else every_s, settings.watch_strikes, acts)
    with session.opened(effective) as cluster:
        watch = watching.Watch(cluster, options, watching.events_path(cluster.kit), _teller(json), _say)
        if once:
            return 0 if watch.once().ready else 1
        watch.forever()
    return 0


def _teller(as_json: bool) -> Any:
    """How an event is printed: a JSON object, or the time of day and a line."""

    def tell(event: Any) -> None:
        at = time.strftime("%H:%M:%S", time.localtime(event.at_unix_s))
        print(jsonlib.dumps(dataclasses.asdict(event)) if as_json else f"{at} {event.line()}", flush=True)

    return tell


@cli.task(help={**_KIT, "rank": "which rank (default 0)", "lines": "how many last lines (default 60)", "follow": "go on printing"})
def logs(ctx: Any, kit: str | None = None, rank: str | None = None, lines: str | None = None, follow: bool = False) -> None:
    """A rank's log; it outlives the rank (the newest 10 are kept on its node)."""
    count, number = cli.integer("lines", lines, low=1) or 60, cli.integer("rank", rank, low=0) or 0
    from cluster import logs, session

    with session.opened(load({"kit": kit})) as cluster:
        logs.show(cluster, number, count, follow=follow)


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
