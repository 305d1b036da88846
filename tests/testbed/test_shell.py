"""Running commands, remembering processes, and what else of the testbed needs neither root nor a host."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.testbed import packages
from tests.testbed.host import Host
from tests.testbed.hosts import main
from tests.testbed.shell import How, Process, TestbedError, attempt, failure, run


def test_a_failure_says_what_ran_its_last_lines_and_what_to_try() -> None:
    with pytest.raises(TestbedError) as caught:
        run(["sh", "-c", "echo one; echo two >&2; exit 3"], "count to three", How(hint="count again"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("could not count to three: exit status 3 after 0.")
    assert lines[1:] == [
        "  ran: sh -c 'echo one; echo two >&2; exit 3'",
        "  last lines:",
        "    one",
        "    two",
        "  try: count again",
    ]


def test_a_missing_program_is_a_failure_too() -> None:
    with pytest.raises(TestbedError, match=r"could not look around: .*no-such-program"):
        run(["no-such-program"], "look around")


def test_only_the_last_fifteen_lines_are_shown() -> None:
    text = str(failure("talk", output="\n".join(f"line {number}" for number in range(40))))
    assert text.splitlines()[2] == "    line 25"


def test_a_timeout_ends_the_whole_group() -> None:
    """The child holds the pipe open: killing the shell alone would wait for it 30 s."""
    begin = time.monotonic()
    result = attempt(["sh", "-c", "echo begun; sleep 30; true"], How(timeout_s=0.5))
    assert (result.status, result.stdout) == (124, "begun\n")
    assert time.monotonic() - begin < 5


def test_stdin_is_a_file_or_a_text_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"from a file")
    assert attempt(["cat"], How(stdin=tmp_path / "in")).stdout == "from a file"
    assert attempt(["cat"], How(stdin="from a text")).stdout == "from a text"
    assert attempt(["cat"]).stdout == ""


def test_another_process_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        now = Process.of(sleeper.pid)
        assert now is not None
        now.save(tmp_path / "now.json")
        assert Process.load(tmp_path / "now.json") == now
        earlier = Process(now.pid, now.ticks - 100, now.boot)
        assert earlier.stop(grace_s=1) is True  # there is no such process any more
        assert now.alive()
        assert now.stop(grace_s=5) is True
        assert not now.alive()
    assert sleeper.returncode == -15


def test_files_of_a_host_are_found_from_outside() -> None:
    host = Host(2, Path("/state"))
    assert host.path("/run/docker.sock") == Path("/state/spark2/run/docker.sock")
    assert host.path("/root") == Path("/state/spark2/home")
    with pytest.raises(ValueError, match="/usr/bin is not private"):
        host.path("/usr/bin")


def test_the_state_may_not_lie_where_hosts_do_not_see_it(capsys: pytest.CaptureFixture[str]) -> None:
    if packages.missing():
        pytest.skip("what is missing on this machine is said first")
    assert main(["up", "--state", "/tmp/somewhere"]) == 1
    assert "--state /tmp/somewhere is hidden in the hosts" in capsys.readouterr().err


@pytest.mark.parametrize("there", [False, True])
def test_services_are_kept_off_while_installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    policy = tmp_path / "policy-rc.d"
    if there:
        policy.write_text("the machine's own\n")
    monkeypatch.setattr(packages, "POLICY", policy)
    with packages._services_kept_off():
        assert policy.read_text() == ("the machine's own\n" if there else "#!/bin/sh\nexit 101\n")
    assert policy.exists() is there
