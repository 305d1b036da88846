"""The node agent on real processes: start, probe, stop; whose process is whose."""

import importlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent_client import ask_agent
from cluster.errors import LaunchError
from cluster.transport import LocalTransport
from tests.cluster.support import ROOT, Node, command_lines, default_interrupt, eventually, kill_session, lives, session
from tests.cluster.support import stat as proc_stat

SECRET = "hunter2-and-more"
FOREVER = "import time; print('here', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.clean_up()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that the agent did not start, the leader of its own session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def running(node: Node, code: str = FOREVER, **options: Any) -> dict[str, Any]:
    """Start Python code and wait for its word in the log; the record."""
    answer = node.python(code, **options)
    eventually(lambda: node.says("here"))
    assert answer["started"] is True
    return dict(answer["record"])


def test_start_probe_stop(node: Node) -> None:
    record = running(node, kit="local", port=1)
    seen = node.probe()
    assert seen["record"] == record == json.loads(node.record_path.read_text())
    assert (seen["exit_code"], seen["holder"], seen["tail"]) == (None, None, ["here"])
    assert len(seen["pids"]) == 2  # the shell that notes the exit code, and the engine
    assert node.stop() == {"was_running": True, "left": []}
    assert not session(record["pid"])
    assert sorted(path.name for path in node.folder.rglob("*") if path.is_file()) == [node.log.name]


def test_record_tells_what_runs(node: Node) -> None:
    before = time.time()
    record = running(node, kit="local", boot="b0")
    assert (record["kit"], record["boot"], record["log"]) == ("local", "b0", str(node.log))
    assert record["argv"] == [sys.executable, "-c", FOREVER]
    assert before <= record["started_unix_s"] <= time.time()
    assert record["start_ticks"] == int(proc_stat(record["pid"])[19])
    assert record["kernel_boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_own_session_and_folder_and_no_stdin(node: Node) -> None:
    code = "import os, sys; print(os.getsid(0), os.getcwd(), repr(sys.stdin.read()), 'here', flush=True)"
    record = node.python(code)["record"]
    eventually(lambda: node.says("here"))
    assert node.log.read_text().split() == [str(record["pid"]), str(node.folder), "''", "here"]
    assert record["pid"] != os.getsid(0)


def test_log_holds_stdout_and_stderr(node: Node) -> None:
    node.python("import sys; print('out', flush=True); print('err', file=sys.stderr)")
    assert node.ended()["tail"] == ["out", "err"]


def test_newest_ten_logs_of_a_rank_are_kept(node: Node) -> None:
    logs = node.folder / "run" / "logs"
    logs.mkdir(parents=True)
    names = [f"20260101T0000{number:02}Z-b{number:02}-rank0.log" for number in range(12)]
    for name in (*names, "20250101T000000Z-b0-rank1.log"):
        (logs / name).write_text("")
    node.python("pass")
    kept = sorted(path.name for path in logs.iterdir())
    assert len(kept) == 11
    assert kept[0] == "20250101T000000Z-b0-rank1.log"  # another rank's
    assert kept[1:10] == names[3:]
    assert kept[10] == node.log.name  # the new one


def test_home_is_the_node_s_own(node: Node) -> None:
    node.python("import os, sys; print(sys.argv[1], os.environ['CACHE'])", "~/a b", env={"CACHE": "~/cache"})
    home = str(Path.home())
    assert node.ended()["tail"] == [f"{home}/a b {home}/cache"]


def test_engine_that_outlives_the_agent_keeps_writing(node: Node) -> None:
    running(node, "import time\nprint('here', flush=True)\ntime.sleep(0.3)\nprint('later', flush=True)")
    assert node.ended()["tail"] == ["here", "later"]


@pytest.mark.parametrize(("code", "exit_code"), [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 11)", 139)])
def test_exit_code(node: Node, code: str, exit_code: int) -> None:
    node.python(code)
    seen = node.ended()
    assert (seen["exit_code"], seen["pids"]) == (exit_code, [])
    assert seen["record"] is not None
    assert node.stop() == {"was_running": False, "left": []}
    assert node.probe()["record"] is None


def test_command_that_cannot_run(node: Node) -> None:
    node.start("/nowhere/engine")
    seen = node.ended()
    assert seen["exit_code"] == 127
    assert "/nowhere/engine" in seen["tail"][0]


def test_no_exit_code_when_the_whole_session_is_killed(node: Node) -> None:
    record = running(node)
    kill_session(record["pid"])
    assert node.ended()["exit_code"] is None


def test_exit_code_of_an_earlier_boot_is_forgotten(node: Node) -> None:
    node.python("raise SystemExit(3)")
    node.ended()
    record = running(node)
    kill_session(record["pid"])
    assert node.ended()["exit_code"] is None


def test_argv_is_not_read_by_a_shell(node: Node) -> None:
    words = ["a b", "$HOME", "`id`", "'", '"', "*", "; exit 9", ""]
    node.python("import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    seen = node.ended()
    assert (json.loads(seen["tail"][0]), seen["exit_code"]) == (words, 0)


def test_stop_lets_a_process_end_in_order(node: Node) -> None:
    code = f"import signal, sys; signal.signal(15, lambda *_: (print('bye', flush=True), sys.exit(0))); {FOREVER}"
    running(node, code)
    assert node.stop() == {"was_running": True, "left": []}
    assert node.says("bye")


def test_stop_kills_what_ignores_term(node: Node) -> None:
    record = running(node, DEAF)
    begin = time.monotonic()
    assert node.stop(grace_s=0.5) == {"was_running": True, "left": []}
    assert 0.5 <= time.monotonic() - begin < 5
    assert not session(record["pid"])


def test_leaderless_session_is_still_ours(node: Node) -> None:
    """The shell in front may be killed; the engine is then found by its session."""
    record = running(node, DEAF)
    os.kill(record["pid"], signal.SIGKILL)
    eventually(lambda: not lives(record["pid"]))
    assert len(node.probe()["pids"]) == 1
    assert node.python(FOREVER)["started"] is False
    assert node.stop(grace_s=0.1) == {"was_running": True, "left": []}
    assert not session(record["pid"])


def test_stop_ends_children_and_orphans_of_the_session(node: Node) -> None:
    orphan = "(sleep 600 &) ; sleep 600 & sleep 600 & echo here; wait"
    record = node.start("sh", "-c", orphan)["record"]
    eventually(lambda: node.says("here") and len(session(record["pid"])) == 5)
    assert node.stop() == {"was_running": True, "left": []}
    assert session(record["pid"]) == []


def test_stop_without_a_record(node: Node) -> None:
    assert node.stop() == {"was_running": False, "left": []}


def test_second_start_is_refused(node: Node) -> None:
    record = running(node)
    answer = node.start("touch", str(node.folder / "second"))
    assert answer == {"started": False, "record": record}
    assert node.probe()["record"] == record
    assert not (node.folder / "second").exists()


def test_start_after_an_end_replaces_the_record(node: Node) -> None:
    first = node.python("pass")["record"]
    node.ended()
    assert running(node)["pid"] != first["pid"]
    assert len(node.probe()["pids"]) == 2


def test_nothing_runs_when_the_record_cannot_be_written(node: Node) -> None:
    Path(f"{node.record_path}.tmp").mkdir(parents=True)
    with pytest.raises(LaunchError, match="the node agent could not start rank0"):
        node.start("touch", str(node.folder / "ran"))
    eventually(lambda: str(node.folder) not in command_lines())
    assert not (node.folder / "ran").exists()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_agent_that_ends_before_the_record_is_written(node: Node, sig: signal.Signals) -> None:
    """Ctrl-C reaches the agent too. It is held between process and record by a pipe that nobody reads."""
    node.record_path.parent.mkdir()
    os.mkfifo(f"{node.record_path}.tmp")
    code = (
        "import sys; from pathlib import Path; from tests.cluster.support import Node; Node(Path(sys.argv[1])).start('touch', sys.argv[2])"
    )
    command = [sys.executable, "-c", code, str(node.folder), str(node.folder / "ran")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=default_interrupt) as caller:
        try:
            eventually(lambda: "sh touch" in command_lines())
        finally:
            os.killpg(caller.pid, sig)
    eventually(lambda: "sh touch" not in command_lines())
    assert not (node.folder / "ran").exists()


def test_reused_pid_is_not_signalled(node: Node, stranger: subprocess.Popen[bytes]) -> None:
    running(node)
    node.edit_record(pid=stranger.pid, start_ticks=int(proc_stat(stranger.pid)[19]) - 1)
    assert node.probe()["pids"] == []
    assert node.stop() == {"was_running": False, "left": []}
    assert stranger.poll() is None


def test_other_kernel_boot_is_not_signalled(node: Node, stranger: subprocess.Popen[bytes]) -> None:
    running(node)
    node.edit_record(pid=stranger.pid, start_ticks=int(proc_stat(stranger.pid)[19]))
    assert node.probe()["pids"] == [stranger.pid]  # the record is taken for true
    node.edit_record(kernel_boot_id="11111111-2222-3333-4444-555555555555")
    assert node.probe()["pids"] == []
    assert node.stop() == {"was_running": False, "left": []}
    assert stranger.poll() is None


def test_record_is_private(node: Node) -> None:
    running(node)
    assert stat.S_IMODE(node.record_path.stat().st_mode) == 0o600


def test_record_is_replaced_not_overwritten(tmp_path: Path) -> None:
    """A reader that opened the old file goes on reading the old file, whole."""
    agent: Any = importlib.import_module("cluster.agent")
    path = tmp_path / "record.json"
    agent.write_json(str(path), {"old": 1})
    with path.open() as reader:
        agent.write_json(str(path), {"new": 2})
        assert json.load(reader) == {"old": 1}
    assert json.loads(path.read_text()) == {"new": 2}
    assert os.listdir(tmp_path) == ["record.json"]


class Watching:
    """The real transport, noting argument lists and what any process shows while a command runs."""

    node = "local"

    def __init__(self) -> None:
        self.shown: list[str] = []

    def run(self, argv: Any, *, stdin: str = "", timeout_s: float) -> Any:
        self.shown.append(" ".join(argv))
        outcome = LocalTransport().run(argv, stdin=stdin, timeout_s=timeout_s)
        self.shown.append(command_lines())
        return outcome

    def close(self) -> None: ...


def test_secret_is_only_in_the_environment(node: Node) -> None:
    node.transport = watching = Watching()
    record = running(node, f"import os; print(os.environ['KEY']); {FOREVER}", env={"KEY": SECRET})
    node.probe()
    assert node.says(SECRET)  # it did arrive
    assert not [text for text in watching.shown if SECRET in text]
    assert SECRET not in node.record_path.read_text() + json.dumps(record)


def test_failing_agent_is_one_launch_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=re.escape("local: the node agent could not dance x (exit 1)")):
        ask_agent(LocalTransport(), {"action": "dance", "name": "x"})
    with pytest.raises(LaunchError, match=r"\(exit 127\)\nran: /nowhere/python -"):
        ask_agent(LocalTransport(), {"action": "probe", "name": "x"}, python="/nowhere/python")


def test_agent_past_its_time_limit(node: Node) -> None:
    running(node, DEAF)
    request = {"action": "stop", "name": "rank0", "run_dir": str(node.folder / "run"), "grace_s": 60}
    with pytest.raises(LaunchError, match=re.escape("could not stop rank0 (timed out)")):
        ask_agent(LocalTransport(), request, timeout_s=0.5)
