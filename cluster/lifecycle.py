"""up, down, restart and status of a kit whose engine is one process on one node."""

from __future__ import annotations

import dataclasses
import datetime
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster import health, state, weights
from cluster.engines import llama
from cluster.errors import BadSettings, LaunchError
from cluster.settings import ROOT, Effective, difference
from cluster.transport import LocalTransport, Transport, ask_agent

_NAME = "rank0"
_GRACE_S = 10.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Probe:
    """What the node agent saw: our record and its living pids, how the process ended, and who holds the port."""

    record: Mapping[str, Any] | None
    pids: tuple[int, ...]
    exit_code: int | None
    holder: Mapping[str, Any] | None
    holder_is_ours: bool
    tail: tuple[str, ...]

    @property
    def running(self) -> bool:
        return bool(self.pids)

    @property
    def crashed(self) -> bool:
        """There is a record, but the process ended without `down`."""
        return self.record is not None and not self.pids

    def ending(self) -> str:
        """How a crashed process ended, in words."""
        if self.exit_code is None:
            return "ended without an exit code: killed together with its session, or the machine restarted"
        if self.exit_code - 128 in set(signal.Signals):
            return f"killed by {signal.Signals(self.exit_code - 128).name}"
        return f"exit {self.exit_code}"


@dataclass(frozen=True)
class Running:
    """One kit on one node, as this call's settings describe it."""

    effective: Effective
    transport: Transport = dataclasses.field(default_factory=LocalTransport)

    @property
    def kit(self) -> str:
        return self.effective.kit.name

    @property
    def node(self) -> str:
        return self.effective.kit.nodes[0]

    def ask(self, action: str, **request: Any) -> dict[str, Any]:
        run_dir = str(state.run_dir(self.kit))
        return ask_agent(self.transport, {"action": action, "name": _NAME, "run_dir": run_dir, **request}, timeout_s=60)

    def probe(self, lines: int = 12) -> Probe:
        seen = self.ask("probe", port=None, lines=lines)
        if seen["record"] is None:
            seen = self.ask("probe", port=self.effective.settings.port, lines=lines)
        return Probe(**{**seen, "pids": tuple(seen["pids"]), "tail": tuple(seen["tail"])})

    def server(self, record: Mapping[str, Any]) -> health.Server:
        return health.Server(record["base_url"], record["model"], self.effective.settings.vllm_api_key)


def up(cluster: Running, say: Say) -> Mapping[str, Any]:
    """Start the kit's server and wait until it is ready; with the same settings already running, only say so.

    Returns the record. Raises BadSettings when another configuration runs, LaunchError when the start fails; a start that
    fails or is interrupted is taken back.
    """
    with state.lock(cluster.kit):
        return _up(cluster, say)


def _up(cluster: Running, say: Say) -> Mapping[str, Any]:
    seen = cluster.probe()
    if seen.running and seen.record:
        return _already_running(cluster, seen.record, say)
    if seen.crashed:
        say(f"the former process of kit {cluster.kit} is gone ({seen.ending()}); starting anew")
    _refuse_busy_port(cluster)
    model = weights.fetch(weights.SMOLLM2, say)
    request = _start_request(cluster, model)
    try:
        record: Mapping[str, Any] = cluster.ask("start", **request)["record"]
        say(f"started pid {record['pid']}, log {record['log']}")
        _wait_ready(cluster, record)
    except BaseException:
        cluster.ask("stop", grace_s=_GRACE_S)
        raise
    say(f"ready after {time.time() - record['started_unix_s']:.1f} s: {record['base_url']}/v1, model {record['model']}")
    return record


def _already_running(cluster: Running, record: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    changes = difference(record["settings"], cluster.effective.fingerprint())
    if changes:
        raise BadSettings(
            f"kit {cluster.kit} is running with other settings (running -> wanted)\n" + "\n".join(changes), hint="invoke restart"
        )
    _wait_ready(cluster, record)
    say(f"kit {cluster.kit} is already running: {record['base_url']}/v1, model {record['model']}")
    return record


def _refuse_busy_port(cluster: Running) -> None:
    port = cluster.effective.settings.port
    holder = cluster.ask("probe", port=port)["holder"]
    if holder:
        who = f"pid {holder['pid']} of {holder['user']}: {holder['command']}" if holder["pid"] else "a process of another user"
        raise LaunchError(
            f"port {port} is in use by {who}; this tool did not start it",
            node=cluster.node,
            hint="stop that process, or choose another port: PORT=... invoke up",
        )


def _start_request(cluster: Running, model: Any) -> dict[str, Any]:
    settings, boot = cluster.effective.settings, secrets.token_hex(4)
    now = datetime.datetime.now(datetime.UTC)
    reachable = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    record = {
        "boot": boot,
        "kit": cluster.kit,
        "port": settings.port,
        "base_url": f"http://{reachable}:{settings.port}",
        "model": settings.served_model_name,
        "settings": cluster.effective.fingerprint(),
        "engine": llama.version(),
        "weights": {"file": weights.SMOLLM2.file_name, "sha256": weights.SMOLLM2.sha256, "source": weights.SMOLLM2.requirement},
    }
    return {
        "argv": llama.argv(settings, model),
        "env": llama.environment(settings),
        "cwd": str(ROOT),
        "log": str(state.new_log(cluster.kit, boot, now.strftime("%Y%m%dT%H%M%SZ"))),
        "record": record,
    }


def _wait_ready(cluster: Running, record: Mapping[str, Any]) -> None:
    limit = cluster.effective.settings.ready_timeout
    server = cluster.server(record)

    def ready() -> bool:
        if health.api_answers(server):
            return True
        seen = cluster.probe()
        if not seen.running:
            raise LaunchError(
                f"the server ended while starting ({seen.ending()})",
                node=cluster.node,
                ran=" ".join(record["argv"]),
                tail=seen.tail,
                hint="invoke logs",
            )
        return False

    if not health.wait_until(ready, limit):
        raise LaunchError(
            f"not ready within {limit:g} s (READY_TIMEOUT)",
            node=cluster.node,
            ran=" ".join(record["argv"]),
            tail=cluster.probe().tail,
            hint="invoke logs",
        )


def down(cluster: Running, say: Say) -> None:
    """Stop what this tool started and verify that nothing of it is left. Raises LaunchError when something is."""
    with state.lock(cluster.kit):
        seen = cluster.probe()
        answer = cluster.ask("stop", grace_s=_GRACE_S)
        if answer["left"]:
            raise LaunchError(f"processes {answer['left']} did not end even after SIGKILL", node=cluster.node, hint="ps -o pid,stat,cmd")
        if seen.crashed:
            say(f"kit {cluster.kit} had already ended ({seen.ending()}); cleaned up")
        else:
            say(f"kit {cluster.kit} stopped" if answer["was_running"] else f"kit {cluster.kit} was not running")


def restart(cluster: Running, say: Say) -> Mapping[str, Any]:
    """down and up with the new settings, which were validated before anything is stopped."""
    down(cluster, say)
    return up(cluster, say)


@dataclass(frozen=True)
class Status:
    """The state of a kit. Liveness in three levels: process, api (/health answers), engine (a token can be generated)."""

    kit: str
    state: str
    process: bool
    api: bool
    engine: bool | None
    detail: str
    record: Mapping[str, Any] | None

    @property
    def ready(self) -> bool:
        return self.process and self.api and self.engine is not False


def status(cluster: Running, *, passive: bool = False) -> Status:
    """Look at the kit; `passive` leaves out the one-token request of the third level (then None)."""
    seen = cluster.probe()
    if seen.record is None:
        detail = "" if seen.holder is None else f"port {cluster.effective.settings.port} is held by pid {seen.holder['pid']}, not ours"
        return Status(cluster.kit, "stopped", False, False, None, detail, None)
    if not seen.running:
        return Status(cluster.kit, "crashed", False, False, None, seen.ending(), seen.record)
    server = cluster.server(seen.record)
    api = health.api_answers(server)
    locked_out = seen.record["settings"].get("vllm_api_key") != cluster.effective.fingerprint()["vllm_api_key"]
    engine = None if passive or locked_out or not api else health.engine_answers(server)
    word = "ready" if api and engine is not False else "engine does not answer" if api else "starting or hanging"
    detail = "the server wants another VLLM_API_KEY than this command has" if locked_out else ""
    return Status(cluster.kit, word, True, api, engine, detail, seen.record)
