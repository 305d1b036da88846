"""How a command reaches a node. One Outcome per command; a transport never raises for a command that failed or a node not reached."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cluster.errors import LaunchError, Unreachable

if TYPE_CHECKING:
    from cluster.ssh import Link

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What one command did on one node.

    `code` is negative when a signal ended it, and None when it ran past its time limit or `failure` says, in words, why the node
    was not reached or was lost (`hint`: what to try). A command whose connection was lost may still be running.
    """

    node: str
    argv: tuple[str, ...]
    code: int | None
    stdout: str
    stderr: str
    seconds: float
    failure: str | None = None
    hint: str = ""

    def error(self, what: str, hint: str = "") -> LaunchError:
        """This outcome as a failure message: `what`, the command and its last lines."""
        state = self.failure or ("timed out" if self.code is None else f"exit {self.code}")
        lines = (self.stderr or self.stdout).strip().splitlines()[-8:]
        return LaunchError(f"{what} ({state})", node=self.node, ran=" ".join(self.argv), tail=lines, hint=self.hint or hint)


class Transport(Protocol):
    """Runs one command on one node: argv without a shell, text on stdin, a wall-clock limit in seconds."""

    @property
    def node(self) -> str: ...

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class LocalTransport:
    """Commands on this machine."""

    node: str = "local"

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
        begin = time.monotonic()
        try:
            done = subprocess.run(argv, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s)
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            code, out, err = None, _text(late.stdout), _text(late.stderr)
        except OSError as error:
            code, out, err = 127, "", str(error)
        return Outcome(self.node, tuple(argv), code, out, err, time.monotonic() - begin)

    def close(self) -> None:
        """Nothing is kept open."""


def _text(data: Any) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


@dataclass(frozen=True)
class SshTarget:
    """How to reach a node by ssh. `host` may be an alias; what is None comes from the ssh config (by default that of OpenSSH)."""

    node: str
    host: str
    user: str | None = None
    port: int | None = None
    ssh_config: Path | str | None = None
    connect_timeout_s: float = 8


class FabricTransport:
    """Commands on another machine, by ssh. Connects at the first command and keeps the connection until `close`.

    The command line goes to the login shell of the remote user, which must be a POSIX one. Several threads may use one transport.
    """

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self._link: Link | None = None
        self._lock = threading.Lock()

    @property
    def node(self) -> str:
        return self.target.node

    @property
    def notes(self) -> list[str]:
        """Remarks on the log-in, such as an ssh agent that did not answer."""
        return self._link.notes if self._link else []

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
        begin = time.monotonic()
        code, failure, hint, exchange = None, None, "", None
        try:
            # exec: without it dash stays in between, takes the signals and turns the command's own into exit codes.
            exchange = _Exchange(self._session(begin + timeout_s), f"exec {shlex.join(argv)}", stdin)
            code = exchange.wait(begin + timeout_s)
        except Unreachable as error:
            failure, hint = error.what, error.hint
        out, err = exchange.output() if exchange else ("", "")
        return Outcome(self.node, tuple(argv), code, out, err, time.monotonic() - begin, failure, hint)

    def _session(self, deadline: float) -> Any:
        """A new channel, on the connection there is, or else on a new one. Nothing was sent yet. Raises Unreachable."""
        from cluster import ssh

        with self._lock:
            if self._link:
                with suppress(Exception):
                    return self._link.transport.open_session(timeout=self._limit(deadline) / 2)
                self._link.close()
                self._link = None
            self._link = ssh.connect(self.target, self._limit(deadline))
            return ssh.session(self._link, self._limit(deadline))

    def _limit(self, deadline: float) -> float:
        return max(0.05, min(self.target.connect_timeout_s, deadline - time.monotonic()))

    def close(self) -> None:
        with self._lock:
            if self._link:
                self._link.close()
            self._link = None

    def __enter__(self) -> FabricTransport:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Exchange:
    """One command on one ssh channel. Three threads send stdin and read both outputs, so that none waits for another."""

    def __init__(self, channel: Any, command: str, stdin: str) -> None:
        self._channel = channel
        self._out: list[bytes] = []
        self._err: list[bytes] = []
        self._refused = False
        tasks = ((self._send, command, stdin), (self._read, channel.recv, self._out), (self._read, channel.recv_stderr, self._err))
        self._threads = [threading.Thread(target=task, args=args, daemon=True) for task, *args in tasks]
        for thread in self._threads:
            thread.start()

    def _send(self, command: str, stdin: str) -> None:
        try:
            self._channel.exec_command(command.encode(errors="surrogateescape"))
        except Exception:
            self._refused = True
            self._channel.close()
        with suppress(Exception):  # the command may end without reading what it is sent
            self._channel.sendall(stdin.encode(errors="surrogateescape"))
            self._channel.shutdown_write()

    def _read(self, receive: Callable[[int], bytes], into: list[bytes]) -> None:
        while data := receive(65536):
            into.append(data)

    def wait(self, deadline: float) -> int | None:
        """The exit code; None at the deadline, when the command was told to end. Raises Unreachable when the connection is lost."""
        from cluster import ssh

        ended = False
        try:
            for thread in self._threads[1:]:
                thread.join(max(0, deadline - time.monotonic()))
            ended = self._channel.status_event.wait(max(0, deadline - time.monotonic()))
        finally:  # also when somebody presses Ctrl-C
            if not ended:
                ssh.end(self._channel)
        return ssh.exit_code(self._channel, refused=self._refused) if ended else None

    def output(self) -> tuple[str, str]:
        out, err = (b"".join(parts).decode(errors="replace") for parts in (self._out, self._err))
        return out, err


def trust(target: SshTarget) -> tuple[str, ...]:
    """Accept the unknown host keys on the way to a node (cluster/ssh.py says how). Raises LaunchError."""
    from cluster import ssh

    return ssh.trust(target)
