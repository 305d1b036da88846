"""Bringing the head's image to the workers: `docker save` into `docker load` over ssh, or by a registry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster.connect import ssh_target
from cluster.errors import LaunchError
from cluster.execute import Answer, combined
from cluster.images import explain
from cluster.images.identity import Image, read, tag_of, too_deep, travelling
from cluster.images.work import HERE, Site, last_line
from cluster.plan import Step
from cluster.transport import LocalTransport, SshTarget

Errors = dict[str, LaunchError]


def ship(site: Site, source: Image, roles: Sequence[str]) -> dict[str, Image]:
    """Give every one of the workers `roles` the head's image under the head's name; the image each has then.

    All at once. A worker that fails keeps what it had; the others get the image, and then one LaunchError names every failure.
    """
    if deep := too_deep(source):
        raise LaunchError(deep, node=site.head, hint="squash some layers: fewer RUN and COPY lines in the Dockerfile")
    done, errors = _adopt(site, source, roles)  # what an interrupted ship has left complete
    rest = [role for role in roles if role not in done and role not in errors]
    if rest:
        errors |= _full(site, source, rest)
        rest = [role for role in rest if role not in errors]
    if rest:
        more, failed = (_by_registry if site.settings.registry else _by_pipe)(site, source, rest)
        done, errors = done | more, errors | failed
    for role, image in done.items():
        site.say(f"{role}: {image.name} is the head's image now (identity {image.short})")
    if errors:
        raise combined("shipping the image", errors.values())
    return done


def _adopt(site: Site, source: Image, roles: Sequence[str]) -> tuple[dict[str, Image], Errors]:
    """Rename what has arrived on the workers, after a look at its layers."""
    more: dict[str, Any] = {"own": travelling(source), "tag": tag_of(site.settings.image), "layers": list(source.layers)}
    shown = f"docker tag {more['own']} {more['tag']}"
    results = site.nodes.run(site.step(role, "images_adopt", shown, **more) for role in roles)
    found = {role: read(source.name, answer["image"]) for role, answer in results.answers.items()}
    return {role: image for role, image in found.items() if image}, dict(results.failures)


def _full(site: Site, source: Image, roles: Sequence[str]) -> Errors:
    """The workers whose disk cannot hold the image."""
    _, answers = site.look(source.name, roles)
    errors: Errors = {}
    for role, answer in answers.items():
        free = answer["free_bytes"]
        if free is not None and free < source.size_bytes:
            what = f"docker's disk has {free / 1e9:.1f} GB free; {source.name} needs {source.size_bytes / 1e9:.1f} GB"
            errors[role] = LaunchError(what, node=role, ran="df", hint=explain.reason("space", source.name)[1])
    return errors


# over ssh


def _by_pipe(site: Site, source: Image, roles: Sequence[str]) -> tuple[dict[str, Image], Errors]:
    where, ends = _route(site, roles)
    own, begin = travelling(source), time.monotonic()
    more = {"image": source.name, "own": own, "platform": source.platform, **ends}
    step = site.step(where, "ship_send", f"docker save {own} | ssh NODE docker load", **more)
    site.say(f"{site.cluster.at(site.head)}sending {source.name}, about {source.size_bytes / 1e9:.2f} GB, to {', '.join(roles)}")
    sent = site.long([step], _progress(source, begin)).all_or_raise("shipping the image")[where]
    site.say(f"sent {sent['bytes'] / 1e9:.2f} GB in {sent['seconds']:.1f} s ({sent['bytes'] / 1e6 / sent['seconds']:.0f} MB/s)")
    errors = {role: _load_failed(role, said) for role, said in sent["failed"].items()}
    done, failed = _adopt(site, source, [role for role in roles if role not in errors])
    for role in set(roles) - set(done) - set(errors) - set(failed):
        failed[role] = LaunchError(f"docker load ended well, but {own} is not there", node=role, hint="docker images; invoke ship again")
    return done, errors | failed


def _load_failed(role: str, said: str) -> LaunchError:
    lines = said.splitlines()[-8:]
    hint = explain.reason("space", "")[1] if explain.kind(lines) == "space" else "invoke ship again; what the node had is untouched"
    return LaunchError("the image did not get there", node=role, ran="ssh NODE docker load", tail=lines, hint=hint)


def _progress(source: Image, begin: float) -> Callable[[str, Answer], str]:
    def words(role: str, answer: Answer) -> str:
        rate = answer["bytes"] / 1e6 / (time.monotonic() - begin)
        return f"  {answer['bytes'] / 1e9:.2f} of about {source.size_bytes / 1e9:.2f} GB, {rate:.0f} MB/s"

    return words


def _route(site: Site, roles: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Which machine runs the pipe, with its ends: the head if its own ssh reaches all the workers, else this one in between."""
    if isinstance(site.nodes.transports[site.head], LocalTransport):
        return site.head, {"source": None, "targets": {role: _from_here(site, role) for role in roles}}
    targets = {role: _from_head(site, role) for role in roles}
    closed = site.ask(site.step(site.head, "ship_route", "ssh NODE true", targets=targets, timeout_s=60))["closed"]
    if not closed:
        return site.head, {"source": None, "targets": targets}
    why = "; ".join(f"{role}: {said.splitlines()[-1]}" for role, said in closed.items())
    site.say(f"note: the image goes through this machine, as the head's own ssh does not reach every worker ({why})")
    return HERE, {"source": _from_here(site, site.head), "targets": {role: _from_here(site, role) for role in roles}}


def _from_here(site: Site, role: str) -> dict[str, Any] | None:
    """A node as this machine's ssh client reaches it; None for this machine itself."""
    if isinstance(site.nodes.transports[role], LocalTransport):
        return None
    node = site.settings.node(role)
    return {"words": words(ssh_target(role, node, site.cluster.effective)), "ip": node.ip}


def _from_head(site: Site, role: str) -> dict[str, Any]:
    """A worker as the head's ssh client reaches it: by its fabric address, with the head's own configuration."""
    node = site.settings.node(role)
    target = ssh_target(role, node, site.cluster.effective)
    return {"words": words(SshTarget(role, node.ip or target.host, target.user, target.port)), "ip": None}


def words(target: SshTarget) -> list[str]:
    """Options and destination for OpenSSH's client."""
    options = {"-F": target.ssh_config, "-l": target.user, "-p": target.port}
    return [*(word for name, value in options.items() if value is not None for word in (name, str(value))), target.host]


# by a registry


def _by_registry(site: Site, source: Image, roles: Sequence[str]) -> tuple[dict[str, Image], Errors]:
    """Push on the head, then pull by digest on the workers."""
    own = f"{site.settings.registry}/{travelling(source)}"
    site.say(f"{site.cluster.at(site.head)}pushing {source.name} to {site.settings.registry}")
    push = site.step(site.head, "images_push", f"docker push {own}", image=source.name, own=own)
    pushed = site.long([push], last_line).all_or_raise("pushing the image")[site.head]
    if pushed["code"] != 0:
        raise _of_registry(site.head, "docker push", own, pushed["lines"])
    reference = f"{own.rpartition(':')[0]}@{pushed['digest']}"
    more: dict[str, Any] = {"reference": reference, "layers": list(source.layers), "tag": tag_of(site.settings.image)}
    steps: list[Step] = [site.step(role, "images_fetch", f"docker pull {reference}", **more) for role in roles]
    results = site.long(steps, last_line)
    errors = dict(results.failures)
    for role, answer in results.answers.items():
        if answer["code"] != 0:
            errors[role] = _of_registry(role, "docker pull", reference, answer["lines"])
    found: Mapping[str, Image | None] = {role: read(source.name, answer["image"]) for role, answer in results.answers.items()}
    return {role: image for role, image in found.items() if image}, errors


def _of_registry(role: str, verb: str, name: str, lines: Sequence[str]) -> LaunchError:
    what, hint = explain.reason(explain.kind(lines), name)
    return LaunchError(f"{what} (REGISTRY)", node=role, ran=f"{verb} {name}", tail=lines, hint=hint)
