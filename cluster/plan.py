"""Plans as values: stages of steps, each step one request to the agent of one node. Making and rendering them opens no socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cluster.engines import vllm
from cluster.images.identity import local_only, tag_of
from cluster.ranks import Launch, Rank, launch, ranks, record
from cluster.settings import Effective
from cluster.weights import snapshots as weights

LOCK_TTL_S = 120
WEIGHTS_LIMIT_S = 110  # less than the lock; the first look reads the header of every shard
START_LIMIT_S = 100  # less than the lock, which is refreshed before each stage
STOP_GRACE_S = 30  # a headless vLLM rank needs 12 s to end its worker


@dataclass(frozen=True)
class Step:
    """One request to the agent on the node of `role`, what it does in words or as a command, and its time limit in seconds."""

    role: str
    shown: str
    request: Mapping[str, Any]
    timeout_s: float = 60


@dataclass(frozen=True)
class Stage:
    """Steps that run on all their nodes at once; the next stage starts when every one of them is done."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Plan:
    """What a task would do, in order."""

    title: str
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage:
        """The stage of that name; it exists in every plan of the kind."""
        return next(stage for stage in self.stages if stage.name == name)


def render(plan: Plan) -> str:
    """The plan as text: one block per stage, one line per node. Secrets are masked."""
    lines = [plan.title]
    for number, stage in enumerate(plan.stages, 1):
        lines.append(f"{number}. {stage.name}")
        lines += [f"   {step.role:8} {step.shown}" for step in stage.steps]
    return "\n".join(lines)


def run_dir(rank: Rank) -> str:
    """Where a rank's record and logs are kept on its node; ~ is the node's own home."""
    from cluster import state

    return str(state.run_dir(rank.kit.name)) if rank.kit.topology == "single" else f"~/.local/state/spark-lab/{rank.kit.name}"


def request(rank: Rank, action: str, **more: Any) -> dict[str, Any]:
    """An agent request about a rank. On a node, probe and stop look in both runtimes; the machine of a single kit knows one."""
    runtime = launch(rank).runtime
    if action == "start" and runtime == "docker":
        action = "docker_start"
    elif action in ("probe", "stop") and rank.kit.topology != "single":
        action = f"rank_{action}"
    return {"action": action, "name": rank.name, "run_dir": run_dir(rank), "runtime": runtime, **more}


def probe_step(rank: Rank, lines: int = 12) -> Step:
    port = rank.settings.port if rank.number == 0 else None
    return Step(rank.role, "look at the rank", request(rank, "probe", port=port, lines=lines), 30)


def stop_step(rank: Rank) -> Step:
    verb = "save the log, stop and remove container" if launch(rank).runtime == "docker" else "stop process"
    return Step(rank.role, f"{verb} {rank.name}, if ours", request(rank, "stop", grace_s=STOP_GRACE_S), STOP_GRACE_S + 60)


def lock_step(rank: Rank, token: str, owner: str) -> Step:
    return Step(rank.role, "take the launch lock", request(rank, "lock", token=token, owner=owner, ttl_s=LOCK_TTL_S), 15)


def _check_step(rank: Rank, how: Launch) -> Step:
    s = rank.settings
    ports = [s.port, s.master_port] if rank.number == 0 and rank.size > 1 else [s.port] if rank.number == 0 else []
    image = tag_of(s.image) if how.runtime == "docker" else None
    binary = [how.argv[0]] if how.runtime == "process" and rank.size > 1 else []
    paths = [*binary, *(vllm.model_folders(rank) if rank.kit.engine == "vllm" else ())]
    parts = ["docker answers" + (f" and has {image}" if s.skip_pull else "")] if image else []
    parts += [f"ports {' '.join(map(str, ports))} are free"] if ports else []
    parts += [f"{' '.join(paths)} exist"] if paths else []
    more = {"image": image, "paths": paths, "ports": ports, "folders": list(how.folders)}
    look = f"; look at the image {image}" if image and not s.skip_pull else ""
    return Step(rank.role, "check that " + ", ".join(parts or ["the node answers"]) + look, request(rank, "preflight", **more), 45)


def _weights_steps(effective: Effective) -> tuple[Step, ...]:
    """The look at the weights on every node that `up` may bring weights to; what follows from it is done by weights.ensure."""
    s, wanted = effective.settings, weights.snapshots(effective)
    concerned = [] if s.skip_download and s.skip_sync else ranks(effective)[:1] if s.skip_sync else ranks(effective)
    steps = [Step(r.role, weights.shown(r, wanted), weights.scan_request(r, wanted, run_dir(r)), WEIGHTS_LIMIT_S) for r in concerned]
    return tuple(steps) if wanted else ()


def _image_step(rank: Rank) -> Step:
    """Shown only: cluster/images/ensure.py does it, where it is needed."""
    s = rank.settings
    if rank.number:
        way = f"docker pull from {s.registry}" if s.registry else "docker save | ssh | docker load"
        return Step(rank.role, f"if its layers are not the head's: {way}", {})
    return Step(rank.role, "never pulled: invoke build makes it" if local_only(s.image) else f"if missing: docker pull {s.image}", {})


def _start_step(rank: Rank, how: Launch, effective: Effective, boot: str, image: Mapping[str, Any] | None) -> Step:
    more = {"argv": how.argv, "env": {**how.env, **how.secrets}, "cwd": how.cwd, "folders": how.folders}
    return Step(rank.role, how.shown(), request(rank, "start", record=record(rank, effective, boot, image), **more), START_LIMIT_S)


def plan_up(
    effective: Effective,
    *,
    boot: str = "BOOT",
    token: str = "TOKEN",
    owner: str = "OWNER",
    images: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Plan:
    """up: lock, check (and doctor, for several nodes), images, weights, selfcheck, start the headless ranks, start rank 0, wait.

    `boot` names the start, `token` the lock; `images` is what each node's record says of its image.
    """
    from cluster import selfcheck  # it needs this module
    from cluster.facts.request import facts_step

    hows = [launch(rank) for rank in ranks(effective)]
    starts = [_start_step(how.rank, how, effective, boot, images.get(how.rank.role)) for how in hows]
    looked_at = [] if effective.settings.skip_doctor or len(hows) == 1 else hows
    moved = [how.rank for how in hows if how.runtime == "docker" and not effective.settings.skip_pull]
    wait = Step(hows[0].rank.role, f"wait until /health is 200 and every rank lives, at most {effective.settings.ready_timeout:g} s", {})
    stages = [
        Stage("lock", tuple(lock_step(how.rank, token, owner) for how in hows)),
        Stage("check", tuple(_check_step(how.rank, how) for how in hows)),
        Stage("doctor, at the same time", tuple(facts_step(how.rank) for how in looked_at)),
        Stage("images", tuple(map(_image_step, moved))),
        Stage("weights", _weights_steps(effective)),
        Stage("selfcheck", tuple(selfcheck.step(how.rank) for how in hows if selfcheck.wanted(effective))),
        Stage("start headless ranks", tuple(starts[1:])),
        Stage("start rank 0", tuple(starts[:1])),
        Stage("wait", (wait,)),
    ]
    kit = effective.kit
    title = f"up, kit {kit.name}: {len(hows)} rank{'s' if len(hows) > 1 else ''}, engine {kit.engine}, runtime {hows[0].runtime}"
    return Plan(title, tuple(stage for stage in stages if stage.steps))


def plan_down(effective: Effective, *, token: str = "TOKEN", owner: str = "OWNER") -> Plan:
    """down: lock, then stop every rank at once and verify that nothing is left."""
    all_ranks = ranks(effective)
    locks = Stage("lock", tuple(lock_step(rank, token, owner) for rank in all_ranks))
    return Plan(f"down, kit {effective.kit.name}", (locks, Stage("stop", tuple(stop_step(rank) for rank in all_ranks))))
