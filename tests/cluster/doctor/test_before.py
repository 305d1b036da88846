"""Doctor's part of a launch: which findings refuse it, and in what words; and its place in the plan."""

from typing import Any

import pytest

from cluster.doctor import before
from cluster.doctor.table import counted, table
from cluster.errors import LaunchError
from cluster.plan import plan_up, render
from tests.cluster.doctor.changes import configured, logged_in, ported
from tests.cluster.doctor.scenes import Change, Pair, changed
from tests.cluster.images.samples import CLASSIC
from tests.cluster.plans import effective

FINE: dict[str, Any] = {
    "docker_error": None, "image": CLASSIC, "missing_paths": [], "unwritable": [], "free": {}, "foreign_container": False, "ports": {},
}  # fmt: skip


def refusal(*changes: Change, checked: dict[str, Any] | None = None) -> tuple[str, list[str]]:
    """The message, empty when nothing is in the way, and what was said."""
    said: list[str] = []
    try:
        before.refuse(effective("spark2"), {"head": checked or FINE, "worker": FINE}, changed(*changes).findings(), said.append)
    except LaunchError as error:
        return str(error), said
    return "", said


def test_a_healthy_pair_starts_without_a_word() -> None:
    assert refusal() == ("", [])


def test_a_wrong_index_keeps_the_kit_from_starting() -> None:
    message, said = refusal(ported(pairs=2), configured(HEAD_GID="3"))
    assert message.startswith("head: HEAD_GID is 3: on rocep1s0f1 that is RoCE v2 fe80::")
    assert "try: HEAD_GID=5, or leave HEAD_GID empty; to start all the same: invoke up --skip-doctor" in message
    assert [line.startswith("note: head: rocep1s0f1 has 2 link-local GIDs") for line in said] == [True]


def test_warnings_are_notes() -> None:
    message, said = refusal(logged_in(steering={"NCCL_IB_HCA": "x"}))
    assert message == ""
    assert said == [
        "note: head: exported on the node: NCCL_IB_HCA=x (nccl-exported; "
        "try: unset them there (~/.bashrc, /etc/environment); use the settings instead)"
    ]


def test_what_the_check_refuses_is_said_once() -> None:
    message, _ = refusal(lambda p: p.model(exists=False), checked={**FINE, "missing_paths": ["/m"]})
    assert message == "head: missing: /m\ntry: check MODEL and the node's VENV setting"


def test_both_looks_in_one_message() -> None:
    message, _ = refusal(lambda p: p.links(up=False), checked={**FINE, "missing_paths": ["/m"]})
    assert "the check before the launch failed for 2 reasons" in message
    assert "head: missing: /m" in message
    assert "head: enp1s0f1np1 has no carrier; expected: up (link-down: " in message


def test_a_look_that_failed_is_noted_only() -> None:
    """The node answered the check; that doctor could not read it is no reason to stay down."""
    message, said = refusal(lambda p: p.failures.update(worker="worker: no answer in 40 s"))
    assert message == ""
    assert said == ["note: worker: no answer in 40 s (node-unreachable; try: ssh to the node by hand)"]


@pytest.mark.parametrize(("kit", "doctor", "shown"), [("spark2", True, True), ("spark2", False, False), ("local", True, False)])
def test_the_plan_shows_it(kit: str, doctor: bool, shown: bool) -> None:
    text = render(plan_up(effective(kit, SKIP_DOCTOR="0" if doctor else "1")))
    assert ("doctor, at the same time\n   head     read the node's state; nothing is changed\n" in text) is shown


def test_table() -> None:
    lines = table("spark2", changed(lambda p: p.links(up=False)).findings()).splitlines()
    assert lines[0] == "kit spark2: 1 error, 0 warnings, 7 infos"
    assert lines[1] == "ERROR  link-down        head      enp1s0f1np1 has no carrier; expected: up"
    assert lines[2] == "       why: there is nobody at the other end of the cable, or the port is off"
    assert lines[3] == "       try: seat the cable; ip link set enp1s0f1np1 up"
    assert max(map(len, lines)) <= 140


def test_counted() -> None:
    assert counted([]) == "0 errors, 0 warnings, 0 infos"
    assert counted(Pair().findings()) == "0 errors, 0 warnings, 7 infos"
    assert table("local", []) == "kit local: 0 errors, 0 warnings, 0 infos"
