"""A served sweep on a testbed host: SmolLM2-135M in fp32 by real vLLM that drafts by n-gram lookup, edited at load by the plugin in the
image, measured over HTTP, and the same edits measured in process. The sweep is interrupted after its control: what is finished stays, the
kit is put back, and the same command again measures the direction itself.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablit import receipt as receipts
from ablit.receipt import Receipt
from cli import lab_env
from tests.testbed import cpu_image, image, images, solo, twin, vllm_env
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(1200)]

DIRECTION = solo.ROOT / "results/ablation/brief-15.safetensors"
FLAGS = (
    *("--layers", "10-29", "--alphas", "2", "--control-seeds", "1", "--windows", "1"),
    *("--prompts", "4", "--reply-tokens", "8", "--speed-runs", "0"),
)
NEAR = 1e-5  # nats, mean over the panel: what two engines' fp32 differ by (tests/lab/kld has the same limit)


@pytest.fixture(scope="module")
def host(testbed: Testbed) -> Iterator[Host]:
    vllm_env.ensure()
    solo.model()
    testbed.up()
    head = testbed.hosts[0]
    image.load(head)
    images.clear(head)
    cpu_image.build(head)
    yield head
    twin.clear([head])
    images.clear(head)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> twin.User:
    return solo.user(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def swept(host: Host, user: twin.User, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """The sweep's folder, what it said, and its exit code, after Ctrl-C as soon as twin and control are finished."""
    out = tmp_path_factory.mktemp("out")
    with begun(user, out) as process:
        until = time.monotonic() + 900
        while len(list(out.glob("*.json"))) < 2 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=200)
    return out, said, process.returncode


def begun(user: twin.User, out: Path) -> subprocess.Popen[str]:
    words = ("ablit.sweep", "--kit", "solo", "--direction", str(DIRECTION), *FLAGS, "--out", str(out))
    return user.begin(*words, **solo.drafting())


@pytest.fixture(scope="module")
def finished(swept: tuple[Path, str, int], user: twin.User) -> tuple[Path, str]:
    """The folder after the same command again, and what that printed and said."""
    with begun(user, swept[0]) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return swept[0], out + err


def found(out: Path) -> dict[str, Receipt]:
    checked = [receipts.check(path) for path in sorted(out.glob("*.json"))]
    return {str(each.control): each for each in checked}


def test_interrupted_it_keeps_what_is_finished_and_stops_the_kit(swept: tuple[Path, str, int], host: Host) -> None:
    out, said, code = swept
    assert code == 1, said
    assert "error: interrupted; 2 of 3 points are finished and kept in" in said, said
    assert "4 starts of the kit" in said
    assert "putting the kit back: stopped, as before the sweep" in said
    assert "Traceback" not in said
    assert sorted(found(out)) == ["random", "twin"]
    twin.clean([host])


def test_what_the_receipts_say(swept: tuple[Path, str, int]) -> None:
    made = found(swept[0])
    edited, same = made["random"], made["twin"]
    assert edited.served is not None
    assert same.served is not None
    assert [(edit.layers, edit.alpha, edit.world) for edit in edited.served.edits] == [("10-29", 2.0, 1)]
    assert edited.served.edits[0].source == edited.direction["sha256"]
    assert same.served.edits == ()
    assert len({edited.served.edited.boot, same.served.edited.boot, edited.served.stock.boot}) == 3
    assert edited.served.floor.boot == same.served.edited.boot
    assert edited.served.floor.mean < NEAR
    assert edited.summary.kld > 100 * NEAR
    assert len(edited.behaviour[0].first_kld) == 4
    assert edited.behaviour[0].stock == same.behaviour[0].stock
    assert (edited.model.hidden, edited.model.layers, edited.model.dtype) == (576, 30, "float32")


def test_the_same_command_again_measures_what_is_left(swept: tuple[Path, str, int], finished: tuple[Path, str], host: Host) -> None:
    """One start, of the direction's point, beside the stock pass that was kept."""
    out, said = finished
    made = found(out)
    assert "3 points, 2 finished before" in said
    assert "1 start of the kit" in said
    real, control = made["None"], made["random"]
    assert real.served is not None
    assert control.served is not None
    assert real.direction["name"] == "brief-15"
    assert [(edit.layers, edit.alpha, edit.source) for edit in real.served.edits] == [("10-29", 2.0, real.direction["sha256"])]
    assert real.served.stock == control.served.stock
    assert real.served.floor == control.served.floor
    assert real.summary.kld > 100 * NEAR
    for name in ("brief-15", "random-0", "unedited twin"):
        assert f"| {name} | 10-29 |" in said
    twin.clean([host])


def test_what_the_server_counted_of_its_drafts(finished: tuple[Path, str]) -> None:
    for made in found(finished[0]).values():
        assert made.served is not None
        for boot in (made.served.stock, made.served.edited):
            counted = boot.speculation
            assert counted is not None
            assert 0 < counted.drafts < counted.draft_tokens <= solo.DRAFTS * counted.drafts
            assert len(counted.accepted_per_position) == solo.DRAFTS
            assert sum(counted.accepted_per_position) == counted.accepted_tokens
            assert list(counted.accepted_per_position) == sorted(counted.accepted_per_position, reverse=True)


def test_the_same_edits_in_process_have_the_same_kld(finished: tuple[Path, str], tmp_path: Path) -> None:
    out = tmp_path / "agree.json"
    words = [str(lab_env.ensure()), "-m", "ablit.served.agree", str(finished[0]), str(solo.MODEL), str(DIRECTION), str(out)]
    done = subprocess.run(words, cwd=solo.ROOT, env=lab_env.environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stderr)
    plain = json.loads(out.read_text())
    assert sorted(row["direction"] for row in plain["points"]) == ["brief-15", "random-0"]
    assert plain["positions"] == 5 * 512
    assert plain["floor_http_twice"] <= plain["stock_in_process_against_http"]["mean"] < NEAR
    for row in plain["points"]:
        assert abs(row["difference"]) <= NEAR
        assert abs(row["agree_http"] - row["agree_in_process"]) <= 5  # of 2560: near ties
        assert row["kld_in_process_full_vocabulary"] > row["kld_in_process"] > 100 * NEAR


def test_a_direction_of_another_hidden_size(host: Host, user: twin.User, tmp_path: Path) -> None:
    """The model is looked at on the head before anything is started."""
    made = "import sys, numpy; from ablit.served.direction import written; sys.stdout.buffer.write(written(numpy.ones(64, 'f'), {}))"
    content = subprocess.run([sys.executable, "-c", made], cwd=solo.ROOT, capture_output=True, check=True).stdout
    (tmp_path / "d.safetensors").write_bytes(content)
    done = user.invoke(
        "ablit.sweep", "--kit", "solo", "--direction", str(tmp_path / "d.safetensors"), *FLAGS, "--out", str(tmp_path / "out")
    )
    assert done.code == 2
    assert "the direction has 64 values, smollm2-chat a hidden size of 576: it is another model's" in done.err
    assert twin.containers(host) == []


def test_a_dry_run_starts_nothing(host: Host, user: twin.User, tmp_path: Path) -> None:
    done = user.invoke("ablit.sweep", "--kit", "solo", "--direction", str(DIRECTION), *FLAGS, "--out", str(tmp_path / "out"), "--dry")
    assert done.code == 0, done.err
    assert "kit solo, model smollm2-chat: 3 points, 0 finished before" in done.err
    assert twin.containers(host) == []
    assert not (tmp_path / "out").exists()
