"""Three hosts: SmolLM2, whose 9 heads split over three ranks, edited while it is loaded by `invoke up`, answers as transformers does with
the checkpoint edited before; the launcher compares what the three ranks report and keeps it."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.testbed import triplet, twin
from tests.testbed.hosts import Testbed
from tests.testbed.triplet import FOLDER, Edit, Step
from tests.testbed.twin import remains

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(1200)]

URL = f"http://10.77.0.1:{twin.PORT}"
PROMPTS = ([1, 504, 3575, 282, 4649, 314], list(range(1000, 1040)))
NEAR = 5e-4  # of log-probabilities: fp32 in another order (5e-5 seen)


@pytest.fixture(scope="module")
def model() -> Path:
    return triplet.model()


@pytest.fixture
def three(testbed: Testbed) -> Iterator[Testbed]:
    twin.clear(testbed.hosts)
    with testbed.widened(3) as wide:
        triplet.prepare(*wide.hosts)
        yield wide
        twin.clear(wide.hosts)


@pytest.fixture
def edit() -> Edit:
    return Edit(triplet.write_direction(FOLDER))


def test_a_wider_testbed_is_one_of_three_and_then_of_two(testbed: Testbed) -> None:
    before = [host.process("init") for host in testbed.hosts]
    with testbed.widened(3) as wide:
        head, _, third = wide.hosts
        assert wide.status()[2] == "spark3 10.77.0.3 init:up sshd:up dockerd:up"
        assert wide.ssh(head, "ssh spark3 hostname").stdout == "spark3\n"
        assert wide.ssh(third, "ssh spark2 hostname").stdout == "spark2\n"
        assert third.run("docker", "ps", "--quiet") == ""
        own = third.run("cat", "/sys/class/net/eth0/address")
    with testbed.widened(3) as wide:  # its neighbours still know the one of before
        assert wide.hosts[2].run("cat", "/sys/class/net/eth0/address") == own == "02:00:0a:4d:00:03\n"
        assert wide.ssh(wide.hosts[0], "ssh -o ConnectTimeout=4 spark3 hostname").stdout == "spark3\n"
    assert [host.process("init") for host in testbed.hosts] == before
    assert len(testbed.status()) == 2
    assert not third.root.exists()
    assert "spark3" not in head.run("cat", "/etc/hosts")
    assert testbed.ssh(head, "ssh spark2 hostname").stdout == "spark2\n"


def test_three_ranks_edited_at_load(three: Testbed, model: Path, edit: Edit, tmp_path: Path) -> None:
    user = triplet.user(tmp_path, **edit.settings)
    up = user.invoke("up")
    print(f"up: {up.wall_s:.1f} s")
    assert up.code == 0, up.err
    served = [(prompt, triplet.ask(URL, prompt)) for prompt in PROMPTS]
    look = user.invoke("status", "--json", "--passive").out
    with ThreadPoolExecutor() as beside:  # `down` mostly waits for the headless ranks
        wanted = beside.submit(triplet.offline, tmp_path, model, edit, served)
        down = user.invoke("down")
    found = wanted.result()
    print(f"down: {down.wall_s:.1f} s")
    assert down.code == 0, down.err
    assert remains(three.hosts) == []
    reported(up.err, look, edit)
    for (_, steps), edited, stock in zip(served, found["edited"], found["stock"], strict=True):
        alike(steps, edited)
        assert [step.id for step in steps] != [step.id for step in stock], "the edit changes nothing that is served"


def reported(said: str, look: str, edit: Edit) -> None:
    """All three ranks, one edit; also in each rank's record."""
    source = hashlib.sha256(edit.direction.read_bytes()).hexdigest()
    line = (
        f"edited at load: model layers 10-29, proj alpha 2, source {source[:16]}, the same on all 3 ranks; signed ratio -1.0000 to -1.0000"
    )
    assert line in said, said
    noted = [rank["record"]["ablation"] for rank in json.loads(look)["ranks"]]
    seen = [(each["rank"], each["world"], each["layers"], each["alpha"], each["source"]) for rows in noted for each in rows]
    assert seen == [(number, 3, "10-29", 2.0, source) for number in range(3)]


def alike(served: list[Step], wanted: list[Step]) -> None:
    """The same token and the same five best at each place."""
    assert min(step.lead for step in wanted) > 2 * NEAR, "the model is too close to a tie to tell"
    assert [step.id for step in served] == [step.id for step in wanted]
    furthest = max(
        abs(one.best.get(number, value - 1) - value)
        for one, other in zip(served, wanted, strict=True)
        for number, value in other.best.items()
    )
    print(f"largest difference of a log-probability: {furthest:.1e}")
    assert furthest < NEAR
