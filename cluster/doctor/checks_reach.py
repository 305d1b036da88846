"""Whether the nodes are reached at all, by whom, and what time they have."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster import constraints
from cluster.doctor.finding import Check, Finding, Kind, Scene, differing, each_node
from cluster.facts.node import Facts

MAX_SKEW_S = 1.0

REFUSED = Kind("settings-refused", "error", "`up` refuses it before anything is touched", "E7 E9 J1", in_check=True)
ADVICE = Kind("settings-advice", "info", "it works, or works sometimes", "F3 F13")
UNREACHABLE = Kind("node-unreachable", "error", "nothing can be started, stopped or judged there", "B8 K1")
KEY_UNKNOWN = Kind("host-key-unknown", "error", "a machine is only talked to when its key is known", "K3")
KEY_CHANGED = Kind("host-key-changed", "error", "the node was installed anew, or another machine answers at its address", "K3")
LOGIN_NOTE = Kind("ssh-login", "warning", "a key or agent that is left out decides whether the next log-in works", "B8 K2 K10")
LATE = Kind("facts-late", "warning", "a tool that hangs is often the first sign of a sick driver or daemon", "F6")
SKEW = Kind("clock-skew", "warning", "logs of two ranks cannot be put in order, and leases and certificates go wrong", "F10")
USERS = Kind("users-differ", "info", "paths are resolved on each node, so this is allowed; a copied command line may not be", "B1 B7")
PATH = Kind("tool-not-on-path", "warning", "commands over ssh run in a non-login shell, whose PATH is shorter", "K9 B1")
NO_RSYNC = Kind("rsync-missing", "warning", "weights are copied between nodes with it", "D13")


def settings(scene: Scene) -> Iterator[Finding]:
    """What the settings alone tell (cluster/constraints.py)."""
    for rule, what in constraints.broken(scene.effective):
        yield REFUSED.at("settings", f"{rule.id}: {what}: {rule.evidence}", rule.hint)
    for rule, what in constraints.broken(scene.effective, constraints.ADVICE):
        yield ADVICE.at("settings", f"{rule.id}: {what}: {rule.evidence}", rule.hint)


def failures(scene: Scene) -> Iterator[Finding]:
    """A node that did not answer is a finding of its own; the others are judged all the same."""
    for role, message in scene.gathered.failures.items():
        lines = message.splitlines()
        hint = next((line.removeprefix("try: ") for line in lines if line.startswith("try: ")), "ssh to the node by hand")
        kind = (
            KEY_CHANGED if "has CHANGED" in message else KEY_UNKNOWN if "host key" in message and "is unknown" in message else UNREACHABLE
        )
        yield kind.at(role, re.sub(r"^the node agent could not \S+ \S+ \((.*)\)$", r"\1", lines[0].removeprefix(f"{role}: ")), hint)


def log_in(scene: Scene) -> Iterator[Finding]:
    for role, notes in scene.gathered.notes.items():
        for note in notes:
            hint = "unset SSH_AUTH_SOCK, or start the agent anew" if "agent" in note else "see the key's own message"
            yield LOGIN_NOTE.at(role, note, hint)


def late(facts: Facts, scene: Scene) -> Iterator[Finding]:
    if facts.system.late:
        hint = "run it by hand on that node; dmesg | tail"
        yield LATE.at(facts.role, f"no answer in time from: {', '.join(facts.system.late)}", hint)


def skew(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """Only when the offset is certainly too large: its bounds are as wide as the request took on the way."""
    clock = facts.system.clock
    if clock and (clock.low_s > MAX_SKEW_S or clock.high_s < -MAX_SKEW_S):
        ahead = (clock.low_s + clock.high_s) / 2
        what = (
            f"its clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's; at most {MAX_SKEW_S:g} s is expected"
        )
        yield SKEW.at(facts.role, what, "timedatectl set-ntp true, on the node that is wrong")


def users(scene: Scene) -> Iterator[Finding]:
    people = differing({role: facts.system.login.user for role, facts in scene.nodes.items()})
    homes = differing({role: facts.system.login.home for role, facts in scene.nodes.items()})
    if people or homes:
        yield USERS.at("cluster", f"different logins: {people or homes}", "nothing, or the same account on every node (*_USER)")


def path(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """Tools that the node has, but not on the PATH that our commands get."""
    login = facts.system.login
    needed = {"docker": scene.docker, "nvidia-smi": scene.sparks, "ip": scene.several, "rsync": scene.several}
    for tool, needs in needed.items():
        places = login.elsewhere.get(tool, ())
        if needs and not login.tools.get(tool) and places:
            what = f"{tool} is at {places[0]}, which is not on the PATH of a command over ssh ({login.path})"
            yield PATH.at(facts.role, what, f"ln -s {places[0]} /usr/local/bin/, or PATH in /etc/environment there")
        elif tool == "rsync" and needs and not login.tools.get(tool):
            yield NO_RSYNC.at(facts.role, "there is no rsync", "apt install rsync")


CHECKS: tuple[Check, ...] = (settings, failures, log_in, each_node(late), each_node(skew), users, each_node(path))
