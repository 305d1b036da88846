"""invoke why-slow. Glue: it asks the launcher for the running kit; the judging is in causes.py."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import json as jsonlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli
from bench.errors import BadRequest, BenchError, InvalidMeasurement

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS = ROOT / "results" / "receipts"
_LOAD = "Count from 1 to 200, with a comma between the numbers and nothing else."
_LOAD_TOKENS, _SAMPLE_AFTER_S, _QUIET_S = 256, 2.0, 1.0


@dataclass(frozen=True)
class WhySlowFlags:
    """Flags of `invoke why-slow`."""

    paths: str | None = cli.flag("a receipt (default: the newest one in results/receipts/)")
    against: str | None = cli.flag("a receipt of your own to hold it against (default: the published figure of the same kit and phase)")
    live: bool = cli.flag("also look at the running kit: other requests, and every node's clock under a short load of its own", False)
    kit: str | None = cli.flag("the running kit to look at (default: the receipt's)")
    json: bool = cli.flag("print one JSON document", False)


@cli.flag_task(WhySlowFlags)
def why_slow(ctx: Any, flags: WhySlowFlags) -> int:
    """Name what makes a measurement slow: drafter or cycle, a node, other traffic, the caches. Exit 1: slow; 4: no yardstick."""
    from bench.why_slow import build, causes, evidence

    receipt = _receipt(Path(flags.paths) if flags.paths else _newest())
    found = evidence.of(receipt)
    if found is None:
        raise InvalidMeasurement(f"receipt {receipt.id}: field summary: holds no rate")
    against = build.own(_receipt(Path(flags.against)), found) if flags.against else build.yardstick(found)
    live = _live(flags.kit or receipt.system.kit) if flags.live else None
    diagnosis = causes.diagnose(found, against, causes.Known(_pinned_drafter(), live))
    if flags.json:
        parts = {"evidence": found, "yardstick": against, "live": live, "diagnosis": diagnosis}
        print(jsonlib.dumps({name: part and dataclasses.asdict(part) for name, part in parts.items()}, indent=2))
    else:
        print(build.text(found, diagnosis, against, live.nodes if live else ()))
    return 4 if diagnosis.slow is None else int(diagnosis.slow)


def _receipt(path: Path) -> Any:
    """The receipt; an invalid one may be asked about too, as its fault may be the answer."""
    from bench.check import check

    if not path.exists():
        raise BadRequest(f"no such receipt: {path}\ntry: invoke bench (writes one)")
    return check(path)


def _newest() -> Path:
    from bench.receipt import find

    return max(find([RECEIPTS]), key=lambda path: path.stat().st_mtime)


def _pinned_drafter() -> str:
    from cluster.settings import FIELDS

    return str(FIELDS["dflash_revision"].default)


def _live(kit: str | None) -> Any:
    """Two counter readings a second apart for other traffic, then a short request of our own while every node's clock is read."""
    from bench.why_slow.causes import Live
    from cluster import session, settings

    effective = settings.load({"kit": kit})
    with session.opened(effective) as cluster:
        record = cluster.head_record()
        if record is None:
            raise BenchError(f"kit {effective.kit.name} is not running\ntry: invoke up, or leave out --live")
        running, waiting, foreign = _traffic(record["base_url"], effective.settings.vllm_api_key)
        nodes = _clocks(cluster, record) if effective.kit.hardware == "gb10" else ()
    return Live(running, waiting, foreign, nodes)


def _traffic(base_url: str, key: str | None) -> tuple[int | None, int | None, int | None]:
    """Requests running and waiting, and tokens generated in a second in which we ask for none."""
    from bench.counters import delta
    from bench.run import read_counters
    from bench.stream import Endpoint

    endpoint = Endpoint(base_url, key)
    before = asyncio.run(read_counters(endpoint))
    time.sleep(_QUIET_S)
    after = asyncio.run(read_counters(endpoint))
    return (after.running, after.waiting, delta(before, after).generation_tokens) if after else (None, None, None)


def _clocks(cluster: Any, record: Any) -> tuple[Any, ...]:
    from bench.stream import Deadlines, Endpoint, Request, stream
    from bench.why_slow import clocks

    endpoint = Endpoint(record["base_url"], cluster.effective.settings.vllm_api_key, "vllm")
    request = Request(record["model"], _LOAD, _LOAD_TOKENS)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        load = pool.submit(lambda: asyncio.run(stream(endpoint, request, Deadlines())))
        time.sleep(_SAMPLE_AFTER_S)
        waiting = {role: pool.submit(way.run, clocks.ARGV, timeout_s=15) for role, way in cluster.nodes.transports.items()}
        seen = {role: future.result() for role, future in waiting.items()}
        load.result()
    found = {role: clocks.parse(role, outcome.stdout) for role, outcome in seen.items()}
    for role in (role for role, clock in found.items() if clock is None):
        print(f"note: {seen[role].error('its GPU could not be read')}", file=sys.stderr)
    return tuple(clock for clock in found.values() if clock)
